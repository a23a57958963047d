"""`penstock train --model_name=resnet_v1_50`, started twice: until the first step is launched.

The second start finds what the first has compiled. Both find Python's own compiled files.

    python -m benchmarks second_start
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import _timing

COMMAND = ["train", "--model_name=resnet_v1_50", "--train_image_size=64", "--stop_at_step=1"]
LAUNCHED = "compiled the train program"


def _seconds(folder: str, cache: str) -> float:
    """Return the seconds from a process's start to its first launch."""
    environment = {**os.environ, "PENSTOCK_COMPILE_CACHE": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "penstock", *COMMAND, f"--output_dir={folder}"]
    start = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if LAUNCHED in line:
                seconds = time.perf_counter() - start
                process.kill()
                return seconds
    raise RuntimeError(f"no line says {LAUNCHED!r}: {''.join(lines)}")


def main(rounds: int = 5) -> None:
    """Print the table."""
    starts: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory() as cache:
            first, second = (
                _seconds(os.path.join(cache, name), os.path.join(cache, "compiled"))
                for name in ("first", "second")
            )
        starts.append((first, second))
    starts = starts[1:]  # the first round reads the libraries from disk
    print(f"{_timing.environment()}\n\nResNet-50, median of {rounds} pairs\n")
    medians = [statistics.median(seconds) for seconds in zip(*starts, strict=True)]
    ratio = statistics.median(second / first for first, second in starts)
    cells = [*(f"{seconds:.1f} s" for seconds in medians), f"{ratio:.2f}"]
    print(_timing.table(["first start", "second start", "ratio"], [cells]))


if __name__ == "__main__":
    main()
