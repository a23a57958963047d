"""Count the calls into penstock's own files: how much code lies on the main path.

    python -m benchmarks calls [--list] [--network small|digits]

Three windows of one small training run on one device are counted with `sys.setprofile`:

- `Trainer(...)`: making the trainer, before any data is read;
- the first step: from the call of `trainer.train` until the handler has read the metrics of the
  first `EndStep`; tracing and compiling the train program is in it;
- a steady step: from one `EndStep` to the next, later in the same epoch.

A fourth is that of the command line: what `penstock train` runs in `commands/` before its Trainer.

A *call* is an entered frame whose code lies in a file of the package: functions, lambdas,
comprehensions (up to Python 3.11; later versions run them in their function's frame), and each
resumption of a generator. A *move* is a call into another file than the previous call. Returning to
a caller is not a move, unless the caller then calls something.

Everything that `penstock` loads or looks up once per process is done before the first window:
bodies of modules and classes, and the options of the compiler. The garbage collector is off while
calls are counted, so that it does not finalize earlier readers.

The limits are for the small network: 13 inputs, a hidden layer with relu, one output. `digits` is
the README's. These are counts, not times: they repeat exactly, on any machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gc
import importlib
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import jax
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from penstock import commands, layers, readers

_ROOT = str(pathlib.Path(ps.__file__).parent) + "/"

STEADY_STEP = 4
"""The step counted as steady: the look-ahead and the queue of flags are past their beginnings."""


def small() -> Any:
    """Return the loss of a regression 13-8-1."""
    hidden = layers.fc(layers.data("x", shape=[13]), size=8, act="relu")
    error = layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1]))
    return layers.mean(error)


def digits() -> Any:
    """Return the loss and the accuracy of the README's network."""
    hidden = layers.simple_img_conv_pool(
        layers.data("x", shape=[8, 8, 1]),
        num_filters=20,
        filter_size=3,
        pool_size=2,
        pool_stride=2,
        act="relu",
    )
    prediction = layers.fc(layers.batch_norm(hidden), size=10, act="softmax")
    label = layers.data("y", shape=[1], dtype="int32")
    return layers.mean(layers.cross_entropy(prediction, label)), layers.accuracy(prediction, label)


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], str]] = {
    "small": (small, (13,), "float32"),
    "digits": (digits, (8, 8, 1), "int32"),
}
"""By name: the program function, the shape of its input, and the dtype of what it predicts."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """The limits of a window: files, moves between them, and calls; None is no limit."""

    files: int | None = None
    moves: int | None = None
    calls: int | None = None


LIMITS = {
    "Trainer(...)": Limit(calls=400),
    "first step": Limit(files=26, moves=90),
    "steady step": Limit(calls=36),
    "penstock train": Limit(calls=400),
}
"""By window, for the small network."""


@dataclasses.dataclass(frozen=True)
class Calls:
    """The frames entered in a window, in order.

    Attributes:
      entered: the code of each.
    """

    entered: Sequence[CodeType]

    @property
    def files(self) -> list[str]:
        """The file of each call, relative to the package."""
        return [code.co_filename.removeprefix(_ROOT) for code in self.entered]

    @property
    def num_moves(self) -> int:
        """How often a call lies in another file than the one before it."""
        files = self.files
        return sum(before != after for before, after in itertools.pairwise(files))

    def ordered_files(self) -> list[tuple[str, int]]:
        """Return each file in the order it is first entered, and its number of calls."""
        return list(collections.Counter(self.files).items())

    def frequent_moves(self, number: int) -> list[tuple[str, int]]:
        """Return the moves made most often, as `file -> file`, and how often."""
        files = self.files
        pairs = itertools.pairwise(files)
        moves = collections.Counter(f"{a} -> {b}" for a, b in pairs if a != b)
        return moves.most_common(number)

    def frequent(self, number: int) -> list[tuple[str, int]]:
        """Return the functions entered most often, as `file: name`, and how often."""
        named = collections.Counter(
            f"{file}: {code.co_qualname}"
            for file, code in zip(self.files, self.entered, strict=True)
        )
        return named.most_common(number)


class Counter:
    """Notes each frame of penstock's that is entered while it is the profile function."""

    def __init__(self) -> None:
        self.entered: list[CodeType] = []

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Be what `sys.setprofile` calls."""
        if event == "call" and frame.f_code.co_filename.startswith(_ROOT):
            self.entered.append(frame.f_code)

    def count(self, work: Callable[[], object]) -> None:
        """Run `work` under the profile."""
        is_collecting = gc.isenabled()
        gc.disable()
        sys.setprofile(self)
        try:
            work()
        finally:
            sys.setprofile(None)
            if is_collecting:
                gc.enable()


class _TrainerBegins(BaseException):
    """Ends a command."""


class _UntilTrainer(Counter):
    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code is ps.Trainer.__init__.__code__:
            raise _TrainerBegins
        super().__call__(frame, event, argument)


def measure_train_command() -> Calls:
    """Return the calls in `commands/` of `penstock train` before its Trainer."""
    counter = _UntilTrainer()
    # What it imports is no part of it.
    importlib.import_module("penstock.commands.train")
    importlib.import_module("penstock.commands._run.training")
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_TrainerBegins):
        counter.count(lambda: commands.main(["train", f"--output_dir={folder}"]))
    return Calls([c for c in counter.entered if c.co_filename.startswith(f"{_ROOT}commands/")])


def measure(network: str = "small") -> dict[str, Calls]:
    """Return the calls of each window, by its name in `LIMITS`."""
    program, shape, dtype = NETWORKS[network]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16 * (STEADY_STEP + 2), *shape)).astype(np.float32)
    y = rng.integers(0, 10, (len(x), 1)).astype(dtype)
    reader = readers.arrays({"x": x, "y": y}, batch_size=16)

    made = Counter()
    trainers: list[ps.Trainer] = []
    # Taken from the package here, which loads them and all that they import.
    make_trainer, end_step = ps.Trainer, ps.EndStep
    optimizer, place = optax.sgd(1e-3), jax.devices()[0]
    # Of another program, so that JAX has traced nothing of the one that is counted.
    make_trainer(lambda: layers.create_parameter([]), optimizer, place=place)
    made.count(lambda: trainers.append(make_trainer(program, optimizer, place=place)))

    trained, ends = Counter(), [0]

    def read(event: Any) -> None:
        if isinstance(event, end_step):
            _ = event.metrics
            ends.append(len(trained.entered))

    trained.count(lambda: trainers[0].train(reader, read))
    steady = slice(ends[STEADY_STEP], ends[STEADY_STEP + 1])
    windows = [made.entered, trained.entered[: ends[1]], trained.entered[steady]]
    counted = [*map(Calls, windows), measure_train_command()]
    return dict(zip(LIMITS, counted, strict=True))


def main(arguments: Sequence[str] = ()) -> None:
    """Print the counts beside their limits."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calls")
    parser.add_argument("--network", choices=list(NETWORKS), default="small")
    parser.add_argument(
        "--list", action="store_true", help="the files in the order they are entered"
    )
    options = parser.parse_args(list(arguments))
    counted = measure(options.network)
    rows = [
        [
            name,
            _beside(len(calls.ordered_files()), LIMITS[name].files),
            _beside(calls.num_moves, LIMITS[name].moves),
            _beside(len(calls.entered), LIMITS[name].calls),
        ]
        for name, calls in counted.items()
    ]
    print(f"{_timing.environment()}, network {options.network}\n")
    print(_timing.table(["window", "files", "moves", "calls"], rows))
    for name, calls in counted.items() if options.list else ():
        _print_list(
            f"{name}: files in the order they are entered, with their calls", calls.ordered_files()
        )
        _print_list(f"{name}: the most frequent calls", calls.frequent(12))
        _print_list(f"{name}: the most frequent moves", calls.frequent_moves(12))


def _print_list(title: str, lines: list[tuple[str, int]]) -> None:
    print(f"\n{title}")
    for what, number in lines:
        print(f"{number:6}  {what}")


def _beside(number: int, limit: int | None) -> str:
    return str(number) if limit is None else f"{number} (at most {limit})"


if __name__ == "__main__":
    main(sys.argv[1:])
