"""What a network says of images: counts, its worst mistakes, samples; and how it is asked."""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from penstock._errors import check_known
from penstock._reader_items import Fields, open_pass
from penstock.events import FeedOrder, ReaderLike, Training


def count_confusions(
    pairs: Iterable[tuple[np.ndarray, np.ndarray]], num_classes: int
) -> np.ndarray:
    """Return how often each class was predicted for each label, `[labels, predictions]`.

    >>> count_confusions([(np.array([0, 1, 1]), np.array([0, 1, 0]))], 2).tolist()
    [[1, 0], [1, 1]]
    """
    matrix = np.zeros((num_classes, num_classes), np.int64)
    for labels, predictions in pairs:
        # Not `+=`, which counts a pair that is twice in a batch once.
        np.add.at(matrix, (labels.reshape(-1), predictions.reshape(-1)), 1)
    return matrix


CLASS_HEAD = ("class", "images", "recall", "precision", "most often taken for")
"""The columns of `describe_classes`."""


def describe_classes(
    matrix: np.ndarray, names: Sequence[str]
) -> list[tuple[float | None, tuple[str, ...]]]:
    """Return recall, None without images, and a row of the table for each class that occurs."""
    rows: list[tuple[float | None, tuple[str, ...]]] = []
    for number, name in enumerate(names):
        count, taken = int(matrix[number].sum()), int(matrix[:, number].sum())
        if not count and not taken:
            continue
        hits = int(matrix[number, number])
        wrong = matrix[number].copy()
        wrong[number] = 0
        worst = int(wrong.argmax())
        mistake = f"{names[worst]} ({wrong[worst]:,})" if wrong[worst] else ""
        shares = format_share(hits, count), format_share(hits, taken)
        recall = hits / count if count else None
        rows.append((recall, (name, f"{count:,}", *shares, mistake)))
    return rows


def format_share(part: int, whole: int) -> str:
    """Return a share in percent, `-` of nothing.

    >>> format_share(1, 8), format_share(0, 0)
    ('12.5%', '-')
    """
    return f"{part / whole:.1%}" if whole else "-"


def find_interval(part: int, whole: int) -> tuple[float, float]:
    """Return between what the share of all images lies, with a confidence of 95 % (Wilson 1927).

    >>> low, high = find_interval(351, 359)
    >>> f"{low:.4f} {high:.4f}"
    '0.9567 0.9887'
    """
    z = statistics.NormalDist().inv_cdf(0.975)
    share, n = part / whole, whole
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def format_interval(part: int, whole: int) -> str:
    """Return the interval of a share in percent, `-` of nothing.

    >>> format_interval(351, 359)
    '95.67% to 98.87%'
    """
    return "{:.2%} to {:.2%}".format(*find_interval(part, whole)) if whole else "-"


_NUM_BINS = 10
_NUM_CLASSES_SHOWN = 40
_COUNTED = ("num_images", "num_top_5", "num_broken", "sum_of_logs")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """An image `[H, W, 1 or 3]` uint8, None where it is no picture, and what is said of it.

    `number` is its place in the split, or in the part of its `process`; `sureness` the probability
    of what was said, `right_share` of what is right.
    """

    image: np.ndarray | None
    number: int
    label: int
    predicted: int
    sureness: float
    right_share: float
    process: int | None = None


