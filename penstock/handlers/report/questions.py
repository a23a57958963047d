"""What the network is asked for a page: the images of a reader, and what they are."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from penstock._batches import Fields, open_pass
from penstock._errors import listed, nearest
from penstock.events import FeedOrder, ReaderLike, Training
from penstock.handlers.report.findings import Exchange, Findings, gather

Batch = Mapping[str, np.ndarray]
# Probabilities in bfloat16 add up to 1 no more exactly.
_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What a network says of a reader's images, the names of its classes and of its files."""

    findings: Findings
    names: tuple[str, ...]
    files: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """Ask a network about the images of a reader.

    Arguments:
      reader: yields batches, see `Trainer.test`.
      infer: gives probabilities or logits `[B, classes]` of a batch; None for `trainer.infer` of
        the inputs that it declares.
      image, label: their names in a batch; without a name for images none are shown.
      classes: the names of classes; their numbers without.
      num_mistakes, num_samples: how many pictures are kept.
    """

    reader: ReaderLike
    infer: Callable[[Batch], object] | None
    image: str | None
    label: str
    classes: tuple[str, ...] | None
    num_mistakes: int
    num_samples: int

    def check(self, trainer: Training | None) -> None:
        """Raise where there is nothing to ask, before training.

        Raises:
          ValueError: the trainer has no `infer_func`, and there is no `infer` either.
        """
        if self.infer is None and (trainer is None or not _find_inputs(trainer)):
            raise ValueError(
                "Report got a reader and a trainer without infer_func, expected one with it. The "
                "page shows what the network says of the reader's images. Pass "
                "Trainer(..., infer_func=...), or Report(infer=...)."
            )

    def ask(
        self,
        trainer: Training | None,
        feed_order: FeedOrder | None = None,
        train_order: FeedOrder | None = None,
    ) -> Answers:
        """Return what the network says; waits for the device.

        Of several processes all call it, each with images of its own, and all have the counts and
        the worst mistakes of all of them.

        Arguments:
          feed_order: names for the fields of the reader's tuples.
          train_order: those of training; taken where there are no others, and enough of them.

        Raises:
          ValueError: batches, labels or answers are not what they should be.
          RuntimeError: so they are on another process.
        """
        group = None if trainer is None else trainer.builder.programs.group
        exchange: Exchange = _stay_alone if group is None else group.exchange
        batches = self._read(functools.partial(_make_fields, trainer, feed_order, train_order))
        asked, error = _Asked(self, trainer), None
        while True:
            batch, size = None, None
            try:
                # What failed in the last round is told now: no process waits for one that is gone.
                if error is None and (batch := next(batches, None)) is not None:
                    size = len(self.take(batch)[0])
            except Exception as raised:
                error = raised
            rows = exchange("Report", [size, None if error is None else str(error)])
            if error is not None:
                raise error
            _check_others(rows)
            sizes = [size for size, _ in rows if size is not None]
            if not sizes:
                break
            try:
                # All take part in each round: the network is asked by all processes together.
                asked.add(batch, size or 0, max(sizes))
            except Exception as raised:
                error = raised
        findings = asked.findings
        if group is not None and group.count > 1:
            counts = {"num_mistakes": self.num_mistakes, "num_samples": self.num_samples}
            findings = gather(findings, group.index, exchange, **counts)
        if findings is None:
            raise ValueError("the reader yielded no batch, expected at least one.")
        return Answers(
            findings=findings, names=self.classes or tuple(map(str, range(len(findings.matrix))))
        )

    def _read(self, make_fields: Callable[[], Fields]) -> Iterator[Batch]:
        """Yield the reader's batches as dicts, of what `trainer.test` takes."""
        fields: Fields | None = None
        for item in open_pass(self.reader, 0):
            if isinstance(item, Mapping):
                # As it is: labels need not be an input.
                yield item
                continue
            fields = fields or make_fields()
            yield fields.as_batch(item)  # pyright: ignore[reportReturnType]

    def take(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return labels `[B]` and images `[B, H, W, C]`; none of a size of 0 without a name."""
        wanted = [self.label] if self.image is None else [self.label, self.image]
        for name in wanted:
            if name not in batch:
                raise ValueError(
                    f"the reader yielded a batch of {listed(batch)}, expected {name!r} in it. "
                    "Report(image=..., label=...) says what they are called." + nearest(name, batch)
                )
        labels = np.asarray(batch[self.label])
        if labels.ndim < 1 or labels.size != len(labels):
            raise ValueError(
                f"the reader yielded labels of shape {list(labels.shape)}, expected the number of "
                "one class for each image."
            )
        labels = labels.reshape(-1)
        if self.image is None:
            return labels, np.zeros((len(labels), 0))
        images = np.asarray(batch[self.image])
        return labels, images[..., np.newaxis] if images.ndim == 3 else images

    def ask_network(self, batch: Batch, trainer: Training | None) -> np.ndarray:
        """Return what the network answers, `[B, classes]`."""
        if self.infer is not None:
            answers = self.infer(batch)
        elif trainer is not None:
            # Only its own inputs: others, such as labels, a strict trainer refuses.
            names = _find_inputs(trainer)
            answers = trainer.infer({name: batch[name] for name in names if name in batch})
        else:
            raise ValueError("Report got no trainer, expected one to ask.")
        if isinstance(answers, Mapping | tuple | list):
            raise ValueError(
                f"the network answered with a {type(answers).__name__}, expected one array "
                "[B, classes]. Report(infer=...) takes a function of a batch that picks it."
            )
        answers = np.asarray(answers, np.float64)
        if answers.ndim != 2 or answers.shape[1] < 2:
            raise ValueError(
                f"the network answered with the shape {list(answers.shape)}, expected "
                "[B, classes], probabilities or logits of two classes or more."
            )
        return answers


class _Asked:
    """What the network has said so far of this process's images."""

    def __init__(self, questions: Questions, trainer: Training | None) -> None:
        self.findings: Findings | None = None
        self._questions, self._trainer = questions, trainer
        self._limits, self._is_logits = (0.0, 0.0), False

    def add(self, batch: Batch | None, size: int, most: int) -> None:
        """Ask about a batch of `size` images, filled up to `most` of them; None for no batch."""
        if not most:
            return
        feed = batch if size else None
        if feed is None:
            # A process may have none of the last images, and others need it to ask about theirs.
            specs = {} if self._trainer is None else self._trainer.builder.feed_specs
            feed = {name: np.zeros((1, *specs[name].shape), specs[name].dtype) for name in specs}
        if size < most:
            feed = {name: _fill(feed[name], most) for name in feed}
        answers = self._questions.ask_network(feed, self._trainer)
        if batch is None or not size:
            return
        labels, images = self._questions.take(batch)
        if size < most:
            answers = answers[:size]
        if self.findings is None:
            self._limits = _find_limits(images)
            self._is_logits = not _are_probabilities(answers)
            self.findings = self._begin(answers)
        _check_labels(labels, answers)
        shares = _softmax(answers) if self._is_logits else answers
        self.findings.add(labels, shares, _scale(images, self._limits))

    def _begin(self, answers: np.ndarray) -> Findings:
        asked, num_classes = self._questions, answers.shape[1]
        if asked.classes is not None and len(asked.classes) != num_classes:
            raise ValueError(
                f"Report got {len(asked.classes)} classes, expected {num_classes}. The network "
                "gives as many numbers for an image."
            )
        return Findings(num_classes, num_mistakes=asked.num_mistakes, num_samples=asked.num_samples)


def _stay_alone(name: str, value: object) -> list[Any]:
    return [value]


def _fill(values: ArrayLike, count: int) -> np.ndarray:
    """Return the first rows and so many more of them that they are `count`."""
    array = np.asarray(values)
    return array[np.arange(count) % len(array)] if array.ndim else array


def _check_others(rows: Sequence[tuple[int, str | None]]) -> None:
    """Raise what another process has told that it cannot go on for."""
    for number, (_, problem) in enumerate(rows):
        if problem is not None:
            raise RuntimeError(f"process {number} could not ask the network: {problem}")


def _make_fields(
    trainer: Training | None, feed_order: FeedOrder | None, train_order: FeedOrder | None
) -> Fields:
    """Return the names of a tuple's fields."""
    if trainer is None:
        # What is asked then is the user's function: any names will do.
        return Fields({}, feed_order)
    inputs = trainer.builder.programs.network.inputs("test")
    if feed_order is None and set(inputs) <= set(train_order or ()):
        feed_order = train_order
    return Fields(inputs, feed_order)


def _find_inputs(trainer: Training) -> list[str]:
    """Return the names of what `infer_func` takes; none where there is none."""
    infer = trainer.builder.programs.network.infer
    return [] if infer is None else list(infer.feed_specs)


def _check_labels(labels: np.ndarray, answers: np.ndarray) -> None:
    num_classes = answers.shape[1]
    if len(labels) != len(answers):
        raise ValueError(f"the network gave {len(answers)} answers, expected {len(labels)}.")
    if not np.issubdtype(labels.dtype, np.integer) or np.any(
        (labels < 0) | (labels >= num_classes)
    ):
        raise ValueError(
            f"the reader yielded labels of {labels.dtype} from {labels.min()} to {labels.max()}, "
            f"expected integers from 0 to {num_classes - 1}."
        )


def _are_probabilities(answers: np.ndarray) -> bool:
    rows = answers[np.isfinite(answers).all(axis=1)]
    return bool(np.all(rows >= 0) and np.all(np.abs(rows.sum(axis=1) - 1) < _TOLERANCE))


def _softmax(logits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # nan stays nan, and is counted
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _find_limits(images: np.ndarray) -> tuple[float, float]:
    """Return the values that are shown as black and as white.

    >>> _find_limits(np.array([-1.5, 2.0])), _find_limits(np.array([0.0, 0.7]))
    ((-1.5, 2.0), (0.0, 1.0))
    """
    values = np.asarray(images, np.float64)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if images.dtype == np.uint8 or (low >= 0 and 100 < high <= 255):
        return 0.0, 255.0
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, max(high, low + 1e-6)


def _scale(images: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    if limits == (0.0, 255.0):
        return images
    low, high = limits
    return np.nan_to_num((np.asarray(images, np.float32) - low) * (255 / (high - low)))
