"""The programs of a run: a network of the model library, its preprocessing, its metrics."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp

from penstock import Precision, ProgramBuilder, Trainer, layers, models, preprocessing
from penstock.commands._flags import PerformanceFlags, TrainFlags
from penstock.models.classification import AUXILIARY_WEIGHT
from penstock.models.weights import build_forward


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a network is made for.

    Arguments:
      image_shape: `[H, W, C]` of its images.
      preprocessing: its device part runs in the programs; None for none.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    preprocessing: preprocessing.Preprocessing | None


def make_network(
    flags: TrainFlags, shape: Shape, *, counts_auxiliary: bool = True
) -> models.Classifier:
    """Return the programs of the network that flags name.

    Arguments:
      counts_auxiliary: an auxiliary head adds to the loss; not where it has no weights.
    """
    # A decay that is named, or FastNN's, holds from the first step: nothing warms up.
    is_fixed = flags.fastnn_compat or flags.model.batch_norm_decay is not None
    settings = models.Settings(
        weight_decay=0.0 if flags.fastnn_compat else flags.model.weight_decay,
        # FastNN never runs the updates of the running statistics.
        batch_norm_decay=1.0 if flags.fastnn_compat else flags.model.batch_norm_decay,
        batch_norm_warmup=False if is_fixed else None,
        # FastNN's statistics are those of a device's share.
        batch_norm_group_size=flags.model.batch_norm_group_size
        or (flags.model.batch_size if flags.fastnn_compat else None),
    )
    model = models.get(flags.model.model_name, settings)
    height, _, channels = shape.image_shape
    model = dataclasses.replace(model, num_channels=channels)
    seen: list[jax.Array] = []
    is_mnist_of_fastnn = flags.fastnn_compat and flags.dataset.dataset_name == "mnist"
    if is_mnist_of_fastnn:
        model = dataclasses.replace(model, function=_keep_logits(model, seen))
    made = models.classifier(
        model,
        shape.num_classes,
        image_size=height,
        label_smoothing=flags.model.label_smoothing,
        auxiliary_weight=AUXILIARY_WEIGHT if counts_auxiliary else 0.0,
        preprocess=None if shape.preprocessing is None else shape.preprocessing.device,
    )
    if is_mnist_of_fastnn:
        return made._replace(train_program=_add_broadcast_accuracy(made.train_program, seen))
    return made


@contextlib.contextmanager
def name_smallest_size(model: models.Model, size: int) -> Iterator[None]:
    """Name the smallest images that a network takes where it is built for smaller ones.

    Arguments:
      size: height and width in pixels, of the network that is built inside.

    Raises:
      ValueError: nothing is left of images of that size on the way through the network.
    """
    try:
        yield
    except ValueError as error:
        smallest = _smallest_size(model, size)
        if smallest == size:
            raise
        raise ValueError(
            f"--train_image_size got {size}, expected {smallest} or more. With smaller "
            f"images, {model.name!r} has nothing left before its last layer. Leave the flag out "
            f"for {model.default_image_size}, the network's own."
        ) from error


def _smallest_size(model: models.Model, size: int) -> int:
    """Return the smallest image size from `size` on that a network takes, else `size`."""
    if _accepts(model, size):
        return size
    # Building for a size that is too small ends early, at the layer that refuses it. One that fits
    # takes seconds for the largest networks. So the search begins with the small sizes.
    least, step = size, 1
    while not _accepts(model, least + step):
        least, step = least + step, 2 * step
        # Its size is not the reason: the network's own images would be refused too.
        if least > model.default_image_size:
            return size
    sizes = range(least + 1, least + step + 1)
    return sizes[bisect.bisect_left(sizes, True, key=lambda each: _accepts(model, each))]


def _accepts(model: models.Model, size: int) -> bool:
    try:
        build_forward(model, 2, size)
    except ValueError:
        return False
    return True


def make_precision(flags: PerformanceFlags) -> Precision:
    """Return the precision that the flags ask for; only float16 has a loss scale."""
    name = flags.precision_name
    return Precision(name, flags.loss_scale if name == "float16" else None)


def find_last_layers(flags: TrainFlags, shape: Shape, trainer: Trainer) -> set[str]:
    """Return the names of the parameters whose shape depends on the number of classes."""
    # Found by building for one class more, not by names, which differ from network to network.
    wider = dataclasses.replace(shape, num_classes=shape.num_classes + 1)
    builder = ProgramBuilder(make_network(flags, wider).train_program)
    shapes = {row.name: row.shape for row in builder.parameter_table()}
    rows = trainer.builder.parameter_table()
    return {row.name for row in rows if shapes.get(row.name) != row.shape}


def _keep_logits(
    model: models.Model, seen: list[jax.Array]
) -> Callable[..., tuple[jax.Array, models.EndPoints]]:
    """Return the network's function, which also puts its logits into a list."""

    def function(
        images: jax.Array, num_classes: int | None, *, settings: models.Settings
    ) -> tuple[jax.Array, models.EndPoints]:
        logits, points = dataclasses.replace(model, settings=settings)(images, num_classes)
        # Past the classifier, whose metrics have no logits. Emptied in the same trace, as tracers
        # must be.
        seen[:] = [logits]
        return logits, points

    return function


def _add_broadcast_accuracy(
    train_program: Callable[[], dict[str, jax.Array]], seen: list[jax.Array]
) -> Callable[[], dict[str, jax.Array]]:
    """Return the program with the accuracy that FastNN logs for mnist.

    Its labels have a shape of `[B, 1]`, so that each prediction is compared with each label: what
    is logged is the sum over classes of the share predicted times the share labelled.
    """

    def program() -> dict[str, jax.Array]:
        metrics = train_program()
        logits = seen.pop()
        label = layers.data("label", shape=[1], dtype="int32")
        predicted = jnp.argmax(logits, axis=-1)[:, None]
        shares = [
            layers.mean((predicted == number).astype(jnp.float32))
            * layers.mean((label == number).astype(jnp.float32))
            for number in range(logits.shape[-1])
        ]
        return metrics | {"accuracy": jnp.sum(jnp.stack(shares))}

    return program
