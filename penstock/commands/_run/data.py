"""The data of a run: readers of batches that are ready for the network, and what is known."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from penstock import models, preprocessing, readers
from penstock.commands._flags import TrainFlags
from penstock.commands._flags.data import known_datasets
from penstock.commands._run.network import Shape
from penstock.commands._run.preparation import Preparation, preparation_of, starting_weights
from penstock.commands._run.samples import HostPart, as_bytes, entries_of
from penstock.commands._run.sources import Source, open_source

FASTNN_NUM_CLASSES = 100
_ONE_SIZE = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
# What FastNN's page says, where mnist and flowers stand in each other's row.
_FASTNN_SIZES = {"mnist": 3320, "cifar10": 50_000, "flowers": 60_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What a run reads.

    Arguments:
      train: yields batches of `image` and `label`.
      test: the same of the held-out part; None where there is none.
      class_names: of those that the network tells apart.
      shape: what the network is made for.
      preparation: how images become what it takes; None where they are made so.
      stored_shape: `[H, W, C]` of the stored images, where all have one.
      notes: what a person should know about how it is read, a sentence each.
    """

    train: Any
    test: Any
    preparation: Preparation | None
    num_train: int
    num_test: int | None
    class_names: tuple[str, ...]
    shape: Shape
    stored_shape: tuple[int, ...] | None
    batch_size: int
    samples_per_epoch: int
    notes: tuple[str, ...] = ()

    @property
    def steps_per_epoch(self) -> int:
        """How many batches an epoch has."""
        return -(-self.num_train // self.batch_size)

    @property
    def epochs_of_schedule(self) -> float:
        """How many steps an epoch counts for the schedule: samples over samples a step."""
        return max(self.samples_per_epoch / self.batch_size, 1.0)


def open_data(flags: TrainFlags, *, batch_size: int, shard: readers.Shard) -> Data:
    """Open the data set of a run.

    Arguments:
      batch_size: of all devices together.

    Raises:
      DatasetNotFoundError, FileNotFoundError: its files are not there.
      ValueError: what was asked for does not fit the data.
    """
    if flags.dataset.dataset_name == "mock":
        return _mock(flags, batch_size, shard)
    dataset = flags.dataset
    if flags.fastnn_compat and dataset.dataset_name in _FASTNN_SIZES:
        dataset = dataclasses.replace(dataset, train_files=None)  # FastNN has its own list
    elif flags.fastnn_compat and dataset.dataset_name not in known_datasets():
        raise ValueError(
            f"--dataset_name got {dataset.dataset_name!r}, expected one that is registered: FastNN "
            "fails on others, whatever --train_files says, and --fastnn_compat=True keeps to that."
        )
    on_error = flags.preprocessing.on_error
    source = open_source(dataset, "train", on_error)
    try:
        test = open_source(dataset, "test", on_error)
    except readers.DatasetNotFoundError:
        test = None
    chosen = preparation_of(flags, starting_weights(flags))
    return _of_sources(flags, chosen, source, test, batch_size, shard)


def open_split(
    flags: TrainFlags, split: str, weights: Path, *, batch_size: int
) -> tuple[Data, Any, int]:
    """Open one split for evaluation; return the data, its reader and how many samples it has.

    Arguments:
      weights: what is evaluated.

    Raises: as `open_data`.
    """
    source = open_source(flags.dataset, split, flags.preprocessing.on_error)
    chosen = preparation_of(flags, weights)
    data = _of_sources(flags, chosen, source, source, batch_size, readers.Shard())
    return data, data.test, source.num_samples


def _of_sources(
    flags: TrainFlags,
    preparation: Preparation,
    source: Source,
    test: Source | None,
    batch_size: int,
    shard: readers.Shard,
) -> Data:
    model = models.get(flags.model.model_name)
    chosen = preparation.preprocessing
    width, notes = _width(flags, source)
    image = as_bytes(entries_of(source.first)[0])
    is_mnist_of_fastnn = flags.fastnn_compat and flags.dataset.dataset_name == "mnist"
    channels = 3 if is_mnist_of_fastnn else _channels(model, chosen, image.shape[-1])
    size = flags.preprocessing.train_image_size or model.default_image_size
    part = HostPart(
        crop=chosen.for_training(size),
        num_channels=channels,
        num_classes=width,
        labels_offset=flags.dataset.labels_offset,
    )
    still = dataclasses.replace(part, crop=chosen.for_evaluation(size))
    batch_size, said = _fitting(flags, batch_size, source.num_samples)
    options = _options(flags, batch_size, shard)
    names = source.class_names or tuple(map(str, range(width)))
    return Data(
        train=source.make(augment=part, shuffle=_is_shuffled(flags), **options),
        test=None if test is None else test.make(decode=still, **options),
        num_train=source.num_samples,
        num_test=None if test is None else test.num_samples,
        class_names=_shifted(names, flags.dataset.labels_offset, width),
        shape=Shape(image_shape=(size, size, channels), num_classes=width, preprocessing=chosen),
        stored_shape=_stored_shape(flags, image),
        batch_size=batch_size,
        samples_per_epoch=_samples_per_epoch(flags, source.num_samples),
        preparation=preparation,
        notes=(*preparation.notes, *said, *notes),
    )


def resolved(flags: TrainFlags, data: Data) -> TrainFlags:
    """Return the flags with what the data and the network decided in the place of None."""
    dataset = dataclasses.replace(flags.dataset, num_classes=data.shape.num_classes)
    name = flags.preprocessing.preprocessing_name
    name = data.preparation.name if data.preparation is not None else name
    prepared = dataclasses.replace(
        flags.preprocessing, preprocessing_name=name, train_image_size=data.shape.image_shape[0]
    )
    return dataclasses.replace(flags, dataset=dataset, preprocessing=prepared)


def _mock(flags: TrainFlags, batch_size: int, shard: readers.Shard) -> Data:
    model = models.get(flags.model.model_name)
    size = flags.preprocessing.train_image_size or model.default_image_size
    shape = (size, size, model.num_channels)
    train: Any = readers.dataset("mock", "train", batch_size, image_shape=shape, shard=shard)
    num_classes = flags.dataset.num_classes or FASTNN_NUM_CLASSES
    num_train = len(train) * batch_size
    return Data(
        train=train,
        test=None,
        num_train=num_train,
        num_test=None,
        class_names=tuple(map(str, range(num_classes))),
        shape=Shape(image_shape=shape, num_classes=num_classes, preprocessing=None),
        preparation=None,
        stored_shape=shape,
        batch_size=batch_size,
        samples_per_epoch=_samples_per_epoch(flags, num_train),
    )


def _options(flags: TrainFlags, batch_size: int, shard: readers.Shard) -> dict[str, Any]:
    read = flags.preprocessing
    in_flight = read.num_parallel_batches * flags.model.batch_size
    return {
        "batch_size": batch_size,
        "seed": flags.performance.seed,
        "shard": shard,
        "num_workers": min(read.num_preprocessing_threads, in_flight),
        "look_ahead": read.prefetch_buffer_size,
        "cache_records": read.datasets_use_caching,
        "on_error": read.on_error,
    }


def _fitting(flags: TrainFlags, batch_size: int, num_samples: int) -> tuple[int, tuple[str, ...]]:
    """Return the size of a batch of all devices, no larger than the data; and what to say.

    Raises:
      ValueError: a device's share cannot be cut into so many parts.
    """
    num_devices = batch_size // flags.model.batch_size
    share = min(flags.model.batch_size, -(-num_samples // num_devices))
    parts = flags.model.gradient_accumulation_steps
    if parts > share:
        raise ValueError(
            f"--gradient_accumulation_steps got {parts}, expected {share} or less: a device gets "
            f"{share} images a step, and a part of none would be padding."
        )
    if share == flags.model.batch_size:
        return batch_size, ()
    said = f"--batch_size={flags.model.batch_size} is more than there are: a step takes all"
    return share * num_devices, (f"{said} {num_samples:,} images",)


def _is_shuffled(flags: TrainFlags) -> bool:
    return flags.preprocessing.shuffle_buffer_size > 1


def _width(flags: TrainFlags, source: Source) -> tuple[int, tuple[str, ...]]:
    """Return how many classes the network tells apart, and what to say about it."""
    asked, offset = flags.dataset.num_classes, flags.dataset.labels_offset
    if asked is not None:
        needed = None if source.largest_label is None else source.largest_label - offset + 1
        if needed is not None and asked < needed:
            raise ValueError(
                f"--num_classes got {asked}, expected at least {needed}: the data has the labels 0 "
                f"to {source.largest_label}, less --labels_offset={offset}. Leave it out for the "
                "data's own number."
            )
        return asked, ()
    if source.num_classes is not None:
        if source.num_classes - offset < 2:
            raise ValueError(
                f"--dataset_name={flags.dataset.dataset_name} got {source.num_classes} class, less "
                f"--labels_offset={offset}, expected two or more: there is nothing to tell apart."
            )
        return source.num_classes - offset, ()
    note = (
        f"nothing says how many classes the data has: {FASTNN_NUM_CLASSES}, as FastNN; "
        "--num_classes, or a labels.txt beside the files, says otherwise"
    )
    return FASTNN_NUM_CLASSES, (note,)


def _channels(model: models.Model, chosen: preprocessing.Preprocessing, stored: int) -> int:
    """Return how many channels the network gets: colours stay where they can."""
    if stored == 3 and 3 in chosen.channels:
        return 3
    return model.num_channels if model.num_channels in chosen.channels else chosen.channels[0]


def _shifted(names: tuple[str, ...], offset: int, width: int) -> tuple[str, ...]:
    """Return the names of the classes that the network has after the labels' offset."""
    return tuple(
        names[i + offset] if 0 <= i + offset < len(names) else f"class {i}" for i in range(width)
    )


def _stored_shape(flags: TrainFlags, image: np.ndarray) -> tuple[int, ...] | None:
    is_fixed = flags.dataset.dataset_name in _ONE_SIZE
    return tuple(image.shape) if is_fixed else None


def _samples_per_epoch(flags: TrainFlags, num_samples: int) -> int:
    if flags.fastnn_compat and flags.dataset.dataset_name in _FASTNN_SIZES:
        return _FASTNN_SIZES[flags.dataset.dataset_name]
    return flags.dataset.num_sample_per_epoch or num_samples
