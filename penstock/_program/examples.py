"""The examples of a batch: which axis they lie on, their weights, exact sums and means over them.

Every sum and mean counts the valid examples of the *global* batch once: padding weighs nothing, and
partial sums are added up over the devices.
"""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp

from penstock import _mesh
from penstock._errors import ProgramError
from penstock._program.sequences import Sequence

REDUCED_SCOPE = "penstock.reduced"
"""The scope, in a probe's trace, of what is reduced over the whole batch, right on any device."""

PER_DEVICE_SCOPE = "penstock.per_device"
"""The scope of what each device is meant to have of its own: batch norm's statistics."""

# One probe of a prime size took a parameter of [502, 3] for a batch. The second costs 10 ms for a
# small network, and 0.7 s for ResNet-50.
PROBE_BATCH_SIZES = (480, 672)
"""The batch sizes of the two probes of a program. They share many divisors, so that a function that
takes its batch apart in halves or eighths is traced too."""


def count_rows(shape: tuple[int, ...], batch_size: int) -> int:
    """Return how many rows of axis 0 belong to one example, 0 when there is no batch axis."""
    # Several rows to an example are a batch axis too: time steps, joined batches.
    if not shape or shape[0] == 0 or shape[0] % batch_size:
        return 0
    return shape[0] // batch_size


def format_shape(shape: tuple[int, ...], other: tuple[int, ...]) -> str:
    """Return a shape as errors show it, `[B, 3]`, from the shapes of both probes."""
    first, second = PROBE_BATCH_SIZES
    if len(shape) != len(other):
        return "that the batch size changes"
    sizes = []
    for a, b in zip(shape, other, strict=True):
        is_multiple = a % first == 0 and a * second == b * first
        # Of the first size; that the second has as many is what `is_multiple` says.
        count = "B" if a == first else f"{a // first}*B"
        sizes.append(str(a) if a == b else count if is_multiple else "?")
    return f"[{', '.join(sizes)}]"


_SHAPE_WITH_BATCH = re.compile(r"\(((?:[\d.*B]+, )*(?:\d+\*)?B(?:, [\d.*B]+)*),?\)")
"""A tuple such as `(B, 3)`, which is shown as `[B, 3]`."""


def name_batch(message: str, other: str) -> str:
    """Return a message of the first probe with `B` where its batch size stands.

    Arguments:
      other: the same message of the second probe; what differs between the two are batch sizes.
    """
    first, second = PROBE_BATCH_SIZES
    parts, others = re.split(r"(\d+)", message), re.split(r"(\d+)", other)
    # Another text, and not only other numbers: nothing can be told.
    if parts[::2] != others[::2]:
        return message
    for number in range(1, len(parts), 2):
        a, b = int(parts[number]), int(others[number])
        if a != b and a * second == b * first:
            count = a // first if a % first == 0 else a / first
            parts[number] = "B" if count == 1 else f"{count}*B"
    return _SHAPE_WITH_BATCH.sub(r"[\1]", "".join(parts))


