"""Every named set that is read from files, small, in the layout of the original."""

import gzip
import io
import tarfile
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.readers.convert.originals import idx_bytes, jpeg


@dataclass(frozen=True, kw_only=True)
class Member:
    """An entry of an archive.

    Args:
      kind: a type of `tarfile`.
      link: what a link points to.
    """

    name: str
    data: bytes = b""
    kind: bytes = tarfile.REGTYPE
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a set: `tar`, `zip`, `gz`, or `plain`, the last two with one member.

    Args:
      folder: where the members lie in the set's folder when it is unpacked, `None` where that
        is no form it is read in.
    """

    name: str
    form: str
    members: tuple[Member, ...]
    folder: str | None = None

    def packed(self) -> bytes:
        """Return its bytes."""
        if self.form == "tar":
            return gzip.compress(tar_bytes(self.members), 1, mtime=0)
        if self.form == "zip":
            return zip_bytes(self.members)
        (member,) = self.members
        return gzip.compress(member.data, 1, mtime=0) if self.form == "gz" else member.data

    def with_members(self, members: Sequence[Member]) -> "File":
        """Return the same file with other members."""
        return replace(self, members=tuple(members))


@dataclass(frozen=True, kw_only=True)
class Original:
    """A split of a set, with its files; `archive` is the first of them.

    Args:
      reads: `"dataset"` or `"convert"`, what reads it.
      is_named: the names of members decide what is read, not only whether.
    """

    name: str
    split: str
    files: tuple[File, ...]
    reads: str = "dataset"
    is_named: bool = False


def tar_bytes(members: Sequence[Member]) -> bytes:
    """Return a tar archive, its headers made by `tarfile`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.type, info.linkname = member.kind, member.link
            info.size = len(member.data) if member.kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(member.data))
    return out.getvalue()


def zip_bytes(members: Sequence[Member]) -> bytes:
    """Return a zip archive; links are files that Unix takes for links."""
    out = io.BytesIO()
    with (
        warnings.catch_warnings(action="ignore"),  # of two members of one name
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for member in members:
            name = member.name[:60_000] + ("/" if member.kind == tarfile.DIRTYPE else "")
            info = zipfile.ZipInfo(name.encode(errors="replace").decode())
            info.compress_type = zipfile.ZIP_DEFLATED
            if member.kind != tarfile.REGTYPE:
                info.external_attr = 0o120777 << 16
            archive.writestr(info, member.data or member.link.encode())
    return out.getvalue()


def _members(prefix: str, contents: dict[str, str | bytes]) -> tuple[Member, ...]:
    return tuple(
        Member(name=prefix + name, data=data.encode() if isinstance(data, str) else data)
        for name, data in contents.items()
    )


def _mnist(name: str, part: str, **options: str) -> Original:
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (7, 28, 28), np.uint8), np.arange(7, dtype=np.uint8)
    parts = ("train", "t10k") if options else (part,)
    files = [
        File(name=f"{prefix}-{kind}-ubyte.gz", form="gz", members=(Member(name="", data=data),))
        for prefix in parts
        for kind, data in (("images-idx3", idx_bytes(images)), ("labels-idx1", idx_bytes(labels)))
    ]
    return Original(
        name=name, split="train" if part == "train" else "test", files=tuple(files), **options
    )


def _cifar(name: str, split: str, **options: str) -> Original:
    random = np.random.default_rng(1)
    num_labels, folder = (
        (1, "cifar-10-batches-bin/") if name == "cifar10" else (2, "cifar-100-binary/")
    )
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    contents: dict[str, str | bytes] = {"batches.meta.txt": "airplane\n"}
    for file in names if num_labels == 1 else ["train.bin", "test.bin"]:
        records = random.integers(0, 256, (1, 3072 + num_labels), np.uint8)
        records[:, :num_labels] %= 10
        contents[file] = records.tobytes()
    archive = f"cifar-{name[5:]}-binary.tar.gz"
    unpacked = None if options else ""
    file = File(name=archive, form="tar", members=_members(folder, contents), folder=unpacked)
    return Original(name=name, split=split, files=(file,), **options)


def _housing() -> Original:
    rows = np.random.default_rng(2).uniform(0, 500, (20, 14)).round(3)
    text = "\n".join(" ".join(map(str, row)) for row in rows.tolist())
    file = File(name="housing.data", form="plain", members=_members("", {"": text}))
    return Original(name="uci_housing", split="train", files=(file,))


def _imdb() -> Original:
    contents = {
        f"{split}/{kind}/{number}_7.txt": f"{kind} the film, {number}! " * 60
        for split in ("train", "test")
        for kind in ("neg", "pos")
        for number in range(3)
    }
    members = _members("aclImdb/", {"README": "about", **contents, "train/unsup/1_0.txt": "none"})
    file = File(name="aclImdb_v1.tar.gz", form="tar", members=members, folder="")
    return Original(name="imdb", split="train", files=(file,), is_named=True)


