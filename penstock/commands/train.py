"""`penstock train`: train a network of the model library, with FastNN's flags."""

from __future__ import annotations

import contextlib
import sys

import jax

from penstock.commands._argument_parser import describe, read_words
from penstock.commands._failures import run_command
from penstock.commands._flags import TRAIN_FLAGS, TrainFlags, make_train_flags
from penstock.commands._run.alarm import leave_out_alarm
from penstock.commands._run.announce import (
    announce,
    announce_compilations,
    conclude,
    format_advice,
)
from penstock.commands._run.assembly import assemble, describe_data
from penstock.commands._run.digits import show_digits
from penstock.commands._run.folder import write_description
from penstock.commands._run.processes import is_writing_process, join_processes
from penstock.commands._run.replacement import forget

PROG = "penstock train"
_EXAMPLES = """examples:
  penstock train
  penstock train --model_name=resnet_v1_50 --dataset_name=cifar10 --dataset_dir=data/cifar10
  penstock train --dataset_name=image_folder --dataset_dir=photos --model_name=mobilenet_v2 \\
      --task_type=finetune --model_dir=weights --ckpt_file_name=mobilenet_v2_1.0_224.ckpt
  penstock train --dataset_name=mock --model_name=resnet_v1_50        # how fast is it?

docs/train_command.md says more."""


def run(argv: list[str]) -> int:
    """Run `penstock train` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the run is over, 1 when it failed, 2 when it was called wrongly; an
      interrupt is raised.
    """
    return run_command("train", lambda: _train(read_flags(argv)))


def read_flags(argv: list[str]) -> TrainFlags:
    """Return the flags that words stand for.

    Raises:
      UsageError: an unknown flag or a wrong value.

    >>> read_flags(["--model_name=vgg_16", "--use_fp16=False"]).model.model_name
    'vgg_16'
    """
    text = describe(TrainFlags)
    return make_train_flags(read_words(TRAIN_FLAGS, argv, prog=PROG, text=text, epilog=_EXAMPLES))


def _train(flags: TrainFlags) -> None:
    join_processes(flags.performance)
    with contextlib.ExitStack() as held:
        held.enter_context(leave_out_alarm())
        held.enter_context(announce_compilations(flags))
        run = assemble(flags, held)
        is_first = is_writing_process()
        if is_first:
            write_description(run.folder, run.flags, describe_data(run))
            announce(run)
        try:
            run.trainer.train(run.data.train, run.handlers.all, num_epochs=run.plan.num_epochs)
        except (KeyboardInterrupt, SystemExit):
            if is_first:
                print(f"\n{format_advice(run)}", file=sys.stderr)
            raise
        run.trainer.save_params(run.folder.params, averaged=run.is_averaged)
        if is_first:
            # Only now that this run's parameters are there: until then the run before can come
            # back.
            forget(run.folder)
    if is_first:
        is_digits = flags.dataset.dataset_name == "digits" and jax.process_count() == 1
        if is_digits and run.data.test is not None:
            show_digits(run.trainer.infer, run.data.test)
        conclude(run)
