"""When checkpoints are written, where, and how many are kept."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Literal

from penstock._errors import check_int, check_known, check_number

_DEFAULT_SECS = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When a `Trainer` writes checkpoints, where, and how many are kept.

    A checkpoint holds parameters, running statistics, the optimizer state of every objective, the
    metrics of the epoch so far, the root random key and the position in the reader: training with
    the same directory goes on at the next sample. One is always written when training ends, also
    by an interrupt or an error. Without any interval one is written at the end of each epoch, and
    in long epochs every five minutes.

    Arguments:
      directory: a folder, made where it is missing; on several processes one that all of them see.
      save_interval_steps: write after every so many steps, at the end of the launch they end in.
      save_interval_epochs: write at the end of every so many epochs.
      save_interval_secs: write when so many seconds have passed since the last one.
      max_to_keep: how many of the newest are kept; at least 2 where a damaged one should leave
        another.
      num_best: how many of the best by `monitor` are kept beside them.
      monitor: what is best: the name of a metric (its mean over the epoch so far; `"loss"`, a key
        of the program function's dict, or a number as a string for the values of a tuple), or a
        function without arguments that is asked at each save, e.g. for a test accuracy.
      mode: whether the lowest or the highest is best.
      is_asynchronous: write in a thread while training goes on, from a copy of the state on the
        device, whose memory is kept for the next on CPU; `False` waits for the disk, without a
        copy.

    Raises:
      ValueError: a number is not positive, or `mode` is neither of the two.

    >>> CheckpointConfig(directory="runs/digits", save_interval_steps=100).max_to_keep
    3
    """

    directory: str | os.PathLike[str]
    save_interval_steps: int | None = None
    save_interval_epochs: int | None = None
    save_interval_secs: float | None = None
    max_to_keep: int = 3
    num_best: int = 0
    monitor: str | Callable[[], float] = "loss"
    mode: Literal["min", "max"] = "min"
    is_asynchronous: bool = True

    def __post_init__(self) -> None:
        for name in ("save_interval_steps", "save_interval_epochs", "max_to_keep"):
            if (value := getattr(self, name)) is not None:
                check_int(f"CheckpointConfig {name}", value, 1)
        check_int("CheckpointConfig num_best", self.num_best, 0)
        if self.save_interval_secs is not None:
            begin = "CheckpointConfig got save_interval_secs="
            check_number(begin, self.save_interval_secs, "(0, inf]", "It is a time between saves.")
        modes = ("min", "max")
        check_known("CheckpointConfig got mode=", self.mode, modes, error=ValueError)
        steps, secs = self.save_interval_steps, self.save_interval_secs
        if self.save_interval_epochs is None and steps is None and secs is None:
            object.__setattr__(self, "save_interval_epochs", 1)
            # An epoch may take hours, and a process that is killed saves nothing at its end.
            object.__setattr__(self, "save_interval_secs", _DEFAULT_SECS)

    def as_json(self) -> dict[str, object]:
        """Return it as a dict that JSON can hold."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        # A function has no JSON; its name tells a reader of run.json which it was.
        monitor = getattr(self.monitor, "__qualname__", self.monitor)
        return {**fields, "directory": os.fspath(self.directory), "monitor": monitor}


def as_config(
    checkpoint: CheckpointConfig | str | os.PathLike[str] | None,
) -> CheckpointConfig | None:
    """Return the configuration of a `Trainer`'s checkpoints; a folder stands for the defaults."""
    if isinstance(checkpoint, (str, os.PathLike)):
        return CheckpointConfig(directory=checkpoint)
    if checkpoint is None or isinstance(checkpoint, CheckpointConfig):
        return checkpoint
    raise TypeError(
        f"checkpoint got {type(checkpoint).__name__}, expected a ps.CheckpointConfig or a folder."
    )