class Findings:
    """Counts over a split, filled batch by batch; of the images only those to show are kept.

    `matrix` is `[labels, predictions]`, `mistakes` has the worst first, `bins` `[10, 3]` images,
    summed probability and hits of each tenth of the probability.

    >>> findings = Findings(2, num_mistakes=1, num_samples=1)
    >>> images = np.zeros((2, 4, 4, 1), np.uint8)
    >>> findings.add(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]), images)
    >>> findings.accuracy, findings.mistakes[0].predicted, findings.mistakes[0].right_share
    (0.5, 0, 0.2)
    """

    def __init__(self, num_classes: int, *, num_mistakes: int, num_samples: int) -> None:
        self.matrix = np.zeros((num_classes, num_classes), np.int64)
        self.bins = np.zeros((_NUM_BINS, 3))
        self.mistakes: list[Example] = []
        self.samples: dict[int, list[Example]] = {}
        self.num_images = self.num_top_5 = self.num_broken = 0
        self.sum_of_logs = 0.0
        self.num_mistakes, self._num_samples = num_mistakes, num_samples

    @property
    def accuracy(self) -> float:
        """The share of images that the network is right about."""
        return float(np.trace(self.matrix)) / max(self.num_images, 1)

    @property
    def cross_entropy(self) -> float:
        """The mean of the right class's negative logarithmic probability, in nats."""
        return -self.sum_of_logs / max(self.num_images, 1)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error over bins by their images (Guo et al. 2017)."""
        return float(np.abs(self.bins[:, 1] - self.bins[:, 2]).sum()) / max(self.num_images, 1)

    def add(self, labels: np.ndarray, probabilities: np.ndarray, images: np.ndarray) -> None:
        """Count a batch of labels `[B]`, probabilities `[B, classes]` and images `[B, H, W, C]`."""
        labels = np.asarray(labels).reshape(-1)
        self.num_broken += int((~np.isfinite(probabilities).all(axis=1)).sum())
        probabilities = np.nan_to_num(np.asarray(probabilities, np.float64))
        predicted = probabilities.argmax(axis=1)
        sureness, right_share = probabilities.max(axis=1), probabilities[range(len(labels)), labels]
        self.matrix += count_confusions([(labels, predicted)], len(self.matrix))
        numbers = np.clip((sureness * _NUM_BINS).astype(int), 0, _NUM_BINS - 1)
        hits = (labels == predicted).astype(float)
        np.add.at(self.bins, numbers, np.stack([np.ones_like(sureness), sureness, hits], axis=1))
        is_above = probabilities > right_share[:, np.newaxis]
        self.num_top_5 += int((is_above.sum(axis=1) < 5).sum())
        self.sum_of_logs += float(np.log(np.maximum(right_share, 1e-30)).sum())

        def make(row: int) -> Example:
            return Example(
                image=to_picture(images[row]),
                number=self.num_images + row,
                label=int(labels[row]),
                predicted=int(predicted[row]),
                sureness=float(sureness[row]),
                right_share=float(right_share[row]),
            )

        self._keep_mistakes(np.flatnonzero(hits == 0), right_share, make)
        self._keep_samples(labels, make)
        self.num_images += len(labels)

    def count(self) -> dict[str, object]:
        """Return the counts, without images, as JSON holds them."""
        labels, predicted = np.nonzero(self.matrix)
        return {
            "num_classes": len(self.matrix),
            # Of a thousand classes most pairs are never confused.
            "matrix": [x.tolist() for x in (labels, predicted, self.matrix[labels, predicted])],
            "bins": self.bins.tolist(),
            **{name: getattr(self, name) for name in _COUNTED},
        }

    def add_counts(self, counts: Mapping[str, Any]) -> None:
        """Add what `count` returned of other images of as many classes."""
        labels, predicted, numbers = counts["matrix"]
        self.matrix[labels, predicted] += np.array(numbers, np.int64)
        self.bins += np.array(counts["bins"])
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + counts[name])

    def _keep_mistakes(
        self, wrong: np.ndarray, right_share: np.ndarray, make: Callable[[int], Example]
    ) -> None:
        worst = wrong[np.argsort(right_share[wrong], kind="stable")][: self.num_mistakes]
        mistakes = [*self.mistakes, *map(make, worst.tolist())]
        self.mistakes = sorted(mistakes, key=_rank)[: self.num_mistakes]

    def _keep_samples(self, labels: np.ndarray, make: Callable[[int], Example]) -> None:
        for row, label in enumerate(labels.tolist()):
            if label not in self.samples and len(self.samples) == _NUM_CLASSES_SHOWN:
                continue
            kept = self.samples.setdefault(label, [])
            if len(kept) < self._num_samples:
                kept.append(make(row))


def look(
    reader: Iterable[Mapping[str, np.ndarray]],
    infer: Callable[[Mapping[str, np.ndarray]], object],
    into: Findings,
) -> None:
    """Count what `infer`, which gives probabilities `[B, classes]`, says of a pass."""
    for batch in reader:
        image = np.asarray(batch["image"])
        into.add(np.array(batch["label"]), np.asarray(infer({"image": image})), image)


def to_picture(image: np.ndarray) -> np.ndarray | None:
    """Return an image in 0..255 as uint8 of its own; None where it is neither gray nor RGB.

    >>> to_picture(np.full((1, 1, 1), 254.6, np.float32)).item()
    255
    """
    if image.ndim != 3 or image.shape[-1] not in (1, 3):
        return None
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


Exchange = Callable[[str, object], list[Any]]
"""Takes a name and a value of this process, as JSON holds it; returns those of all processes."""


def gather(
    findings: Findings | None, index: int, exchange: Exchange, begin: Callable[[int], Findings]
) -> Findings | None:
    """Return counts and worst mistakes of all processes, with this one's samples; collective.

    Of the pictures only those travel that will be shown. A process that had no image has no
    findings. `begin` returns empty ones of so many classes.

    >>> def exchange(name, value):  # with a process that had no image
    ...     return [None if name.endswith("counts") else [], value]
    >>> findings = Findings(2, num_mistakes=1, num_samples=0)
    >>> findings.add(np.array([0]), np.array([[0.3, 0.7]]), np.zeros((1, 4, 4, 1)))
    >>> begin = lambda num_classes: Findings(num_classes, num_mistakes=1, num_samples=0)
    >>> together = gather(findings, 1, exchange, begin)
    >>> together.num_images, together.mistakes[0].process
    (1, 1)
    """
    own = findings and {**findings.count(), "ranks": [*map(_rank, findings.mistakes)]}
    parts = exchange("Report's counts", own)
    counts = [part for part in parts if part is not None]
    if not counts:
        return None
    together = begin(counts[0]["num_classes"])
    for part in counts:
        together.add_counts(part)
    places = [
        (rank, process, number)
        for process, part in enumerate(parts)
        for number, rank in enumerate([] if part is None else part["ranks"])
    ]
    worst = [(process, number) for _, process, number in sorted(places)[: together.num_mistakes]]
    shown = [] if findings is None else [findings.mistakes[n] for p, n in worst if p == index]
    sent = [*map(iter, exchange("Report's mistakes", [*map(_encode, shown)]))]
    together.mistakes = [_decode(next(sent[process]), process) for process, _ in worst]
    together.samples = {} if findings is None else findings.samples
    return together


def _rank(example: Example) -> tuple[float, float]:
    """Return what sorts mistakes, the worst first."""
    return example.right_share, -example.sureness


def _encode(example: Example) -> dict[str, object]:
    values, image = {**vars(example), "image": None}, example.image
    if image is not None:
        packed = base64.b64encode(zlib.compress(image.tobytes())).decode()
        values["image"] = [packed, *image.shape]
    return values


def _decode(values: dict[str, Any], process: int) -> Example:
    image = None
    if values["image"] is not None:
        packed, *shape = values["image"]
        pixels = zlib.decompress(base64.b64decode(packed))
        image = np.frombuffer(pixels, np.uint8).reshape(shape)
    return dataclasses.replace(Example(**values), image=image, process=process)


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
    """Ask a network about the images of a reader; the arguments are those of `Report`."""

    reader: ReaderLike
    infer: Callable[[Batch], object] | None
    image: str | None
    label: str
    classes: tuple[str, ...] | None
    num_mistakes: int
    num_samples: int

    def check(self, trainer: Training | None) -> None:
        """Raise where there is nothing to ask, before training."""
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
        """Return what the network says; waits for the device, and all processes call it.

        All have the counts and the worst mistakes of all. `train_order` is taken where there is no
        `feed_order`, and enough of it. What is wrong with a batch is a ValueError, on another
        process a RuntimeError.
        """
        group = None if trainer is None else trainer.builder.programs.group
        exchange: Exchange = (lambda name, value: [value]) if group is None else group.exchange
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
            for number, (_, problem) in enumerate(rows):
                if problem is not None:
                    raise RuntimeError(f"process {number} could not ask the network: {problem}")
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
            findings = gather(findings, group.index, exchange, self.begin)
        if findings is None:
            raise ValueError("the reader yielded no batch, expected at least one.")
        names = self.classes or tuple(map(str, range(len(findings.matrix))))
        return Answers(findings=findings, names=names)

    def begin(self, num_classes: int) -> Findings:
        """Return empty findings of a network of so many classes."""
        if self.classes is not None and len(self.classes) != num_classes:
            raise ValueError(
                f"Report got {len(self.classes)} classes, expected {num_classes}. The network "
                "gives as many numbers for an image."
            )
        return Findings(num_classes, num_mistakes=self.num_mistakes, num_samples=self.num_samples)

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
        for argument, name in (("label", self.label), ("image", self.image)):
            if name is not None:
                why = "They are the entries of a batch of the reader."
                check_known(f"Report got {argument}=", name, batch, why, ValueError)
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
            # Its rows again, until they are as many; a number stays as it is.
            shapes = {name: (most, *np.shape(x)[1:]) for name, x in feed.items() if np.ndim(x)}
            feed = {**feed, **{name: np.resize(feed[name], shapes[name]) for name in shapes}}
        answers = self._questions.ask_network(feed, self._trainer)
        if batch is None or not size:
            return
        labels, images = self._questions.take(batch)
        if size < most:
            answers = answers[:size]
        if self.findings is None:
            self._limits = _find_limits(images)
            rows = answers[np.isfinite(answers).all(axis=1)]
            sums = np.abs(rows.sum(axis=1) - 1)
            self._is_logits = bool(np.any(rows < 0) or np.any(sums >= _TOLERANCE))
            self.findings = self._questions.begin(answers.shape[1])
        _check_labels(labels, answers)
        shares = _softmax(answers) if self._is_logits else answers
        self.findings.add(labels, shares, _scale(images, self._limits))


def _make_fields(
    trainer: Training | None, feed_order: FeedOrder | None, train_order: FeedOrder | None
) -> Fields:
    if trainer is None:
        # What is asked then is the user's function: any names will do.
        return Fields({}, feed_order)
    inputs = trainer.builder.programs.network.inputs["test"]
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
