"""What the network is asked for a page: the images of a reader, and what they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from penstock._errors import listed, nearest
from penstock._report.findings import Findings
from penstock.events import ReaderLike, Training

Batch = Mapping[str, np.ndarray]
# Probabilities in bfloat16 add up to 1 no more exactly.
_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """What a network says of a reader's images, and the names of its classes."""

    found: Findings
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """Ask a network about the images of a reader.

    Arguments:
      reader: yields batches as dicts.
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

    def ask(self, trainer: Training | None) -> Answers:
        """Return what the network says; waits for the device.

        Raises:
          ValueError: batches, labels or answers are not what they should be.
        """
        found, limits, is_logits = None, (0.0, 0.0), False
        for batch in self.reader() if callable(self.reader) else self.reader:
            if not isinstance(batch, Mapping):
                raise ValueError(
                    f"the reader yielded {type(batch).__name__}, expected dicts of arrays. Report "
                    f"finds {self.label!r} in them by name."
                )
            labels, images = self._take(batch)
            answers = self._infer(batch, trainer)
            if found is None:
                limits, is_logits = _find_limits(images), not _are_probabilities(answers)
                found = self._begin(answers)
            _check_labels(labels, answers)
            shares = _softmax(answers) if is_logits else answers
            found.add(labels, shares, _scale(images, limits))
        if found is None:
            raise ValueError("the reader yielded no batch, expected at least one.")
        return Answers(found=found, names=self.classes or tuple(map(str, range(len(found.matrix)))))

    def _begin(self, answers: np.ndarray) -> Findings:
        num_classes = answers.shape[1]
        if self.classes is not None and len(self.classes) != num_classes:
            raise ValueError(
                f"Report got {len(self.classes)} classes, expected {num_classes}. The network "
                "gives as many numbers for an image."
            )
        return Findings(num_classes, num_mistakes=self.num_mistakes, num_samples=self.num_samples)

    def _take(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        wanted = [self.label] if self.image is None else [self.label, self.image]
        for name in wanted:
            if name not in batch:
                raise ValueError(
                    f"the reader yielded a batch of {listed(batch)}, expected {name!r} in it. "
                    "Report(image=..., label=...) says what they are called." + nearest(name, batch)
                )
        labels = np.asarray(batch[self.label]).reshape(len(batch[self.label]), -1)
        if labels.shape[1] != 1:
            raise ValueError(
                f"the reader yielded labels of shape {list(batch[self.label].shape)}, expected the "
                "number of one class for each image."
            )
        if self.image is None:
            return labels[:, 0], np.zeros((len(labels), 0))
        images = np.asarray(batch[self.image])
        return labels[:, 0], images[..., np.newaxis] if images.ndim == 3 else images

    def _infer(self, batch: Batch, trainer: Training | None) -> np.ndarray:
        if self.infer is not None:
            answers = self.infer(batch)
        elif trainer is not None:
            # Only its own inputs: others, such as labels, it refuses.
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


def _find_inputs(trainer: Training) -> list[str]:
    """Return the names of what `infer_func` takes; none where there is none."""
    infer = trainer.builder.programs.network.infer
    return [] if infer is None else list(infer.program.feed_specs)


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
