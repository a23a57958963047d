"""The files of a conversion: they appear together, all of them whole, and replace older ones."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_PART_NAME = re.compile(r"(part-)\d+")
_SHARD_NAME = re.compile(r"(.+?)\d{5,}-of-(\d{5,})(.*)")
_LOGGER = logging.getLogger("penstock")


class ConversionError(ValueError):
    """A conversion cannot be done: a file does not hold what it should."""


class ArgumentError(ConversionError):
    """An argument of a conversion is out of range, or names nothing to convert."""


class StaleFilesError(ConversionError, FileExistsError):
    """Files of another conversion lie where readers would take them for this one's."""


def needs_making(
    targets: Sequence[Path], *, force: bool, sources: Sequence[str | Path] = ()
) -> bool:
    """Return whether a conversion must make its files; log it if all of them exist.

    Files appear whole or not at all, so what exists is complete. With `force` they are made even if
    they exist, and those of an earlier conversion removed; those it reads are never replaced.
    """
    _check_targets(targets)
    stale = find_stale(targets)
    _check_sources(sources, [*targets, *stale])
    if force:
        return True
    if stale:
        last = f" to '{targets[-1].name}'" if len(targets) > 1 else ""
        raise StaleFilesError(
            f"'{targets[0].parent}' got {_list_names(stale)} of another conversion, expected none "
            f"beside '{targets[0].name}'{last}. A reader of the folder would read them too. Pass "
            "force=True (--overwrite) to remove them, or another folder."
        )
    if not all(target.is_file() for target in targets):
        return True
    more = f" and {len(targets) - 1} more" if len(targets) > 1 else ""
    _LOGGER.warning(
        "Dataset files already exist. Exiting without re-creating them: '%s'%s. Pass force=True "
        "(--overwrite) to make them again.",
        targets[0],
        more,
    )
    return False


def find_stale(targets: Sequence[Path]) -> list[Path]:
    """Return the files beside the targets that an earlier conversion to other numbers left.

    They are named like a target but for the number: `part-<digits>`, or
    `<name><digits>-of-<digits><ending>` where it says another number of files.

    >>> folder = tempfile.TemporaryDirectory()
    >>> for name in ("part-0", "part-1", "part-2", "part-2.txt", "labels.txt"):
    ...     Path(folder.name, name).touch()
    >>> [path.name for path in find_stale([Path(folder.name, "part-0")])]
    ['part-1', 'part-2']
    >>> folder.cleanup()
    """
    wanted = set(targets)
    totals = {(path.parent, _parse_series(path)[0]): _parse_series(path)[1] for path in targets}
    stale = []
    for folder in sorted({path.parent for path in targets}):
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            series, total = _parse_series(path)
            if series is None or (folder, series) not in totals or path in wanted:
                continue
            if (total is None or total != totals[folder, series]) and path.is_file():
                stale.append(path)
    return stale


@contextmanager
def write_together(targets: Sequence[Path]) -> Iterator[list[Path]]:
    """Give a path to write for each target; put all in place when the block ends well.

    Files are written to a hidden folder beside the targets, which an exception removes with all
    that is in it. What `find_stale` finds is removed in the end.
    """
    with ExitStack() as stack:
        hidden = {
            parent: stack.enter_context(hidden_folder(parent, ".converting."))
            for parent in {path.parent for path in targets}
        }
        paths = [hidden[target.parent] / target.name for target in targets]
        yield paths
        # The old files go from the first on, and the first of the new ones comes last. Stopped in
        # between, this leaves a set without its first file, which neither a second run nor a reader
        # of numbered parts takes for a whole set.
        for path in (*targets, *find_stale(targets)):
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.penstock-index").unlink(missing_ok=True)
        for path, target in reversed(list(zip(paths, targets, strict=True))):
            path.replace(target)


@contextmanager
def hidden_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Give a temporary folder in `parent`, which is made if needed; name those left behind."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in sorted(parent.glob(f"{prefix}*")):
        _LOGGER.warning(
            "'%s' belongs to another conversion. If that was killed and runs no more, remove it.",
            left,
        )
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        yield Path(folder)


def _parse_series(path: Path) -> tuple[tuple[str, str] | None, str | None]:
    """Return what the names of a set share, and the number of files where the name says it."""
    if match := _PART_NAME.fullmatch(path.name):
        return (match[1], ""), None
    if match := _SHARD_NAME.fullmatch(path.name):
        return (match[1], match[3]), match[2]
    return None, None


def _check_targets(targets: Sequence[Path]) -> None:
    if not targets:
        got = "none"
    elif folder := next((path for path in targets if path.is_dir()), None):
        got = f"the folder '{folder}'"
    elif len(set(targets)) < len(targets):
        twice = next(path for path in targets if targets.count(path) > 1)
        got = f"'{twice}' {targets.count(twice)} times"
    else:
        return
    raise ArgumentError(f"targets got {got}, expected files, each named once. Pass other paths.")


def _check_sources(sources: Sequence[str | Path], replaced: Sequence[Path]) -> None:
    real = {os.path.realpath(path) for path in replaced}
    lost = [Path(path) for path in sources if os.path.realpath(path) in real]
    if lost:
        raise ArgumentError(
            f"'{replaced[0].parent}' got {_list_names(lost)} to read and to replace, expected "
            "other files to make. A conversion keeps what it reads. Pass another folder."
        )


def _list_names(paths: Sequence[Path]) -> str:
    names = ", ".join(f"'{path.name}'" for path in paths[:3])
    return f"{names}{', ...' if len(paths) > 3 else ''} ({len(paths)} in all)"
