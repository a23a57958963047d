"""`Report`: a run as one HTML page, updated during training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock import events
from penstock._errors import check_int
from penstock._reader_items import check_reader
from penstock.handlers._arguments import check_hyperparameters, explain_write
from penstock.handlers._readings import Curves
from penstock.handlers.evaluate import Test
from penstock.handlers.figures import RedrawClock, check_path
from penstock.handlers.report.findings import Answers, Questions
from penstock.handlers.report.history import History, RunTimes

_LOGGER = logging.getLogger("penstock")

_SUFFIXES = (".html", ".htm")


class Report:
    """Write an HTML page about a run: curves, epochs, times, and the network's mistakes.

    The page is one file without scripts or external resources. It shows versions, devices, the
    trainer's arguments and hyperparameters; curves, with the learning rate; epochs and tests; where
    the time went; and the parameters by layer. With a `reader`, the network is run once over its
    images when training ends, and the page also has a table of classes, the confusion matrix, the
    worst mistakes as pictures, calibration and samples. If a part cannot be made, the page says
    why. It is rewritten every few seconds, without the part of `reader`, and at the end of
    training, also after an error or Ctrl-C. Curves keep at most 2000 points. They are saved in
    checkpoints, and a resumed run continues them.

    With several processes, each runs the network over the images of its own reader, and the page
    has the counts and worst mistakes of all. So every process needs the handler: one alone would
    wait for the others at the end.

    Arguments:
      path: the file, with the suffix `.html`; missing folders are created.
      every_steps: the interval in steps between two points; 0 or less draws the means of epochs.
      names: names of metrics that have none: a program's single value, tuple or list.
      test: an `Evaluate` of the same run, or a function of metrics, called after each epoch.
      hyperparameters: values by name, nested or not, such as `vars(arguments)` of argparse.
      reader: yields test batches, as for `Trainer.test`. It is read once, after training has
        completed or was stopped; not after Ctrl-C or an error.
      feed_order: names for the fields of the reader's tuples; by default those of `Trainer.train`.
      infer: a function from a batch (a dict) to probabilities or logits `[B, num_classes]`; by
        default `trainer.infer`, with the inputs of the trainer's `infer_func`. All processes call
        it equally often with batches of equal size; shorter ones are filled up.
      image: the name of the images `[B, H, W, 1 or 3]` in a batch; `None` if there are none.
      label: the name of the integer labels, `[B]` or `[B, 1]`, in a batch.
      classes: the names of the classes, in the order of their labels.
      num_mistakes: how many of the worst mistakes to show.
      num_samples: how many images of each class to show.

    Raises:
      TypeError: `test`, `reader` or `classes` is of another type.
      ValueError: `path` is a folder or has another suffix, or an option needs a `reader`. At
        `BeginTraining`: there is a `reader`, but neither `infer` nor the trainer's `infer_func`.
      OSError: at the end of training, if the page cannot be written. During training that is only
        logged as a warning.

    >>> import pathlib, tempfile
    >>> from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining
    >>> path = pathlib.Path(tempfile.mkdtemp(), "report.html")
    >>> report = Report(path, every_steps=1, hyperparameters={"depth": 3})
    >>> report(BeginTraining(epoch=0, num_epochs=1, global_step=0))
    >>> for step in range(3):
    ...     report(BeginStep(epoch=0, step=step, global_step=step))
    ...     report(EndStep(epoch=0, step=step, global_step=step, read=lambda: 1 / (1 + step)))
    >>> report(EndTraining("completed", global_step=3))
    >>> "<b>loss</b> – last: 0.3333" in path.read_text(encoding="utf-8")
    True
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "report.html",
        *,
        every_steps: int = 10,
        names: Sequence[str] = ("loss",),
        test: Test | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        reader: events.ReaderLike | None = None,
        feed_order: events.FeedOrder | None = None,
        infer: Callable[[Mapping[str, np.ndarray]], Any] | None = None,
        image: str | None = "image",
        label: str = "label",
        classes: Sequence[str] | None = None,
        num_mistakes: int = 24,
        num_samples: int = 6,
    ) -> None:
        self._path = check_path("Report", path, _SUFFIXES)
        self._hyperparameters = check_hyperparameters("Report", hyperparameters)
        if isinstance(classes, str):
            raise TypeError(
                f"Report got classes={classes!r}, expected a list of names. Each letter would be a "
                "class. Pass classes=['cat', 'dog']."
            )
        self._questions: Questions | None = None
        self._feed_order = feed_order
        self._train_order: events.FeedOrder | None = None
        check_int("num_mistakes", num_mistakes, 0)
        check_int("num_samples", num_samples, 0)
        if reader is not None:
            check_reader(reader, 1)
            self._questions = Questions(
                reader=reader,
                infer=infer,
                image=image,
                label=label,
                classes=None if classes is None else tuple(map(str, classes)),
                num_mistakes=num_mistakes,
                num_samples=num_samples,
            )
        elif infer is not None or classes is not None:
            raise ValueError(
                f"Report got {'classes' if infer is None else 'infer'} without a reader, expected "
                "both. The network predicts the images of the reader. Pass reader=test_reader."
            )
        self._curves = Curves("Report", every_steps, names, test)
        self._history, self._times = History(), RunTimes()
        self._trainer: events.Training | None = None
        self._description: dict[str, Any] | None = None
        self._num_steps = self._num_epochs = 0
        self._is_begun = False
        self._clock = RedrawClock()

    def __call__(self, event: events.Event) -> None:
        """Record an event; write the page every few seconds and at the end."""
        if isinstance(event, events.BeginTraining):
            self._begin(event)
        # A handler before this one may have failed when training began.
        if not self._is_begun:
            return
        self._times(event)
        points = self._curves(event)
        self._history.add(event, points, self._times.epoch_secs)
        if isinstance(event, events.EndStep):
            self._num_steps = event.global_step + 1
        if isinstance(event, events.EndTraining):
            self._end(event)
        elif points and self._clock.is_due():
            why = "This part is made when training ends."
            self._clock.try_to(lambda: self._write("running", None, why), "Report", self._path)

    def _begin(self, event: events.BeginTraining) -> None:
        if self._questions is not None:
            self._questions.check(event.trainer)
        self._train_order = event.feed_order
        self._history.begin(event)
        if not event.global_step:
            self._times.begin({})
        self._trainer, self._description = event.trainer, None
        self._num_steps, self._num_epochs = event.global_step, event.epoch + event.num_epochs
        self._is_begun = True
        self._clock.begin()

    def _end(self, event: events.EndTraining) -> None:
        self._is_begun = False
        try:
            why_not = self._find_obstacle(event)
            if why_not is None:
                # A person may not wait for the answers.
                self._write(event.reason, event.error, "This part was being made.")
            self._write(event.reason, event.error, why_not or self._ask())
        except OSError as error:
            # The error that ended training is the one to see.
            if event.error is not None:
                _LOGGER.warning("Report could not write %s (%s)", self._path, error)
                return
            raise explain_write("Report", self._path, error) from error
        finally:
            self._trainer = None

    def _find_obstacle(self, event: events.EndTraining) -> str | None:
        """Return why the network is not asked, if so."""
        if self._questions is None:
            return "No reader was given. Pass Report(reader=test_reader) to add this part."
        is_whole = event.reason in ("completed", "stopped")
        return None if is_whole else "Training was cut short, so this part was not made."

    def _ask(self) -> Answers | str:
        """Return what the network says of the reader's images, or what went wrong."""
        assert self._questions is not None
        try:
            return self._questions.ask(self._trainer, self._feed_order, self._train_order)
        except Exception as error:  # a mistake in a reader must not take the rest of the page
            _LOGGER.warning(
                "Report could not run the network on the reader (%s); the page says so.", error
            )
            return f"{type(error).__name__}: {error}"

    def _write(self, state: str, error: BaseException | None, answers: Answers | str) -> None:
        if jax.process_index():  # one process writes
            return
        from penstock.handlers.report.run_page import Facts, make_page

        trainer = self._trainer
        if self._description is None:
            self._description = {} if trainer is None else trainer.describe()
        facts = Facts(
            state=state,
            error=error,
            num_steps=self._num_steps,
            num_epochs=self._num_epochs,
            description=self._description,
            parameters=[] if trainer is None else trainer.builder.parameter_table(),
            hyperparameters=self._hyperparameters,
            secs=self._times.secs,
        )
        # A folder may be one of this machine's: its last name says which run it is.
        name = self._path.parent.name if self._path.stem == "report" else self._path.stem
        title = f"Report of {name}" if name else "Report"
        page = make_page(title, self._history, facts, answers)
        page.write(self._path)

    def get_state(self) -> events.HandlerState:
        """Return curves, epochs and times for a checkpoint, with what is due to be read."""
        # What is held back for a later launch or event is a part of the checkpoint too.
        self._history.add_points(self._curves.take())
        return {**self._history.get_state(), "secs": {**self._times.secs}}

    def set_state(self, state: events.HandlerState) -> None:
        """Restore the curves, epochs and times of a checkpoint."""
        self._history.set_state(state)
        self._times.begin(state["secs"])
