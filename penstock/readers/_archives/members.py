"""The files that a data set needs out of a tar or zip archive or a folder, and archives unpacked.

Python's `tarfile` takes a damaged header in the middle for the end of the archive, so that a data
set would be short without a word; it also reads a name of a gigabyte. So the headers are followed
here, and `TarInfo` reads each.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from penstock.readers._archives.files import (
    BoundedStream,
    FileContent,
    Limits,
    archive_error,
    blame,
    check_size,
    file_size,
    open_stream,
    read_file,
)
from penstock.readers._errors import UnsafeArchiveError

_MAX_PART_BYTES = 255
# What systems take, less what the folder's own path needs.
_MAX_PATH_BYTES = 1024
_MAX_DEPTH = 32
_BLOCK = 512
_MAX_NAME_BYTES = 1 << 16
_TAR = "a whole tar archive"
_ZIP = "a whole zip archive"
_STEP = 1 << 20


def read_files(
    path: str | os.PathLike[str], is_wanted: Callable[[str], object], limits: Limits
) -> Iterator[tuple[str, FileContent]]:
    """Yield name and content of the wanted files of an archive or a folder, by one pass over it.

    Nothing is unpacked, so no member can escape anywhere. A folder's files come sorted.

    Args:
      path: the archive or folder.
      is_wanted: says by its name, with `/`, whether a file is read.
      limits: what it may hold.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: it is damaged, or holds more than it may; or a wanted file is a link, is
        there twice, or is larger than it may be.
    """
    seen: set[str] = set()
    for entry in iterate_entries(Path(path), limits):
        if entry.kind == "folder" or not is_wanted(entry.name):
            continue
        got = (
            "a link or device"
            if entry.kind != "file"
            else "two files of that name"
            if entry.name in seen
            else None
        )
        if got is not None:
            raise archive_error(
                entry.path, got, "one file", "The original holds one", name=entry.member
            )
        seen.add(entry.name)
        content = _read_content(entry, limits)
        yield entry.name, FileContent(path=entry.path, name=entry.member, content=content)


def _read_content(entry: Entry, limits: Limits) -> bytes:
    if entry.size > limits.file_bytes:
        raise archive_error(
            entry.path,
            f"{entry.size} bytes",
            f"at most {limits.file_bytes}",
            "The original is not that large",
            name=entry.member,
        )
    return entry.read()


def read_by_name(
    path: str | os.PathLike[str], endings: Sequence[str], limits: Limits
) -> dict[str, FileContent]:
    """Return the files whose names are `endings`, or end in `/` and one, by ending.

    Of a folder that holds all of them itself, no other is looked at.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: a file is missing or fits twice, or `read_files` raises it.
    """
    # As somebody may have unpacked the archive: file by file, without its folder.
    direct = {ending: Path(path, ending) for ending in endings}
    if all(file.is_file() for file in direct.values()):
        return {ending: read_file(file, limits.file_bytes) for ending, file in direct.items()}
    found: dict[str, FileContent] = {}

    def find_endings(name: str) -> list[str]:
        return [each for each in endings if f"/{name}".endswith(f"/{each}")]

    for name, file in read_files(path, find_endings, limits):
        for ending in find_endings(name):
            if ending in found:
                got = f"a second file '{ending}'"
                raise file.error(got, "one file", "The original holds one")
            found[ending] = file
    if missing := [ending for ending in endings if ending not in found]:
        raise archive_error(
            Path(path),
            f"no file '{missing[0]}'" if len(missing) == 1 else f"no files {missing}",
            "the original's files",
            "It is another archive, or not all of it",
        )
    return found


def unpack(path: str | Path, folder: str | Path, limits: Limits) -> None:
    """Unpack the regular files of an archive into `folder`, with plain permissions.

    Every member is checked, and the archive read to its end, before the first is written.

    Raises:
      UnsafeArchiveError: a member would lie outside `folder`, or is a link or a device.
      ArchiveError: it is no archive, is damaged, or holds more than it may.
    """
    path = Path(path)
    for entry in iterate_entries(path, limits):
        _check_place(entry, path)
    for entry in iterate_entries(path, limits):
        if entry.kind == "file":
            target = Path(folder, *PurePosixPath(entry.name).parts)
            content = _read_content(entry, limits)
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
                why = "One of them would lie within the other"
                got = "a file and a folder of one name"
                raise archive_error(path, got, "one of them", why, name=entry.name) from error


def _check_place(entry: Entry, path: Path) -> None:
    parts = PurePosixPath(entry.name).parts
    is_long = (
        len(os.fsencode(entry.name)) > _MAX_PATH_BYTES
        or len(parts) > _MAX_DEPTH
        or any(len(os.fsencode(part)) > _MAX_PART_BYTES for part in parts)
    )
    if entry.name.startswith("/") or ".." in parts or "\\" in entry.name:
        got = "a path outside the folder"
    elif entry.kind == "other":
        got = "a link or device"
    elif is_long or "\0" in entry.name or (entry.kind == "file" and not parts):
        got = "a name no file can have"
    else:
        got = None
    if got is not None:
        error = UnsafeArchiveError(
            f"'{path}': member {entry.name[:200]!r} got {got}, expected regular files below the "
            "folder. Unpacking it could write anywhere. Do not trust this archive; delete it and "
            "get the original."
        )
        error.path, error.member = str(path), entry.name
        raise error


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file of an archive, or something else that stands there.

    Args:
      path: what an error names: the archive, or the file where it is a folder's.
      name: where it lies in the archive, with `/`.
      size: in bytes, as its header says.
      kind: `"file"`, `"folder"` or `"other"`: a link, a device.
      read: return the bytes; call it before the next entry is read.
    """

    path: Path
    name: str
    size: int
    kind: str
    read: Callable[[], bytes]
    is_archived: bool = True

    @property
    def member(self) -> str:
        """Return the name for an error, `""` where the path says it."""
        return self.name if self.is_archived else ""


