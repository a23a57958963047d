"""`python -m benchmarks [NAME ...]`: run the benchmarks named, or all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks


def main(names: list[str]) -> int:
    """Run benchmarks by module name."""
    known = [
        m.name for m in pkgutil.iter_modules(benchmarks.__path__) if not m.name.startswith("_")
    ]
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"unknown benchmarks {unknown}, expected some of {known}", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"\n== {name} ==", flush=True)
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
