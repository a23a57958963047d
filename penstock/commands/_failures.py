"""Mistakes and failures as a person reads them: checks, wording, one line, the exit status."""

from __future__ import annotations

import errno
import functools
import itertools
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock._errors import (
    FolderInUseError,
    NonFiniteError,
    UnknownNameError,
    check_number,
    nearest,
)
from penstock._text_tables import find_columns, wrap_words


class UsageError(ValueError):
    """A command was called wrongly: an unknown flag, or a value that it cannot have."""


def check(flags: object, name: str, is_right: bool, expected: str) -> None:
    """Raise unless a flag's value is right; `expected` ends the sentence about it."""
    if not is_right:
        raise UsageError(f"--{name} got {vars(flags)[name]!r}, expected {expected}")


def check_numbers(flags: object, bounds: str) -> None:
    """Raise unless flags that are numbers are in bounds such as `hang>0 port>=0<=65535`."""
    for name, sign, low, end, high in re.findall(r"(\w+)(>=?)(\d+)(?:(<=?)(\d+))?", bounds):
        if isinstance(value := vars(flags)[name], int | float):
            # Of integers none is infinite.
            brackets = "(["[sign == ">="], ")]"[end == "<=" or isinstance(value, int)]
            interval = f"{low},{high or math.inf}".join(brackets)
            check_number(f"--{name} got ", value, interval, "", UsageError)


def split_words(text: str | None) -> tuple[str, ...]:
    """Return the items of a list as flags have them: between commas, without blanks.

    >>> split_words("0.tfrecord, 1.tfrecord")
    ('0.tfrecord', '1.tfrecord')
    """
    return tuple([part.strip() for part in (text or "").split(",") if part.strip()])


# The library names its own functions and arguments; who called a command has flags.
_COMMON = (
    (r"models\.names\(\) and `penstock models` list them", "`penstock models` lists them"),
    (
        r"^(?:Schedule|Optimizer)Options got (\w+)=([^\s,]+), expected a ",
        r"--\1 got \2, expected a ",
    ),
    (r"^(freeze|place|topology) got ", r"--\1 got "),
    (r"; optimizers\.names\(\) has them all", ""),
    (r"optimizers\.get got ", "--optimizer got "),
    (
        r"Put the files there, or pass dataset_dir= or set PENSTOCK_DATA to where they are",
        "`penstock train --dataset_dir=FOLDER` says where they are",
    ),
    (r"Create the folders, or change class_names", "Make one for each class"),
    (
        r"Give this run a directory of its own; to start from those parameters, pass param_path=.*",
        "Give this run a folder of its own by --checkpointDir, or start again with --overwrite; "
        "--task_type=finetune --model_dir=... starts from other weights.",
    ),
    (
        r"; the trainer has the state, which trainer\.save_checkpoint\(\) writes\.",
        "; the same command goes on from there.",
    ),
    (r"Pass num_validation 0 to", "Pass a --num_validation of 0 to"),
    (
        r"Pass data_part_num, part_name_prefix and part_name_suffix_length as the names are",
        "--source is the folder of parts, --part_name_suffix_length how many digits they have",
    ),
)
# Commands that train have flags for the network, and for what a reader's argument does.
_TRAINING = ("train", "sweep", "eval")
_OF_TRAINING = (
    (r"models\.get got ", "--model_name got "),
    (r"on_error='skip'", "--skip_damaged=True"),
    (r"pass --skip_damaged=True", "use --skip_damaged=True"),
)
_OF_OTHERS = (
    (r"models\.get got ", "the network got "),
    (r"; a reader leaves it out with on_error='skip'", ""),
    (r", or pass on_error='skip' to leave the rest of it out", ""),
)
_MOST_PROBLEMS = 4
# What Keras, Lightning, timm and scripts of torchvision call it.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "num_epochs": "epochs max_epochs",
    "stop_at_step": "steps max_steps",
    "batch_size": "bs b",
    "model_name": "model arch",
    "dataset_dir": "data data_dir",
    "dataset_name": "dataset",
    "optimizer": "opt",
    "weight_decay": "wd",
    "train_image_size": "img_size size",
    "output_dir": "output out",
    "place": "device accelerator",
    "num_preprocessing_threads": "workers num_workers",
    "precision": "amp",
    "log_loss_every_n_iters": "log_every_n_steps",
}
# Of flags that other tools need and `penstock train` does not.
_NOT_NEEDED = {
    "gpus": "A run uses all GPUs; --enable_paisoar=False uses one.",
    "devices": "A run uses all devices; --enable_paisoar=False uses one.",
    "resume": "Repeat the command of a run to resume it.",
    "pretrained": "To start from weights: --task_type=finetune --model_dir=FOLDER.",
}


def say_in_flags(command: str, text: str) -> str:
    """Return a message of the library with flags for the arguments of Python that it names.

    >>> say_in_flags("models", "models.get got 'a', expected the name of a network.")
    "the network got 'a', expected the name of a network."
    """
    own = _OF_TRAINING if command in _TRAINING else _OF_OTHERS
    for pattern, words in (*_COMMON, *own):
        text = re.sub(pattern, words, text)
    return text