def iterate_entries(path: Path, limits: Limits) -> Iterator[Entry]:
    """Yield the entries of a tar or `.zip` archive in its order, or the files of a folder, sorted.

    Raises:
      FileNotFoundError: there is nothing.
      ArchiveError: it is damaged, another sort of file, or holds more than `limits` say.
    """
    if path.is_dir():
        yield from _iterate_folder(path)
        return
    entries = _iterate_zip if path.suffix == ".zip" else _iterate_tar
    for number, entry in enumerate(entries(path, limits)):
        if number >= limits.num_entries:
            raise archive_error(
                path,
                f"more than {limits.num_entries} entries",
                f"at most {limits.num_entries}",
                "The original does not hold that many",
            )
        yield entry


def _iterate_folder(path: Path) -> Iterator[Entry]:
    for file in sorted(path.rglob("*")):
        if file.is_file():
            # As in the archive, whose members lie in that folder.
            name = f"{path.name}/{file.relative_to(path).as_posix()}"
            size = file.stat().st_size

            def read(file: Path = file, size: int = size) -> bytes:
                return read_file(file, size).content

            yield Entry(path=file, name=name, size=size, kind="file", read=read, is_archived=False)


def _iterate_zip(path: Path, limits: Limits) -> Iterator[Entry]:
    check_size(path, file_size(path), limits)
    left = max_bytes = limits.unpacked_bytes(file_size(path))
    with blame(path, _ZIP), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            left -= info.file_size
            if left < 0:
                raise archive_error(
                    path,
                    f"more than {max_bytes} bytes unpacked",
                    f"at most {max_bytes}",
                    "The original is not that large, and would fill the memory",
                )

            def read(info: zipfile.ZipInfo = info) -> bytes:
                return _read_zip_member(archive, info, path)

            mode = info.external_attr >> 16
            # Archives that were made on Windows have no mode.
            is_plain = stat.S_IFMT(mode) in (0, stat.S_IFREG)
            kind = "folder" if info.is_dir() else "file" if is_plain else "other"
            yield Entry(path=path, name=info.filename, size=info.file_size, kind=kind, read=read)


