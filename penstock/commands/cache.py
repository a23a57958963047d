"""`penstock cache`: what readers of compressed record files have left on the disk."""

from __future__ import annotations

import argparse
import datetime
import sys

from penstock.commands._tables import print_table


def run(argv: list[str]) -> int:
    """Run `penstock cache` with the arguments after the command's name.

    Returns:
      The exit status: 0 when it was listed or cleared, 1 when a file could not be removed, 2 when
      an argument or `$PENSTOCK_CACHE_MAX_BYTES` was wrong.
    """
    flags = _parser().parse_args(argv)
    # Imported here: `penstock cache --help` needs no records.
    from penstock.readers.records.cache import cache_folder, max_cache_bytes
    from penstock.readers.records.copies import evict, list_copies

    folder = flags.cache_dir or cache_folder()
    try:
        bound = max_cache_bytes()
    except ValueError as error:
        print(f"penstock cache: {error}", file=sys.stderr)
        return 2
    if flags.action == "clear":
        try:
            removed = evict(folder, 0)
        except OSError as error:
            print(f"penstock cache: {error}", file=sys.stderr)
            return 1
        print(f"removed {_num_copies(len(removed))}: {_size(sum(c.num_bytes for c in removed))}")
    copies = list_copies(folder)
    if copies:
        rows = [
            (
                _size(copy.num_bytes),
                datetime.datetime.fromtimestamp(copy.last_used).strftime("%Y-%m-%d %H:%M"),
                "in use" if copy.is_in_use else "source changed" if copy.is_stale else "",
                copy.source or copy.path.name,
            )
            for copy in copies
        ]
        print_table(("size", "last used", "state", "copy of"), rows, right={0})
    total = _size(sum(copy.num_bytes for copy in copies))
    print(f"{folder}: {_num_copies(len(copies))}, {total} of at most {_size(bound)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock cache",
        description="List or clear the decompressed copies of compressed record files. A copy that "
        "a reader uses stays. PENSTOCK_CACHE_MAX_BYTES bounds the others, PENSTOCK_CACHE is their "
        "folder. Data sets in that folder are left alone.",
    )
    add = parser.add_argument
    add("action", nargs="?", choices=["list", "clear"], default="list", help="list by default")
    add("--cache_dir", help="the folder that a reader's cache_dir= named")
    return parser


def _num_copies(number: int) -> str:
    return f"{number} cop{'y' if number == 1 else 'ies'}"


def _size(num_bytes: int) -> str:
    size, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
