"""The files that a data set needs out of an archive, and archives unpacked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from penstock.readers._archives.entries import Entry, iterate_entries
from penstock.readers._archives.files import FileContent, Limits, archive_error, read_file
from penstock.readers._errors import UnsafeArchiveError

_MAX_PART_BYTES = 255
# What systems take, less what the folder's own path needs.
_MAX_PATH_BYTES = 1024
_MAX_DEPTH = 32


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
