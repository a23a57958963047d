"""One run of `penstock train`, from its flags to its last line."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from penstock import readers
from penstock._images import encode_png
from penstock._text_tables import find_columns, wrap_words
from penstock.commands._flags import TrainFlags
from penstock.commands._run.announce import (
    announce,
    announce_compilations,
    conclude,
    format_advice,
    leave_out_resuming,
)
from penstock.commands._run.assembly import Run, assemble, describe_data
from penstock.commands._run.processes import is_writing_process, join_processes
from penstock.commands._run.splits import Batch, BatchReader, to_bytes
from penstock.commands._run_folder.folder import write_description
from penstock.commands._run_folder.replacement import forget

# XLA logs the alarm as an error, between two lines of asterisks, and asks to file a bug. JAX 0.10.2
# has no flag for it, and `TF_CPP_MIN_LOG_LEVEL=3` would hide real errors too. A process of its own
# passes everything else on at once, and so also the last words of one that crashes: a thread would
# lose them.
_FILTER = r"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stars = patience = 0
for line in sys.stdin.buffer:
    if b"slow_operation_alarm.cc" in line:
        stars, patience = 2, 100
    elif patience and stars:
        stars -= line.startswith(b"*****")
        patience -= 1
    else:
        os.write(2, line)
"""


_PATIENCE_SECS = 5.0


@contextlib.contextmanager
def leave_out_alarm() -> Iterator[None]:
    """Leave the alarm out of standard error."""
    # Without site-packages and variables of the environment it starts at once.
    words = [sys.executable, "-S", "-E", "-c", _FILTER]
    try:
        original = os.dup(2)
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    # Standard error is closed, or there is no room for a process.
    except OSError:
        yield
        return
    assert process.stdin is not None
    # The descriptor, as XLA does not write through `sys.stderr`.
    os.dup2(process.stdin.fileno(), 2)
    process.stdin.close()
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        # It ends with the last that writes to it, which may be a reader's process.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECS)


SHADES = " ░▒▓█"
ASCII_SHADES = " .:*#"
NUM_SHOWN = 4
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def show_digits(infer: Callable[[Batch], np.ndarray], reader: BatchReader) -> None:
    """Print a few held-out digits and what is read, a wrong one among them where there is one.

    Arguments:
      infer: gives probabilities `[B, 10]` of a feed.
      reader: yields the prepared images of the test split, in its order.
    """
    # Read again, as the reader's images are prepared for the network; the order is the same.
    digits = next(iter(readers.dataset("digits", "test", 10_000)))
    probabilities = np.concatenate([infer({"image": batch["image"]}) for batch in reader()])
    predicted, labels = probabilities.argmax(axis=1), digits["label"]
    is_right = predicted == labels
    right, wrong = np.flatnonzero(is_right), np.flatnonzero(~is_right)
    chosen = [*right[: NUM_SHOWN - 1], *wrong[:1], *right[NUM_SHOWN - 1 :]][:NUM_SHOWN]
    pictures = [picture(digits["image"][i, :, :, 0]) for i in chosen]
    captions = [f"{predicted[i]}: {probabilities[i].max():.1%}" for i in chosen]
    a = ["an" if digit == 8 else "a" for digit in range(10)]
    truths = ["" if is_right[i] else f"it is {a[labels[i]]} {labels[i]}" for i in chosen]
    print("\nDigits it was not trained on, what it reads, and how sure it is:\n")
    for line in [*zip(*pictures, strict=True), captions, truths]:
        print("  " + "   ".join(f"{part:^16}" for part in line).rstrip())


def write_digits(folder: Path) -> None:
    """Write a held-out digit of each kind, `zero.png` to `nine.png`, to try a network on.

    Raises:
      OSError: they cannot be written.
    """
    digits = next(iter(readers.dataset("digits", "test", 10_000)))
    folder.mkdir(exist_ok=True)
    for digit, name in enumerate(NAMES):
        image = digits["image"][np.flatnonzero(digits["label"] == digit)[0]]
        (folder / f"{name}.png").write_bytes(encode_png(to_bytes(image)))


def picture(image: np.ndarray) -> list[str]:
    """Return an image `[H, W]` in 0..1 as lines of text, two characters a pixel.

    >>> picture(np.ones((1, 1)))[0] in ("██", "##")
    True
    """
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    shades = np.array(list(SHADES if is_unicode else ASCII_SHADES))
    levels = np.rint(image * (len(shades) - 1)).astype(int)
    return ["".join(shades[row].repeat(2)) for row in levels]


def train(flags: TrainFlags) -> None:
    """Train a network as flags say.

    Raises:
      OSError: files are not there, or the folder cannot be written.
      ValueError: flags do not fit each other or the data, or weights are of another network.
      FolderInUseError: another run is at work in the folder.
    """
    join_processes(flags.performance)
    with contextlib.ExitStack() as held:
        held.enter_context(leave_out_alarm())
        held.enter_context(announce_compilations(flags))
        held.enter_context(leave_out_resuming())
        run = assemble(flags, held)
        is_first = is_writing_process()
        if is_first:
            write_description(run.folder, run.flags, describe_data(run.data))
            announce(run)
        try:
            run.trainer.train(run.data.train, run.handlers.all, num_epochs=run.plan.num_epochs)
        except (KeyboardInterrupt, SystemExit):
            if is_first:
                advice = wrap_words(format_advice(run), find_columns(sys.stderr))
                print(f"\n{advice}", file=sys.stderr)
            raise
        run.trainer.save_params(run.folder.params, averaged=run.is_averaged)
        final = _test_best(run)
        if is_first:
            # Only now that this run's parameters are there: until then the run before can come
            # back.
            forget(run.folder)
    if is_first:
        is_digits = flags.dataset.dataset_name == "digits"
        if is_digits:
            write_digits(run.folder.samples)
        if is_digits and jax.process_count() == 1 and run.data.test is not None:
            show_digits(run.trainer.infer, run.data.test)
        conclude(run, final)


def _test_best(run: Run) -> dict[str, float] | None:
    """Test the best network on the part that nothing was chosen on; None where there is none."""
    if run.data.final_test is None:
        return None
    evaluate = run.handlers.evaluate
    is_best = evaluate is not None and evaluate.best is not None
    if is_best:
        run.trainer.load_params(run.folder.best)
    return run.trainer.test(run.data.final_test, averaged=run.is_averaged and not is_best)