def suggest_flag(name: str, flags: Sequence[str]) -> str:
    """Return the flag that a wrong one may be: what other tools call it, or the nearest.

    >>> suggest_flag("--lr", ["learning_rate"])
    " Did you mean '--learning_rate'?"
    """
    plain = name.strip("-").replace("-", "_")
    if plain in _NOT_NEEDED and "enable_paisoar" in flags:
        return f" {_NOT_NEEDED[plain]}"
    for flag, names in _OTHER_NAMES.items():
        if plain in names.split() and flag in flags:
            return f" Did you mean '--{flag}'?"
    # Dashes are alike in all of them: with them `--dropout` would be near `--ps_count`.
    return nearest(plain, flags).replace("'", "'--", 1)


def nearest_path(path: Path) -> str:
    """Return what may have been meant by a path where nothing is: the nearest name beside it."""
    return nearest(path.name, [beside.name for beside in path.parent.glob("*")])


# What a problem in a list is about, by its first word or its last ones.
_KIND = re.compile(r"^(missing|extra|mismatched|left over): | is not there$")


# Most errors of ours are ValueErrors.
_KNOWN = (OSError, ValueError, ModuleNotFoundError, MemoryError)
_KNOWN += (FolderInUseError, UnknownNameError, NonFiniteError)
_REMEDIES = {
    errno.ENOSPC: " Make room, or write to another disk.",
    errno.EDQUOT: " Make room, or write where you have more of it.",
    errno.EFBIG: " Allow larger files with ulimit -f, or write to another disk.",
    errno.EEXIST: " It is a file, expected a folder. Name another path.",
    errno.ENOTDIR: " A part of it is a file, expected folders. Name another path.",
}
TRACEBACK_VARIABLE = "PENSTOCK_TRACEBACK"


def command(
    *, usage_errors: tuple[type[Exception], ...] = ()
) -> Callable[[Callable[[list[str]], int | None]], Callable[[list[str]], int]]:
    """Return a decorator of a command's function, which then returns its exit status.

    It is that of the function, or 0; 1 when it failed, 2 when it was called wrongly, as
    `usage_errors` say too. A failure that a person can mend is one line on stderr. With
    `PENSTOCK_TRACEBACK=1` in the environment it keeps its traceback; a bug always does.
    """

    def decorate(function: Callable[[list[str]], int | None]) -> Callable[[list[str]], int]:
        @functools.wraps(function)
        def run(argv: list[str]) -> int:
            try:
                return function(argv) or 0
            # An OSError too, but nobody is left to read a line about it: `main` ends quietly.
            except BrokenPipeError:
                raise
            except (UsageError, *usage_errors, *_KNOWN) as error:
                is_usage = isinstance(error, (UsageError, *usage_errors))
                if os.environ.get(TRACEBACK_VARIABLE) == "1" and not is_usage:
                    raise
                name = function.__module__.rpartition(".")[2].replace("_", "-")
                text = f"penstock {name}: {say_in_flags(name, one_line(error))}"
                # One line; a terminal that is narrower would break it in the middle of a word.
                print(wrap_words(text, find_columns(sys.stderr), "  "), file=sys.stderr)
                return 2 if is_usage else 1

        return run

    return decorate


def one_line(error: BaseException) -> str:
    r"""Return an error's message in a line; what was noted with it as well.

    >>> one_line(ValueError("does not fit:\n  missing: a\n  missing: b"))
    'does not fit: missing: a; missing: b'
    >>> one_line(OSError(28, "the log got no room. Name another path."))
    'the log got no room. Name another path. Make room, or write to another disk.'
    """
    # Its own text begins with `[Errno 28]`.
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        where = f" {error.filename!r}" if error.filename is not None else ""
        # That of a handler is a sentence.
        text = f"{error.strerror.rstrip('.')}:{where}.{_REMEDIES.get(error.errno, '')}"
        return text.replace(":.", ".")
    # A list is by lines, or between semicolons.
    lines = [line.strip() for line in re.split(r"\n|; ", str(error)) if line.strip()]
    kept: list[str] = []
    # Weights of another network differ in each of hundreds of arrays: a person needs some.
    for _, group in itertools.groupby(lines, lambda line: (_KIND.search(line) or [line])[0]):
        alike = list(group)
        more = len(alike) - _MOST_PROBLEMS
        kept += [*alike[:_MOST_PROBLEMS], *[f"and {more} more"] * (more > 0)]
    text = ""
    for line in kept:
        text += line if not text else f" {line}" if text.endswith((":", ".")) else f"; {line}"
    # Not those of JAX, nor of where in the code it was: they are for a traceback.
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("in ")]
    text += "".join(f" ({note})" for note in notes)
    # A sentence that ended in a message's last word and again after it.
    return re.sub(r"(?<!\.)\.\.(?=\s|$)", ".", text) or type(error).__name__
