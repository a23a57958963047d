"""Flags of the network and of how long it is trained: FastNN's table 4.3."""

from __future__ import annotations

import dataclasses
from typing import Literal

from penstock._errors import nearest
from penstock.commands._checks import UsageError, check_above_zero, check_at_least


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Which network, for how long, and what it starts from.

    Arguments:
      task_type: start from initial values (pretrain), or from the weights in --model_dir
        (finetune).
      model_name: the network to train; `penstock models` lists them.
      num_epochs: how many times to pass over the data. Without it, --stop_at_step ends the run;
        without either, the run is 100 steps. --stop_at_step=0 alone means 100 passes.
      weight_decay: the weight decay (L2) coefficient in the loss, in place of the network's own.
      max_gradient_norm: clip the global norm of the gradients to this value; None does not clip.
      batch_size: how many images each device gets per step.
      model_dir: the folder of the weights to fine-tune: parameters or checkpoints of penstock, a
        run's folder, or published files.
      ckpt_file_name: the file or folder in --model_dir that has the weights; by default --model_dir
        itself.
      checkpoint_include_scopes: load only parameters with these names, separated by commas; a name
        includes everything below it, and globs work.
      checkpoint_exclude_scopes: do not load parameters with these names.
      ignore_missing_vars: keep the initial values of parameters that the weights lack.
      freeze: do not train parameters that match these globs, separated by commas, such as
        conv1,*/norm/*; batch norm there uses its running statistics and does not update them.
      batch_norm_decay: the fraction of its running statistics that batch norm keeps in a step; by
        default (1 + step) / (10 + step) up to the network's own, because TF-Slim's alone would need
        ten thousand steps to settle.
      batch_norm_group_size: batch norm takes its statistics over groups of this many images; 0 is
        the whole batch of all devices.
      label_smoothing: the fraction of a label's probability that is spread over all classes.
      gradient_accumulation_steps: cut each batch into this many micro-batches, which are in memory
        one after the other.
    """

    task_type: Literal["pretrain", "finetune"] = "pretrain"
    model_name: str = "lenet"
    num_epochs: int | None = None
    weight_decay: float = 0.00004
    max_gradient_norm: float | None = None
    batch_size: int = 32
    model_dir: str | None = None
    ckpt_file_name: str | None = None
    checkpoint_include_scopes: str | None = None
    checkpoint_exclude_scopes: str | None = None
    ignore_missing_vars: bool = False
    freeze: str | None = None
    batch_norm_decay: float | None = None
    batch_norm_group_size: int = 0
    label_smoothing: float = 0.0
    gradient_accumulation_steps: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        from penstock import models

        if self.model_name not in (known := models.names()):
            raise UsageError(
                f"--model_name got {self.model_name!r}, expected one of {len(known)} that "
                f"`penstock models` lists.{nearest(self.model_name, known)}"
            )
        check_at_least(0, weight_decay=self.weight_decay, batch_norm_decay=self.batch_norm_decay)
        check_at_least(0, batch_norm_group_size=self.batch_norm_group_size)
        check_at_least(1, num_epochs=self.num_epochs, batch_size=self.batch_size)
        check_at_least(1, gradient_accumulation_steps=self.gradient_accumulation_steps)
        check_above_zero(max_gradient_norm=self.max_gradient_norm)
        if self.batch_norm_decay is not None and self.batch_norm_decay > 1:
            raise UsageError(
                f"--batch_norm_decay got {self.batch_norm_decay!r}, expected a share from 0 to 1."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(
                f"--label_smoothing got {self.label_smoothing!r}, expected from 0 to below 1."
            )
        if self.task_type == "pretrain" and self.model_dir:
            raise UsageError(
                f"--model_dir got {self.model_dir!r} without --task_type=finetune, expected it "
                "beside. Training would begin with initial values."
            )
        if self.task_type == "finetune" and not (self.model_dir or self.ckpt_file_name):
            raise UsageError(
                "--task_type=finetune got no weights, expected --model_dir=FOLDER, and "
                "--ckpt_file_name=NAME for a file in it."
            )
