"""`python -m benchmarks [NAME ...]`: run the benchmarks named, or all of them.

`python -m benchmarks NAME --option ...` passes options on to the one named, where it has any.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import sys

import benchmarks


def main(arguments: list[str]) -> int:
    """Run benchmarks by module name."""
    known = [
        m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_")
    ]
    names = list(itertools.takewhile(lambda each: not each.startswith("-"), arguments))
    options = arguments[len(names) :]
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"unknown benchmarks {unknown}, expected some of {known}", file=sys.stderr)
        return 2
    if options and len(names) != 1:
        print(f"options {options} got {len(names)} benchmarks, expected one", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"\n== {name} ==", flush=True)
        run = importlib.import_module(f"benchmarks.{name}").main
        if options and "arguments" not in inspect.signature(run).parameters:
            print(f"options {options} got {name}, expected one that has options", file=sys.stderr)
            return 2
        run(options) if options else run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