def _sentiment() -> Original:
    texts = {"neg": "bad , don't watch .\n", "pos": "good , watch it !\n"}
    contents = {
        f"{kind}/cv{number:03}_1.txt": text for kind, text in texts.items() for number in range(5)
    }
    members = _members("movie_reviews/", {"README": "about", **contents})
    file = File(name="movie_reviews.zip", form="zip", members=members, folder="")
    return Original(name="sentiment", split="train", files=(file,), is_named=True)


def _imikolov() -> Original:
    contents = {
        "ptb.train.txt": " the cat sat down \n" * 55,
        "ptb.valid.txt": " the cat <unk> odd \n",
        "README": "about",
    }
    members = _members("./simple-examples/data/", contents)
    file = File(name="simple-examples.tgz", form="tar", members=members, folder="")
    return Original(name="imikolov", split="train", files=(file,))


def _movielens() -> Original:
    ratings = "".join(f"{1 + i % 2}::7::{1 + i % 5}::978300760\n" for i in range(20))
    contents = {
        "users.dat": "1::F::1::10::48067\n2::M::56::16::70072\n",
        "movies.dat": "7::Toy Story (1995)::Animation|Comedy\n",
        "ratings.dat": ratings,
        "README": "about",
    }
    file = File(name="ml-1m.zip", form="zip", members=_members("ml-1m/", contents), folder="")
    return Original(name="movielens", split="train", files=(file,))


def _wmt14() -> Original:
    contents = {
        "src.dict": "<s>\n<e>\n<unk>\nle\nchat\n",
        "trg.dict": "<s>\n<e>\n<unk>\nthe\ncat\n",
        "train/train": f"le chat noir\tthe cat\nno pair\n{'le ' * 80}\tthe cat\n" * 5,
        "test/test": "le chat\tthe cat\n",
    }
    file = File(name="wmt14.tgz", form="tar", members=_members("wmt14/", contents), folder="")
    return Original(name="wmt14", split="train", files=(file,))


def _wmt16() -> Original:
    contents = {
        "train": "a dog runs\tein hund rennt\na dog\tein hund\nno pair\n",
        "val": "dog zebra\thund größe\n",
        "test": "runs\trennt\n",
    }
    file = File(name="wmt16.tar.gz", form="tar", members=_members("wmt16/", contents), folder="")
    return Original(name="wmt16", split="validation", files=(file,))


def _conll05() -> Original:
    texts = {
        "words": "The\ncat\nsat\n\nGo\n\n" * 3,
        "props": "-    (A0*\n-    *)\nsit  (V*)\n\ngo  (V*)\n\n" * 3,
    }
    contents: dict[str, str | bytes] = {
        f"{name}/test.wsj.{name}.gz": gzip.compress(text.encode(), mtime=0)
        for name, text in texts.items()
    }
    members = _members("conll05st-release/test.wsj/", contents)
    dictionaries = {
        "wordDict.txt": "<unk>\nbos\neos\nThe\ncat\nsat\n",
        "verbDict.txt": "go\nsit\n",
        "targetDict.txt": "B-V\nI-V\nB-A0\nI-A0\nO\n",
    }
    files = [File(name="conll05st-tests.tar.gz", form="tar", members=members, folder="")]
    for name, text in dictionaries.items():
        files.append(File(name=name, form="plain", members=_members("", {"": text})))
    return Original(name="conll05", split="test", files=tuple(files))


def _photos() -> dict[str, str | bytes]:
    return {
        f"{name}/{number}.jpg": jpeg(number) for name in ("daisy", "tulips") for number in range(6)
    }


def _flowers(**options: str) -> Original:
    members = _members("flower_photos/", _photos())
    if options:
        file = File(name="flower_photos.tgz", form="tar", members=members)
    else:  # the named set is read from the folder
        file = File(name="flower_photos", form="folder", members=members, folder="")
    return Original(name="flowers", split="train", files=(file,), is_named=True, **options)


ORIGINALS = (
    *(_mnist("mnist", "train"), _mnist("fashion_mnist", "t10k")),
    *(_cifar("cifar10", "train"), _cifar("cifar10", "test"), _cifar("cifar100", "train")),
    *(_housing(), _imdb(), _sentiment(), _imikolov(), _movielens(), _wmt14(), _wmt16()),
    *(_conll05(), _flowers()),
    *(_mnist("mnist", "train", reads="convert"), _cifar("cifar10", "train", reads="convert")),
    _flowers(reads="convert"),
)
