"""One run of `penstock train`, from its flags to its last line."""

from __future__ import annotations

import contextlib
import sys

import jax

from penstock._text_tables import find_columns, wrap_words
from penstock.commands._flags import TrainFlags
from penstock.commands._run.alarm import leave_out_alarm
from penstock.commands._run.announce import (
    announce,
    announce_compilations,
    conclude,
    format_advice,
    leave_out_resuming,
)
from penstock.commands._run.assembly import Run, assemble, describe_data
from penstock.commands._run.digits import show_digits, write_digits
from penstock.commands._run.folder import write_description
from penstock.commands._run.processes import is_writing_process, join_processes
from penstock.commands._run.replacement import forget


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
