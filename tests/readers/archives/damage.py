"""Seeded damage to the files of a data set: by a disk, a network, a packer, or an attacker."""

import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np

from tests.readers.archives.original_sets import (
    ORIGINALS,
    File,
    Member,
    Original,
    tar_bytes,
    zip_bytes,
)
from tests.readers.records.mutations import HOSTILE, mutate

MIB = 1 << 20
_LINES = (
    *(b"a\ta\n", b"1::F::1::10::1\n", b"1::7::5::1\n", b"a ", b"b c\n", b"\n", b"<s> ", b"* "),
    *(b"-\n", b"(V*)\n", b"0 " * 13 + b"0\n", b"\0", b"9" * 64, b"\xff"),
)
_NAMES = (
    "/etc/passwd",
    "../../escaped",
    "a\\..\\b",
    "x" * 300,
    "x" * 70_000,
    "\udcff\n",
    "a/" * 2000,
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A set with one damaged file.

    Args:
      kind: of the damage.
      changed: the content of the damaged file by its name.
      unpacked: the members to write instead of the archive of that name.
      special: what else stands at the place of a file, by its name.
      is_checksummed: what is read must be what was written, as its checksum says.
    """

    number: int
    original: Original
    kind: str
    changed: dict[str, bytes] = field(default_factory=dict)
    unpacked: dict[str, tuple[Member, ...]] = field(default_factory=dict)
    special: dict[str, str] = field(default_factory=dict)
    is_checksummed: bool = False


def make_case(number: int) -> Case:
    """Return the case of a number."""
    random = np.random.default_rng(number)
    original = ORIGINALS[number % len(ORIGINALS)]
    file = original.files[random.integers(len(original.files))]
    kinds = {
        "bytes": ("bytes", "bytes", "content", "lie", "bomb", "special"),
        "archive": ("members", "members", "unpacked"),
        "folder": ("content", "members"),
    }
    allowed = [*(kinds["folder"] if file.form == "folder" else kinds["bytes"])]
    allowed += kinds["archive"] if file.form in ("tar", "zip") else ()
    kind = str(random.choice(allowed))
    if kind == "bomb" and random.integers(4):
        kind = "bytes"  # a bomb takes as long as a hundred others
    return _CASES[kind](Case(number=number, original=original, kind=kind), file, random)


def write_original(name: str, folder: Path) -> Original:
    """Write the files of the first set of a name, whole, into an empty folder."""
    original = next(o for o in ORIGINALS if o.name == name)
    write_files(Case(number=-1, original=original, kind="none"), folder)
    return original


def write_files(case: Case, folder: Path) -> None:
    """Write the files of a case into an empty folder."""
    for file in case.original.files:
        path = folder / file.name
        if file.name in case.special:
            _write_special(path, case.special[file.name])
        elif file.name in case.unpacked or file.form == "folder":
            _unpack(case.unpacked.get(file.name, file.members), folder)
        else:
            path.write_bytes(case.changed.get(file.name, file.packed()))


def _write_special(path: Path, what: str) -> None:
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "hole":
        with open(path, "wb") as file:
            file.truncate(1 << 40)
    elif what != "nothing":
        path.symlink_to(what)


def _unpack(members: tuple[Member, ...], folder: Path) -> None:
    for member in members:
        parts = [part[:100] for part in PurePosixPath(member.name).parts if part not in ("/", "..")]
        path = folder.joinpath(*parts[:20])
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.kind == tarfile.REGTYPE and not path.exists():
            path.write_bytes(member.data)
        elif not path.exists() and not path.is_symlink():
            kinds = {tarfile.FIFOTYPE: "pipe", tarfile.DIRTYPE: "folder"}
            _write_special(path, kinds.get(member.kind, member.link or "/dev/zero"))


def _damage_bytes(case: Case, file: File, random: np.random.Generator) -> Case:
    is_checksummed = file.form in ("tar", "gz") or (
        file.form == "zip" and not case.original.is_named
    )
    changed = {file.name: mutate(file.packed(), random)}
    return replace(case, changed=changed, is_checksummed=is_checksummed)


def _damage_content(case: Case, file: File, random: np.random.Generator) -> Case:
    """Damage a member, and pack it with the right checksum."""
    members = list(file.members)
    at = random.integers(len(members))
    data = members[at].data
    choices: tuple[Callable[[], bytes], ...] = (
        lambda: mutate(data, random),
        lambda: mutate(data, random),
        lambda: data[: len(data) // 2],
        lambda: data + data,
        lambda: b"",
        lambda: pickle.dumps({b"data": [1, 2, 3], b"labels": [0]}),
        lambda: data.replace(b"7", b"-1").replace(b"sit", b"set").replace(b"\t", b"\t\t"),
        lambda: bytes(random.integers(0, 256, len(data), np.uint8)),
        lambda: data.upper(),
    )
    members[at] = replace(members[at], data=choices[random.integers(len(choices))]())
    return _with_members(case, file, members)


def _with_members(case: Case, file: File, members: list[Member]) -> Case:
    if file.form == "folder":
        return replace(case, unpacked={file.name: tuple(members)})
    return replace(case, changed={file.name: file.with_members(members).packed()})


def _damage_members(case: Case, file: File, random: np.random.Generator) -> Case:
    """Take members out, double, rename and link them, pickle and all."""
    members = list(file.members)
    at = int(random.integers(len(members)))
    one = members[at]
    name = _NAMES[random.integers(len(_NAMES) - (file.form == "folder"))]
    kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE)
    # Images in a folder are another reader's: there a pipe is none of the archives' matter.
    kind = tarfile.DIRTYPE if file.form == "folder" else kinds[random.integers(len(kinds))]
    other = replace(members[random.integers(len(members))], name=one.name)
    choices: tuple[list[Member], ...] = (
        [],
        [one, one],
        [one, other],
        [replace(one, name=name)],
        [one, replace(one, name=name)],
        [replace(one, name=f"deep/er/{one.name}")],
        [one, replace(one, name=f"deep/er/{one.name}")],
        [Member(name=one.name, kind=kind, link="/dev/zero")],
        [Member(name=one.name, kind=kind, link=members[0].name)],
        [one, Member(name=f"{one.name}.link", kind=kind, link="../..")],
        [replace(one, data=pickle.dumps({b"data": list(range(9))}))],
        [one, Member(name=one.name.rpartition("/")[0] + "/batches.meta", data=pickle.dumps({}))],
    )
    members[at : at + 1] = choices[random.integers(len(choices))]
    if random.integers(3) == 0:
        members = [members[i] for i in random.permutation(len(members))]
    return _with_members(case, file, members)


def _damage_unpacked(case: Case, file: File, random: np.random.Generator) -> Case:
    """Damage members that were unpacked."""
    damage = _damage_content if random.integers(2) else _damage_members
    if file.folder is None:  # it is read packed alone
        return damage(case, file, random)
    as_folder = replace(file, form="folder")
    return replace(damage(case, as_folder, random), kind=case.kind)


def _lie(case: Case, file: File, random: np.random.Generator) -> Case:
    """Damage an archive, or the header of a file, and pack it with the right checksum."""
    if file.form == "tar":
        data = _pack_gzip([(mutate(tar_bytes(file.members), random), 1)])
    elif file.form == "zip":
        data = mutate(zip_bytes(file.members), random)
    else:
        content = bytearray(file.members[0].data)
        at = 4 * int(random.integers(4))
        content[at : at + 4] = HOSTILE[random.integers(len(HOSTILE))][:4]
        data = file.with_members([replace(file.members[0], data=bytes(content))]).packed()
    return replace(case, changed={file.name: data})


def _bomb(case: Case, file: File, random: np.random.Generator) -> Case:
    """Let a member hold far more than it should, packed to little."""
    line = _LINES[random.integers(len(_LINES))]
    block = line * (MIB // len(line))
    num_blocks = int(random.choice([3, 20, 60, 2000]))
    members = list(file.members)
    one = members.pop(int(random.integers(len(members))))
    if file.form == "tar":
        rest = tar_bytes(members).rstrip(b"\0")
        rest += bytes(-len(rest) % 512)
        info = tarfile.TarInfo(one.name if random.integers(3) else "README")
        info.size = len(block) * num_blocks
        end = bytes(-info.size % 512 + 1024)
        header = info.tobuf(tarfile.GNU_FORMAT)
        data = _pack_gzip([(rest, 1), (header, 1), (block, num_blocks), (end, 1)])
    elif file.form == "gz":
        # As many images as its header claims, or other bytes.
        shape = (num_blocks * 1000, 28, 28)[: one.data[3]]
        head = one.data[:4] + struct.pack(f">{len(shape)}I", *shape)
        data = _pack_gzip([(head, 1), (bytes(MIB) if random.integers(2) else block, num_blocks)])
    else:
        large = replace(one, data=one.data + block * min(num_blocks, 60))
        data = file.with_members([*members, large]).packed()
    return replace(case, changed={file.name: data})


def _pack_gzip(parts: list[tuple[bytes, int]]) -> bytes:
    """Return gzip of blocks, each so many times; of more than 64 MiB with a wrong checksum."""
    engine = zlib.compressobj(1, wbits=-15)
    packed, size, checksum = [], 0, 0
    for block, times in parts:
        head = engine.compress(block) + engine.flush(zlib.Z_FULL_FLUSH)
        packed += [head] * times
        size += len(block) * times
        for _ in range(times if size <= 64 * MIB else 0):
            checksum = zlib.crc32(block, checksum)
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    end = engine.flush() + struct.pack("<II", checksum, size & 0xFFFFFFFF)
    return header + b"".join(packed) + end


def _special(case: Case, file: File, random: np.random.Generator) -> Case:
    """Put something else at the place of the file."""
    # A file that is not there would be downloaded by `convert`.
    there = ("pipe", "folder", "hole", "/dev/zero", "/dev/null")
    gone = ("nothing", "loop", file.name) if case.original.reads == "dataset" else ()
    choices = (*there, *gone)
    return replace(case, special={file.name: choices[random.integers(len(choices))]})


_CASES = {
    "bytes": _damage_bytes,
    "content": _damage_content,
    "members": _damage_members,
    "unpacked": _damage_unpacked,
    "lie": _lie,
    "bomb": _bomb,
    "special": _special,
}
