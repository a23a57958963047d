"""Flags of what a run shows and keeps, and of how it computes: FastNN's tables 4.6 and 4.7."""

from __future__ import annotations

import dataclasses
from typing import Literal

from penstock._program.precision import PrecisionName
from penstock.commands._checks import (
    UsageError,
    check_above_zero,
    check_at_least,
    check_choice,
    split_words,
)

HOOKS = ("StopAtStepHook", "ProfilerHook", "LoggingTensorHook", "CheckpointSaverHook")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingFlags:
    """What a run shows, and where it writes.

    Arguments:
      stop_at_step: end after this many steps, unless --num_epochs ends the run first; 0 sets no
        limit. It is 100 if neither is given.
      log_loss_every_n_iters: print a line every N steps; 0 shows a progress bar instead.
      eval_every_n_epochs: evaluate every N epochs, and at the end; 0 never evaluates.
      profile_every_n_iters: trace one step in every N; 0 traces none.
      profile_at_task: the index of the process that traces.
      log_device_placement: print the devices and what is placed on them.
      print_model_statistics: print the table of parameters.
      log_trainable_vars_statistics: do what --print_model_statistics does, under its name in
        FastNN's code.
      hooks: which of StopAtStepHook, ProfilerHook, LoggingTensorHook and CheckpointSaverHook to
        use, separated by commas; those left out do nothing.
      checkpointDir: the run's folder, for checkpoints, parameters, log and configuration; by
        default a folder in OUTPUT_DIR/runs that is named after the data set and the network.
      save_checkpoints_steps: write a checkpoint every N steps, and one at the end.
      save_checkpoints_secs: also write a checkpoint every N seconds; 0 writes none.
      overwrite: start the run again if the folder already holds one. The earlier run is kept in the
        folder, in replaced, until the new one is complete.
      output_dir: the folder for runs; each has its own folder in runs there.
      summaryDir: write curves for TensorBoard to this folder.
    """

    stop_at_step: int | None = None
    log_loss_every_n_iters: int = 10
    eval_every_n_epochs: int = 1
    profile_every_n_iters: int = 0
    profile_at_task: int = 0
    log_device_placement: bool = False
    print_model_statistics: bool = False
    log_trainable_vars_statistics: bool = False
    hooks: str = ",".join(HOOKS)
    checkpointDir: str | None = None
    save_checkpoints_steps: int = 1000
    save_checkpoints_secs: int = 300
    overwrite: bool = False
    output_dir: str = "."
    summaryDir: str | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        check_at_least(0, stop_at_step=self.stop_at_step, profile_at_task=self.profile_at_task)
        check_at_least(0, eval_every_n_epochs=self.eval_every_n_epochs)
        check_at_least(0, log_loss_every_n_iters=self.log_loss_every_n_iters)
        check_at_least(0, profile_every_n_iters=self.profile_every_n_iters)
        check_at_least(1, save_checkpoints_steps=self.save_checkpoints_steps)
        check_at_least(0, save_checkpoints_secs=self.save_checkpoints_secs)
        known = {name.lower(): name for name in HOOKS}
        for name in split_words(self.hooks):
            if name.lower() not in known:
                check_choice("hooks", name, HOOKS)

    def has_hook(self, name: str) -> bool:
        """Return whether a hook of FastNN's is among those asked for; case does not matter."""
        return name.lower() in {each.lower() for each in split_words(self.hooks)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerformanceFlags:
    """How it computes.

    Arguments:
      use_fp16: compute products in bfloat16 if the accelerator supports it, as --precision=auto
        does; False means --precision=float32.
      loss_scale: the loss scale with float16: a number, or dynamic, which adjusts it and skips
        updates that overflow.
      precision: the precision of products, in place of what --use_fp16 says; auto is bfloat16 if
        the accelerator supports it.
      enable_paisoar: use all devices of all processes; False uses one device, as FastNN's local
        runs do.
      place: the kind of device to compute on; by default the best there is.
      worker_hosts: the processes of a run on several machines, as HOST:PORT separated by commas.
      task_index: the index of this process in --worker_hosts, counted from 0.
      seed: the seed of initial values, shuffling and all other randomness.
    """

    use_fp16: bool = True
    loss_scale: float | Literal["dynamic"] = "dynamic"
    precision: PrecisionName | None = None
    enable_paisoar: bool = True
    place: Literal["cpu", "gpu", "tpu"] | None = None
    worker_hosts: str | None = None
    task_index: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values."""
        if self.loss_scale != "dynamic":
            check_above_zero(loss_scale=self.loss_scale)
        num_hosts = max(1, len(split_words(self.worker_hosts)))
        if not 0 <= self.task_index < num_hosts:
            raise UsageError(
                f"--task_index got {self.task_index!r}, expected from 0 to {num_hosts - 1}: it "
                "counts the processes of --worker_hosts."
            )

    @property
    def precision_name(self) -> PrecisionName:
        """The precision that the two flags ask for."""
        # FastNN's default of 16 bits is "auto": bfloat16 where the accelerator has it.
        return self.precision or ("auto" if self.use_fp16 else "float32")