class RowAnswers:
    """Which arrays of one run have a batch axis, in the order in which layers ask.

    The first probe of a program guesses from sizes. The second, of another batch size, knows which
    axes have changed. A wrong guess, about a layer with as many units as the probe has examples, is
    mended by a third, told what the second found. Real runs repeat what the probes found.

    Attributes:
      batch_size: of this run, on one device.
      answers: the rows per example of each array asked about, in order.
      module_answers: those of the inputs of flax modules, by path.
    """

    def __init__(
        self, batch_size: int, *, first: RowAnswers | None = None, known: RowAnswers | None = None
    ) -> None:
        self.batch_size = batch_size
        self.answers: list[int] = []
        self.module_answers: dict[tuple[str, ...], int] = {}
        self._first = first
        self._known = known.answers if known else []
        self._known_modules = known.module_answers if known else {}
        self._shapes: dict[int | tuple[str, ...], tuple[int, ...]] = {}
        self.is_guessing = first is None and known is None

    def agrees_with(self, other: RowAnswers) -> bool:
        """Return whether another probe was given the same answers."""
        return (self.answers, self.module_answers) == (other.answers, other.module_answers)

    def answer(self, shape: tuple[int, ...]) -> int:
        """Return how many rows of axis 0 belong to one example, 0 when it is no batch axis.

        Raises:
          ProgramError: the batch axis is not the first.
        """
        # By order of asking: real runs ask in the order of the probes, as the same code runs.
        number = len(self.answers)
        is_known = number < len(self._known)
        self.answers.append(self._known[number] if is_known else self._find(number, shape))
        return self.answers[-1]

    def answer_module(self, path: tuple[str, ...], shape: tuple[int, ...]) -> int:
        """Return the same for the input of a flax module; its first call decides.

        Kept by path, since lifted transformations may trace one module several times.
        """
        if path not in self.module_answers:
            known = self._known_modules
            self.module_answers[path] = known[path] if path in known else self._find(path, shape)
        return self.module_answers[path]

    def _find(self, key: int | tuple[str, ...], shape: tuple[int, ...]) -> int:
        self._shapes[key] = shape
        if self._first is None or key not in self._first._shapes:
            # The first probe: by the size alone.
            return count_rows(shape, self.batch_size)
        other = self._first._shapes[key]
        rows = compare_rows(other, shape)
        if rows is None:
            raise ProgramError(
                f"a mean over examples got an array of shape {format_shape(other, shape)}, "
                "expected the batch axis B first and nowhere else. Padding rows of a short batch "
                "are left out along axis 0. Move the batch axis to the front, e.g. with "
                "jnp.moveaxis."
            )
        return rows


