"""`penstock sweep`: runs of `penstock train` with many values of flags, which Optuna chooses."""

from __future__ import annotations

import dataclasses

from penstock._errors import check_installed
from penstock.commands._argument_parser import option, parse, positional
from penstock.commands._failures import check_numbers, command
from penstock.commands._flags import TRAIN_FLAGS

_EXAMPLES = """examples:
  penstock sweep photos/ --search learning_rate=1e-4..1e-1:log
  penstock sweep --model_name=lenet --num_epochs=20 --num_trials=30 \\
      --search learning_rate=1e-4..1e-1:log --search optimizer=adam,sgd \\
      --search batch_size=16,32,64

If it was interrupted, repeat the command to resume it. Several processes may
run the same command at once, each on a GPU of its own. `penstock train
--help_all` lists what the flags of training mean."""
_TRAINING = {
    name: dataclasses.replace(flag, section="training") for name, flag in TRAIN_FLAGS.items()
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFlags:
    """Train with many values of some flags, and tell which are best.

    Each trial is a run of `penstock train` in a folder of its own. Optuna chooses its values by the
    results of those before, and ends it early where it does worse than most.

    Arguments:
      folder: train on the images in this folder, as penstock train does.
      search: a flag to search and its values: NAME=A,B,C for these; NAME=LOW..HIGH for a range of
        numbers; NAME=LOW..HIGH:log where their order of magnitude counts. Give it once for each
        flag.
      num_trials: how many trials there are in all.
      prune: end a trial after an epoch if its best test is worse than the median of the others
        after as many; the first five are never ended.
      sweep_dir: the folder of the sweep; by default OUTPUT_DIR/runs/<data>_sweep.
    """

    folder: str | None = positional("FOLDER", "?")
    search: tuple[str, ...] = option("NAME=VALUES", is_repeated=True)
    num_trials: int = 20
    prune: bool = True
    sweep_dir: str | None = option("FOLDER", None)

    def __post_init__(self) -> None:
        check_numbers(self, "num_trials>=1")


@command()
def run(argv: list[str]) -> None:
    """Run `penstock sweep` with the arguments after the command's name."""
    flags, overrides = parse(SweepFlags, argv, epilog=_EXAMPLES, extra=_TRAINING, unused="training")
    check_installed("optuna", "sweep", "penstock sweep")
    from penstock.commands._study import run_trials

    run_trials(overrides, **vars(flags))
