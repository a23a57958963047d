"""`penstock cache`: compiled programs and copies of record files that are kept on the disk."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from penstock._compile_cache import find_folder, list_programs
from penstock._files import cache_folder
from penstock._text_tables import print_table, scale_bytes
from penstock.commands._argument_parser import parse, positional
from penstock.commands._failures import UsageError, check, command


@dataclasses.dataclass(frozen=True, kw_only=True)
class CacheFlags:
    """List or clear compiled programs and the decompressed copies of compressed record files.

    PENSTOCK_CACHE is their folder, and PENSTOCK_COMPILE_CACHE that of the programs, or off. Data
    sets in that folder are left alone, and a reader that is using a copy makes it again.

    Arguments:
      action: what to do, by default list.
      cache_dir: the folder that a reader's cache_dir= named, and nothing outside of it; by default
        the common one and compiled programs.
    """

    action: Literal["list", "clear"] | None = positional("list|clear", "?")
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        # Of a variable that is not set: the common folder was not meant.
        check(self, "cache_dir", self.cache_dir != "", "a folder.")


@command(usage_errors=(ValueError,))
def run(argv: list[str]) -> None:
    """Run `penstock cache` with the arguments after the command's name."""
    flags, _ = parse(CacheFlags, argv)
    # Imported here: `penstock cache --help` needs no records.
    from penstock.readers.records.cache import clear_copies, list_copies

    folder = flags.cache_dir or cache_folder()
    # Programs are in a folder of their own, which was not named.
    compiled = find_folder() if flags.cache_dir is None else None
    if Path(folder).is_file():
        raise UsageError(f"--cache_dir got the file {folder!r}, expected a folder.")
    if flags.action == "clear":
        removed = clear_copies(folder)
        freed = scale_bytes(sum(copy.num_bytes for copy in removed))
        print(f"removed copies: {len(removed)}, {freed}")
        for program in list_programs(compiled):
            program.unlink(missing_ok=True)
    if copies := list_copies(folder):
        states = ["source changed" if copy.is_stale else "" for copy in copies]
        sizes = [scale_bytes(copy.num_bytes) for copy in copies]
        names = [copy.source or copy.path.name for copy in copies]
        rows = list(zip(sizes, states, names, strict=True))
        print_table(("size", "state", "copy of"), rows, right={0})
    total = scale_bytes(sum(copy.num_bytes for copy in copies))
    print(f"{folder}: copies: {len(copies)}, {total}")
    if compiled is not None:
        programs = list_programs(compiled)
        total = scale_bytes(sum(program.stat().st_size for program in programs))
        print(f"{compiled}: compiled programs: {len(programs)}, {total}")