def compare_rows(shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """Return the rows per example, from the shapes of one array in both probes.

    0 without a batch axis, None where the batch axis is not the first alone.
    """
    if shape == other:
        return 0
    if len(shape) == len(other) and shape[1:] == other[1:]:
        rows = count_rows(shape, PROBE_BATCH_SIZES[0])
        if rows and rows == count_rows(other, PROBE_BATCH_SIZES[1]):
            return rows
    return None


def align(vector: jax.Array, num_axes: int, axis: int = -1) -> jax.Array:
    """Return a vector shaped to meet axis `axis` of an array of `num_axes` axes.

    Written out because users may run JAX with `jax_numpy_rank_promotion="raise"`.
    """
    shape = [1] * num_axes
    shape[axis] = vector.shape[0]
    return vector.reshape(shape)


class MicroBatch(NamedTuple):
    """Where a batch lies that is one part of a device's share of a batch, or the whole share.

    Means are those of the part alone; the step weights them by the parts' examples, and adds them
    up over parts and devices after the last.

    Attributes:
      first_row: the position of its first row in the global batch.
      total_weight: the number of valid examples of the global batch.
      word_counts: the words of the global batch, for each mean over words in the order of asking;
        None where they are still to be counted.
    """

    first_row: jax.Array | int
    total_weight: jax.Array
    word_counts: jax.Array | None = None


class Examples:
    """One device's share of a batch.

    Arguments:
      weights: of the examples, `[B]`: 1, or 0 where a row is padding.
      rows: which arrays have a batch axis.
      is_probe: nothing has a value; reductions are noted in the trace.

    Attributes:
      total_weight: the number of valid examples that means are taken over.
      first_row: the position of the first row in the global batch.
      needs_all_devices: a layer has used the other devices' examples for more than a mean or a sum.
      word_counts: the words of this share, for each mean over words in the order of asking.
      word_means: of each mean over words, by its id, itself and the words of the global batch.
    """

    def __init__(
        self,
        weights: jax.Array,
        num_devices: int,
        rows: RowAnswers,
        micro_batch: MicroBatch | None = None,
        *,
        is_probe: bool = False,
    ) -> None:
        self.weights, self.num_devices, self.rows = weights, num_devices, rows
        self.batch_size: int = weights.shape[0]
        self.micro_batch, self.is_probe = micro_batch, is_probe
        self.needs_all_devices = False
        self.word_counts: list[jax.Array] = []
        self.word_means: dict[int, tuple[jax.Array, jax.Array]] = {}
        # A micro-batch is averaged by itself; the devices' are added up after the last.
        self.num_averaged = num_devices if micro_batch is None else 1
        # Made here, in the outermost trace: made lazily inside a scan body it would leak from it.
        with self.note(PER_DEVICE_SCOPE):  # not of the user's own, which micro-batches refuse
            self.total_weight = _mesh.psum(jnp.sum(weights), self.num_averaged)
        if micro_batch is None:
            # Every device has as many rows: the batch is padded to that.
            self.first_row = _mesh.device_index(num_devices) * self.batch_size
        else:
            self.first_row = micro_batch.first_row
            # One of nothing but padding counts nothing: its means must only not be nan.
            self.total_weight = jnp.where(self.total_weight > 0, self.total_weight, 1)

    def note(self, scope: str) -> contextlib.AbstractContextManager[object]:
        """Mark in a probe's trace what is computed inside; other traces stay as they are."""
        return jax.named_scope(scope) if self.is_probe else contextlib.nullcontext()

    def count_rows(self, value: jax.Array) -> int:
        """Return how many rows of axis 0 belong to one example; 0 when axis 0 is no batch axis."""
        return self.rows.answer(value.shape)

    def row_ids(self, num_rows: int) -> jax.Array:
        """Return the position in the global batch of this device's rows, shape `[num_rows]`."""
        with self.note(PER_DEVICE_SCOPE):
            return jnp.arange(num_rows) + self.first_row * (num_rows // self.batch_size or 1)

    def row_weights(self, num_rows: int) -> jax.Array:
        """Return the example weights repeated to `num_rows`, shape `[num_rows]`."""
        return jnp.repeat(self.weights, num_rows // self.batch_size)

    def sum(
        self, value: jax.Array, axes: tuple[int, ...] | None = None, keep_axes: bool = False
    ) -> jax.Array:
        """Return the sum over axes, all by default; over axis 0 of the valid examples of the batch.

        A value without a batch axis is summed as it is.
        """
        value = jnp.asarray(value)
        if not self.count_rows(value) or (axes is not None and 0 not in axes):
            return jnp.sum(value, axes, keepdims=keep_axes)
        with self.note(REDUCED_SCOPE):
            # Multiplied, not chosen: padding repeats an example, and is as finite as it.
            weights = align(self.row_weights(value.shape[0]), value.ndim, 0)
            total = jnp.sum(value * weights.astype(value.dtype), axes, keepdims=keep_axes)
            total = _mesh.psum(total, self.num_averaged)
            if self.micro_batch is None:
                return total
            # The step weights a micro-batch by its share of the examples, of which this is the
            # inverse.
            return total * (self.micro_batch.total_weight / self.total_weight)

    def mean(self, value: jax.Array) -> jax.Array:
        """Return the mean over the valid examples of the global batch, a scalar.

        A value without a batch axis is averaged as it is.
        """
        value = jnp.asarray(value)
        rows = self.rows.answer(value.shape)
        with self.note(REDUCED_SCOPE):
            if not rows:
                # The same on every device, or one value of each: the mean serves both.
                return _mesh.pmean(jnp.mean(value), self.num_averaged)
            weights = self.row_weights(value.shape[0])
            per_row = jnp.sum(value.reshape(value.shape[0], -1), axis=1)
            total = _mesh.psum(jnp.sum(per_row * weights), self.num_averaged)
            return total / (self.total_weight * (value.size // self.batch_size))

    def mean_words(self, value: Sequence) -> jax.Array:
        """Return the mean over the words of the valid examples of the global batch, a scalar.

        0 where there is no word.
        """
        # Each word counts alike, so a device's mean is no mean of its examples.
        self.needs_all_devices |= self.num_devices > 1
        with self.note(REDUCED_SCOPE):
            weights = align(self.row_weights(value.mask.shape[0]), 2, 0) * value.mask
            masked = value.masked()
            per_word = jnp.sum(masked.reshape(*masked.shape[:2], -1), axis=2)
            total = _mesh.psum(jnp.sum(per_word * weights), self.num_averaged)
            count = self._count_words(jnp.sum(weights))
            elements = masked.size // weights.size
            mean = total / (jnp.maximum(count, 1) * elements).astype(total.dtype)
            if self.micro_batch is not None:
                # As a sum is: the step weights it by its share of the examples.
                mean = mean * (self.micro_batch.total_weight / self.total_weight)
        self.word_means[id(mean)] = (mean, count)
        return mean

    def _count_words(self, count: jax.Array) -> jax.Array:
        """Return the words of the global batch, from those of this share."""
        number = len(self.word_counts)
        self.word_counts.append(count)
        known = None if self.micro_batch is None else self.micro_batch.word_counts
        return _mesh.psum(count, self.num_averaged) if known is None else known[number]
