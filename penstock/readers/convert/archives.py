"""Archives: members read one by one, and unpacked only where they belong."""

import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from penstock.readers._errors import message
from penstock.readers.convert.errors import ConversionError, UnsafeArchiveError

_MAX_UNPACKED_BYTES = 16 << 30


@contextmanager
def open_tar(path: str | Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, compressed or not.

    Raises:
      ConversionError: it is no archive, or is damaged: also while it is read inside the block.
    """
    try:
        with tarfile.open(path) as archive:
            yield archive
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ConversionError(
            message(
                f"'{path}'",
                f"{type(error).__name__}: {error}",
                "a whole tar archive",
                "It cannot be read to its end",
                "Remove it to download it again",
            )
        ) from error


def member_bytes(archive: tarfile.TarFile, name: str, *, max_bytes: int) -> bytes:
    """Return one file of an archive by the last part of its path, without unpacking.

    Raises:
      ConversionError: there is no such file, or it is larger than `max_bytes`.
    """
    for member in archive:
        if PurePosixPath(member.name).name == name and member.isfile():
            if member.size > max_bytes:
                raise ConversionError(
                    message(
                        f"'{archive.name}': {name}",
                        f"{member.size} bytes",
                        f"at most {max_bytes}",
                        "The original is not that large",
                        "Download the original archive",
                    )
                )
            return archive.extractfile(member).read()  # type: ignore[union-attr]
    raise ConversionError(
        message(
            f"'{archive.name}'",
            f"no file '{name}'",
            "the original archive's files",
            "It is another archive",
            "Remove it to download the original",
        )
    )


def unpack(path: str | Path, folder: str | Path, *, max_bytes: int = _MAX_UNPACKED_BYTES) -> None:
    """Unpack the regular files of a tar archive into `folder`, with plain permissions.

    Every member is checked before the first is written.

    Raises:
      UnsafeArchiveError: a member would lie outside `folder`, is a link or a device, or the
        files hold more than `max_bytes` in all.
      ConversionError: it is no archive, or is damaged.
    """
    with open_tar(path) as archive:
        members = archive.getmembers()
        for member in members:
            _check_member(member, path)
        total = sum(member.size for member in members)
        if total > max_bytes:
            raise UnsafeArchiveError(
                message(
                    f"'{path}'",
                    f"{total} bytes unpacked",
                    f"at most {max_bytes}",
                    "An archive must not fill the disk",
                    "Unpack it yourself if it is what you think it is",
                )
            )
        for member in members:
            source = archive.extractfile(member) if member.isfile() else None
            if source is not None:
                target = Path(folder, *PurePosixPath(member.name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with source, open(target, "wb") as file:
                    shutil.copyfileobj(source, file)


def _check_member(member: tarfile.TarInfo, path: str | Path) -> None:
    parts = PurePosixPath(member.name).parts
    is_outside = member.name.startswith("/") or ".." in parts or "\\" in member.name
    if is_outside or not (member.isfile() or member.isdir()):
        raise UnsafeArchiveError(
            message(
                f"'{path}': member {member.name!r}",
                "a path outside the folder" if is_outside else "a link or device",
                "regular files below the folder",
                "Unpacking it could write anywhere",
                "Do not trust this archive; download the original",
            )
        )