def _read_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    packing = info.compress_type
    if info.flag_bits & 1 or packing not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise archive_error(
            path,
            "an encrypted file" if info.flag_bits & 1 else f"the compression {packing}",
            "a stored or deflated file",
            "The original's files are",
            name=info.filename,
        )
    # In pieces: `read()` decompresses whatever there is, whatever size the header says.
    with blame(path, "a whole file", info.filename), archive.open(info) as file:
        content = b"".join(iter(lambda: file.read(_STEP), b""))
        if len(content) != info.file_size:
            raise EOFError(f"{len(content)} of {info.file_size} bytes")
        return content


def _iterate_tar(path: Path, limits: Limits) -> Iterator[Entry]:
    with blame(path, _TAR), open_stream(path, None, _TAR, limits=limits) as stream:
        while (entry := _read_header(stream, path)) is not None:
            info, size, is_read = entry, entry.size, [False]

            def read(size: int = size, is_read: list[bool] = is_read) -> bytes:
                is_read[0] = True
                return stream.read(size)

            kind = "file" if info.isreg() and info.type != tarfile.GNUTYPE_SPARSE else "other"
            kind = "folder" if info.isdir() else kind
            yield Entry(path=path, name=info.name, size=size, kind=kind, read=read)
            if not is_read[0]:
                stream.skip(size)
            stream.skip(-size % _BLOCK)
        # The checksum of a gzip file stands at its end.
        stream.skip_to_end()


def _read_header(stream: BoundedStream, path: Path) -> tarfile.TarInfo | None:
    """Return the next header with the name and size of those before it, `None` at the end."""
    changed: dict[str, str] = {}
    while True:
        block = stream.read(_BLOCK)
        # Two blocks of zeros are the end of a tar archive.
        if not any(block):
            if not changed and not any(stream.read_up_to(_BLOCK)):
                return None
            raise _build_header_error(path, "an end in the middle")
        with blame(path, _TAR):
            # A name need not be UTF-8: surrogates keep its bytes, so that no two names become one.
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            name = (
                _read_extension(stream, info, path).rstrip(b"\0").decode("utf-8", "surrogateescape")
            )
            changed |= {"path": name} if info.type == tarfile.GNUTYPE_LONGNAME else {}
        elif info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            records = _parse_pax_records(_read_extension(stream, info, path), path)
            changed |= records if info.type != tarfile.XGLTYPE else {}
        else:
            return _apply_changes(info, changed, path)


def _apply_changes(info: tarfile.TarInfo, changed: dict[str, str], path: Path) -> tarfile.TarInfo:
    info.name = changed.get("path", info.name).removeprefix("./")
    # Its content may begin with a map of holes: taken for a plain file, it would be other data.
    if any(key.startswith("GNU.sparse") for key in changed):
        info.type = tarfile.GNUTYPE_SPARSE
    size = changed.get("size", str(info.size))
    # Links and devices have no content, whatever size they claim.
    has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
    if not (size.isascii() and size.isdigit() and len(size) < 20):
        raise _build_header_error(path, f"a size of {size[:40]!r}")
    info.size = int(size) if has_content else 0
    return info


def _read_extension(stream: BoundedStream, info: tarfile.TarInfo, path: Path) -> bytes:
    """Return the content of a header that changes the next one."""
    if not 0 <= info.size <= _MAX_NAME_BYTES:
        raise _build_header_error(path, f"a name or its like of {info.size} bytes")
    content = stream.read(info.size)
    stream.skip(-info.size % _BLOCK)
    return content


def _parse_pax_records(content: bytes, path: Path) -> dict[str, str]:
    r"""Return the records `<length> <key>=<value>\n` of a pax header."""
    records = {}
    while content.strip(b"\0"):
        length, space, _ = content[:12].partition(b" ")
        end = int(length) if length.isdigit() else 0
        key, equals, value = content[len(length) + 1 : end].partition(b"=")
        if not (space and equals and content[end - 1 : end] == b"\n"):
            raise _build_header_error(path, "a pax header that cannot be read")
        # Only names are text; what else there may be (an access list, ...) is not looked at.
        records[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
        content = content[end:]
    return records


def _build_header_error(path: Path, got: str) -> Exception:
    return archive_error(path, got, _TAR, "A header in it is damaged")
