"""One run of `penstock train`, from its flags to its last line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from penstock import CheckpointConfig, Trainer, readers
from penstock._image_resizing import encode_png
from penstock._parameter_names import Selection
from penstock._text_tables import find_columns, wrap_words
from penstock.commands._failures import split_words
from penstock.commands._flags import TrainFlags
from penstock.commands._run import announce, network
from penstock.commands._run.data import describe_weights
from penstock.commands._run.plan import Plan, choose_options, make_optimizer, make_plan
from penstock.commands._run.processes import is_writing_process, join_processes
from penstock.commands._run.splits import Batch, BatchReader, to_bytes
from penstock.commands._run_folder import folder as run_folder
from penstock.commands._run_folder.replacement import forget, hold, set_aside
from penstock.events import Handler

SHADES, ASCII_SHADES, NUM_SHOWN = " ░▒▓█", " .:*#", 4
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def show_digits(infer: Callable[[Batch], np.ndarray], reader: BatchReader) -> None:
    """Print a few held-out digits and what is read, a wrong one among them where there is one."""
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


class Run(NamedTuple):
    """A run that is ready to train."""

    plan: Plan
    trainer: Trainer
    start: list[str]


def train(flags: TrainFlags) -> None:
    join_processes(split_words(flags.performance.worker_hosts), flags.performance.task_index)
    with contextlib.ExitStack() as held:
        # On a terminal the progress line shows them, and would be broken by another line.
        is_live = flags.logging.log_loss_every_n_iters <= 0 and sys.stdout.isatty()
        if is_writing_process() and not is_live:
            held.enter_context(announce.announce_compilations())
        run = begin(make_plan(flags), held)
        plan, trainer, is_first = run.plan, run.trainer, is_writing_process()
        if is_first:
            announce.announce(plan, trainer, run.start)
        fit(run)
        final = _test_best(plan, trainer)
    if is_first:
        if plan.flags.dataset.dataset_name == "digits":
            write_digits(plan.folder.samples)
            if jax.process_count() == 1 and plan.data.test is not None:
                show_digits(trainer.infer, plan.data.test)
        announce.conclude(plan, trainer.global_step, final)


def fit(run: Run, *watching: Handler, title: str = "") -> None:
    """Train a run to its end, and save its parameters; `watching` follow its own handlers.

    Where it is interrupted, a line says how it goes on, which begins with the title.
    """
    plan, trainer, is_first = run.plan, run.trainer, is_writing_process()
    try:
        if is_first:
            is_over = trainer.global_step >= plan.length.num_steps
            # Nothing is trained with other flags then: its own describe it.
            if not is_over or not run_folder.find_differences(plan.folder, plan.description.config):
                run_folder.write_description(plan.folder, plan.description)
            if not is_over:
                # They are of the network before.
                plan.folder.answers.unlink(missing_ok=True)
        chosen = (*plan.handlers, *watching)
        trainer.train(plan.data.train, chosen, num_epochs=plan.length.num_epochs)
        trainer.save_params(plan.folder.params, averaged=plan.is_averaged)
        if is_first:
            # Only now that this run's parameters are there: until then the one before can return.
            forget(plan.folder)
    except (KeyboardInterrupt, SystemExit):
        if is_first:
            advice = title + announce.format_advice(plan, trainer.global_step)
            print(f"\n{wrap_words(advice, find_columns(sys.stderr))}", file=sys.stderr)
        raise


def begin(plan: Plan, held: contextlib.ExitStack) -> Run:
    """Take the run's folder, make its trainer, and resume or load the weights to start from.

    `held` takes the lock of the folder, on the process that writes, until the run is over.
    """
    size, weights = plan.data.shape.image_shape[0], None
    # Weights and trainer build the network, and so find out that images are too small for it.
    with network.name_smallest_size(plan.programs.model, size):
        # Before the folder is taken: where there are no weights, no other run is moved aside. One
        # that goes on needs none, and they may be gone by then.
        if not (plan.checkpoint is not None and _is_resumed(plan)):
            weights = read_start(plan)
        notes = [*plan.is_new_because, *_take_folder(plan, held)]
        trainer = make_trainer(plan, plan.checkpoint)
    # Saved with the parameters too, which may be copied elsewhere without the run's folder.
    if plan.data.preparation is not None:
        trainer.about = describe_weights(plan.data.preparation.preprocessing)
    if trainer.global_step:
        start = [f"at step {trainer.global_step}, resumed from {plan.folder.checkpoints}"]
    else:
        start = load_start(trainer, plan, weights)
    return Run(plan=plan, trainer=trainer, start=[*start, *notes])


def make_trainer(plan: Plan, checkpoint: CheckpointConfig | None = None) -> Trainer:
    """Return the trainer of a plan, at initial values or a checkpoint."""
    return Trainer(
        plan.programs.train_program,
        make_optimizer(plan.flags, plan.schedule),
        infer_func=plan.programs.infer_program,
        place=plan.place,
        seed=plan.flags.performance.seed,
        checkpoint=checkpoint,
        **choose_options(plan.flags),
    )


def read_start(plan: Plan) -> network.Weights | None:
    """Return the weights that a plan starts from; None for initial values."""
    wanted = plan.flags.model
    if wanted.task_type == "pretrain":
        return None
    path = run_folder.find_weights(wanted.model_dir, wanted.ckpt_file_name)
    return network.read_weights(path, plan.programs.model, plan.data.shape.image_shape[0])


def load_start(trainer: Trainer, plan: Plan, weights: network.Weights | None) -> list[str]:
    """Load weights as a plan says; return sentences about them."""
    wanted, shape = plan.flags.model, plan.data.shape
    if weights is None:
        return ["from initial values"]
    selection = Selection(
        include=split_words(wanted.checkpoint_include_scopes) or None,
        exclude=split_words(wanted.checkpoint_exclude_scopes) or None,
    )
    is_partial = wanted.ignore_missing_vars
    return network.load_weights(
        trainer, weights, plan.flags, shape, selection=selection, ignores_missing=is_partial
    )[0]


def _is_resumed(plan: Plan) -> bool:
    return bool(run_folder.list_steps(plan.folder.checkpoints)) and not plan.flags.logging.overwrite


def _take_folder(plan: Plan, held: contextlib.ExitStack) -> list[str]:
    """Lock the folder for this run and move another run in it aside; return sentences about it."""
    folder, notes = plan.folder, []
    if is_writing_process():
        # Held from here to the end of the run, so that no other run looks at a folder half moved.
        if held.enter_context(hold(folder)):
            notes.append("the run before this one, which was to be replaced, is back")
        run_folder.check_usable(folder, plan.description)
        notes += run_folder.describe_differences(
            run_folder.find_differences(folder, plan.description.config)
        )
        if folder.find_weights() is not None and not _is_resumed(plan):
            set_aside(folder)
            notes.append(f"the run before is in {folder.replaced} until this one is over")
    # The other processes read the folder only when it is in order.
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("penstock run folder")
    return notes


def _test_best(plan: Plan, trainer: Trainer) -> dict[str, float] | None:
    if plan.data.final_test is None:
        return None
    is_best = plan.evaluate is not None and plan.evaluate.best is not None
    if is_best:
        trainer.load_params(plan.folder.best)
    return trainer.test(plan.data.final_test, averaged=plan.is_averaged and not is_best)
