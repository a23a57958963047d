"""The data of a run: readers of batches that are ready for the network, and facts about them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import models, preprocessing, readers
from penstock._errors import listed
from penstock.commands._failures import UsageError
from penstock.commands._flags import TrainFlags, list_datasets
from penstock.commands._image_folders import SplitName
from penstock.commands._run.network import Shape
from penstock.commands._run.preparation import (
    Preparation,
    choose_preparation,
    find_starting_weights,
)
from penstock.commands._run.splits import (
    BatchReader,
    PrepareSample,
    Split,
    find_part,
    get_image_and_label,
    open_split,
    to_bytes,
)
from penstock.commands._run_folder.folder import RunFolder, find_run_folder, read_facts

FASTNN_NUM_CLASSES = 100
_ONE_SIZE = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
# What FastNN's page says, where mnist and flowers stand in each other's row.
_FASTNN_SIZES = {"mnist": 3320, "cifar10": 50_000, "flowers": 60_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a run, and facts about it.

    Arguments:
      train: yields batches of `image` and `label`.
      test: the same of the part that is tested on during the run, and the best network chosen on;
        None where there is none.
      final_test: the same of a part that nothing is chosen on, where there is one beside that.
      preparation: the preprocessing of the images; None where they are made as the network takes
        them.
      class_names: of the network's classes.
      shape: what the network is made for.
      stored_shape: `[H, W, C]` of the stored images, where all have the same.
      notes: sentences about it for the first lines of the run.
      names_digests: of the names of the images to train and to test on, where each is a file.
      test_part: the name of the part that is tested on, such as `val`.
      test_files: the paths of its images in their folder, where each is a file.
    """

    train: BatchReader
    test: BatchReader | None
    final_test: BatchReader | None = None
    preparation: Preparation | None
    num_train: int
    num_test: int | None
    num_final_test: int | None = None
    class_names: tuple[str, ...]
    shape: Shape
    stored_shape: tuple[int, ...] | None
    batch_size: int
    samples_per_epoch: int
    notes: tuple[str, ...] = ()
    names_digests: tuple[str | None, ...] = ()
    test_part: str = ""
    test_files: tuple[str, ...] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-self.num_train // self.batch_size)

    @property
    def schedule_steps_per_epoch(self) -> float:
        """Steps of an epoch for the learning rate's schedule, not always a whole number."""
        return max(self.samples_per_epoch / self.batch_size, 1.0)


def open_data(flags: TrainFlags, *, batch_size: int, shard: readers.Shard) -> Data:
    """Open the data set of a run.

    Arguments:
      batch_size: of all devices together.

    Raises:
      DatasetNotFoundError, FileNotFoundError: its files are not there.
      ValueError: flags do not fit the data.
    """
    if flags.dataset.dataset_name == "mock":
        return _mock(flags, batch_size, shard)
    dataset = flags.dataset
    if flags.fastnn_compat and dataset.dataset_name in _FASTNN_SIZES:
        # FastNN has its own list.
        dataset = dataclasses.replace(dataset, train_files=None)
    elif flags.fastnn_compat and dataset.dataset_name not in list_datasets():
        raise ValueError(
            f"--dataset_name got {dataset.dataset_name!r}, expected one that is registered: FastNN "
            "fails on others, whatever --train_files says, and --fastnn_compat=True keeps to that."
        )
    flags = dataclasses.replace(flags, dataset=dataset)
    source = open_split(flags, "train")
    test = final_test = None
    # A run needs nothing to test on.
    with contextlib.suppress(readers.DatasetNotFoundError):
        test = open_split(flags, "validation")
        # What the best network is chosen on says too much good of it.
        if find_part(flags.dataset, "test") != test.part:
            final_test = open_split(flags, "test")
    chosen = choose_preparation(flags, find_starting_weights(flags))
    return _prepare(flags, chosen, (source, test, final_test), batch_size, shard)


def open_for_evaluation(
    flags: TrainFlags, split: SplitName, weights: Path, *, batch_size: int
) -> tuple[Data, BatchReader, int]:
    """Open one split for evaluation; return the data, its reader and how many samples it has.

    Arguments:
      weights: what is evaluated.

    Raises: as `open_data`; UsageError of the mock data; ValueError of a folder with other classes.
    """
    if flags.dataset.dataset_name == "mock":
        raise UsageError(
            "--dataset_name got 'mock', expected data with pictures: it is ones, to measure speed "
            "with, and no class can be learned. Name other data to evaluate on."
        )
    source = open_split(flags, split)
    chosen = choose_preparation(flags, weights)
    data = _prepare(flags, chosen, (source, source, None), batch_size, shard=None)
    assert data.test is not None
    folder = find_run_folder(weights)
    if folder is not None and flags.dataset.dataset_name == "image_folder":
        _check_same_classes(flags.dataset.dataset_dir, data.class_names, folder)
    return data, data.test, source.num_samples


def _check_same_classes(path: str | None, names: Sequence[str], folder: RunFolder) -> None:
    """Raise unless a folder has a run's classes, for a label is the number of its class."""
    known = read_facts(folder).class_names
    if tuple(names) == known:
        return
    missing = [name for name in known if name not in names]
    more = [name for name in names if name not in known]
    what = "its classes in another order"
    if missing or more:
        what = f"no class {listed(missing[:3])}" if missing else f"the class {listed(more[:3])}"
    raise ValueError(
        f"{path!r} got {what}, expected the {len(known)} classes that {str(folder.path)!r} was "
        "trained on. Name its folders as they were, or train again."
    )


def _prepare(
    flags: TrainFlags,
    preparation: Preparation,
    splits: tuple[Split, Split | None, Split | None],
    batch_size: int,
    shard: readers.Shard | None,
) -> Data:
    """Return splits as batches for the network that flags name: train, test and final test."""
    source, test, final_test = splits
    model = models.get(flags.model.model_name)
    chosen, size = preparation.preprocessing, choose_image_size(flags, model)
    num_classes, notes = _choose_num_classes(flags, source)
    image = to_bytes(get_image_and_label(source.first)[0])
    is_mnist_of_fastnn = flags.fastnn_compat and flags.dataset.dataset_name == "mnist"
    channels = 3 if is_mnist_of_fastnn else _choose_channels(model, chosen, image.shape[-1])
    augment = PrepareSample(
        crop=chosen.for_training(size),
        num_channels=channels,
        num_classes=num_classes,
        labels_offset=flags.dataset.labels_offset,
    )
    decode = dataclasses.replace(augment, crop=chosen.for_evaluation(size))
    batch_size, batch_notes = _limit_batch_size(flags, batch_size, source.num_samples)
    options = make_read_options(flags, batch_size, shard)
    # All records, whatever the size: a window is what a stream can do, and records are reached by
    # number.
    is_shuffled = flags.preprocessing.shuffle_buffer_size > 1
    names = source.class_names or tuple(map(str, range(num_classes)))
    others = [each for each in (test, final_test) if each is not None and each is not source]
    test_options = dataclasses.replace(options, decode=decode)
    return Data(
        train=source.read(dataclasses.replace(options, augment=augment, shuffle=is_shuffled)),
        test=None if test is None else test.read(test_options),
        final_test=None if final_test is None else final_test.read(test_options),
        num_train=source.num_samples,
        num_test=None if test is None else test.num_samples,
        num_final_test=None if final_test is None else final_test.num_samples,
        class_names=_shift_names(names, flags.dataset.labels_offset, num_classes),
        shape=Shape(
            image_shape=(size, size, channels), num_classes=num_classes, preprocessing=chosen
        ),
        stored_shape=tuple(image.shape) if flags.dataset.dataset_name in _ONE_SIZE else None,
        batch_size=batch_size,
        samples_per_epoch=_count_samples_per_epoch(flags, source.num_samples),
        preparation=preparation,
        notes=(
            *source.notes,
            *(note for each in others for note in each.notes),
            *preparation.notes,
            *batch_notes,
            *notes,
        ),
        names_digests=tuple(None if each is None else each.names_digest for each in (source, test)),
        test_part="" if test is None else test.part,
        test_files=None if test is None else test.files,
    )


def resolve_flags(flags: TrainFlags, data: Data) -> TrainFlags:
    """Return the flags with what data and network decide in the place of None."""
    dataset = dataclasses.replace(flags.dataset, num_classes=data.shape.num_classes)
    name = flags.preprocessing.preprocessing_name
    name = data.preparation.name if data.preparation is not None else name
    prepared = dataclasses.replace(
        flags.preprocessing, preprocessing_name=name, train_image_size=data.shape.image_shape[0]
    )
    return dataclasses.replace(flags, dataset=dataset, preprocessing=prepared)


def _mock(flags: TrainFlags, batch_size: int, shard: readers.Shard) -> Data:
    model = models.get(flags.model.model_name)
    size = choose_image_size(flags, model)
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
        samples_per_epoch=_count_samples_per_epoch(flags, num_train),
    )


def make_read_options(
    flags: TrainFlags, batch_size: int, shard: readers.Shard | None
) -> readers.records.ReadOptions:
    """Return how flags say that a data set is read.

    Arguments:
      batch_size: of all devices together.
      shard: the part of this process; None for an equal part of each batch.
    """
    read = flags.preprocessing
    # FastNN's flag bounds the images in work, so more workers than that would wait.
    in_flight = read.num_parallel_batches * flags.model.batch_size
    return readers.records.ReadOptions(
        batch_size=batch_size,
        seed=flags.performance.seed,
        shard=shard,
        num_workers=min(read.num_preprocessing_threads, in_flight),
        look_ahead=read.prefetch_buffer_size,
        cache_records=read.datasets_use_caching or read.cache_image_size is not None,
        on_error=read.on_error,
    )


def choose_image_size(flags: TrainFlags, model: models.Model) -> int:
    """Return height and width in pixels of what a network gets."""
    return flags.preprocessing.train_image_size or model.default_image_size


def _limit_batch_size(
    flags: TrainFlags, batch_size: int, num_samples: int
) -> tuple[int, tuple[str, ...]]:
    """Return the size of a batch of all devices, no larger than the data; and what to say.

    Raises:
      ValueError: a device's share has fewer images than there are micro-batches.
    """
    num_devices = batch_size // flags.model.batch_size
    # Larger batches would be padding for the most part.
    share = min(flags.model.batch_size, -(-num_samples // num_devices))
    parts = flags.model.gradient_accumulation_steps
    if parts > share:
        raise ValueError(
            f"--gradient_accumulation_steps got {parts}, expected {share} or less: a device gets "
            f"{share} images per step, and a part without images would be padding."
        )
    if share == flags.model.batch_size:
        return batch_size, ()
    said = f"--batch_size={flags.model.batch_size} is more than there are: a step takes all"
    return share * num_devices, (f"{said} {num_samples:,} images",)


def _choose_num_classes(flags: TrainFlags, source: Split) -> tuple[int, tuple[str, ...]]:
    """Return how many classes the network has, and notes about it."""
    asked, offset = flags.dataset.num_classes, flags.dataset.labels_offset
    less = f", less --labels_offset={offset}" if offset else ""
    if asked is not None:
        needed = None if source.largest_label is None else source.largest_label - offset + 1
        if needed is not None and asked < needed:
            raise ValueError(
                f"--num_classes got {asked}, expected at least {needed}: the data has the labels 0 "
                f"to {source.largest_label}{less}. Leave it out for the data's own number."
            )
        return asked, ()
    if source.num_classes is not None:
        if source.num_classes - offset < 2:
            raise ValueError(
                f"--dataset_name={flags.dataset.dataset_name} got {source.num_classes} class{less},"
                " expected two or more: there is nothing to tell apart."
            )
        return source.num_classes - offset, ()
    note = (
        f"nothing says how many classes the data has: {FASTNN_NUM_CLASSES}, as FastNN; "
        "--num_classes, or a labels.txt beside the files, says otherwise"
    )
    return FASTNN_NUM_CLASSES, (note,)


def _choose_channels(model: models.Model, chosen: preprocessing.Preprocessing, stored: int) -> int:
    """Return how many channels the network gets: three of images that have them, if it can."""
    if stored == 3 and 3 in chosen.channels:
        return 3
    return model.num_channels if model.num_channels in chosen.channels else chosen.channels[0]


def _shift_names(names: tuple[str, ...], offset: int, width: int) -> tuple[str, ...]:
    """Return the names of the network's classes, whose numbers are labels less an offset."""
    return tuple(
        names[i + offset] if 0 <= i + offset < len(names) else f"class {i}" for i in range(width)
    )


def _count_samples_per_epoch(flags: TrainFlags, num_samples: int) -> int:
    if flags.fastnn_compat and flags.dataset.dataset_name in _FASTNN_SIZES:
        return _FASTNN_SIZES[flags.dataset.dataset_name]
    return flags.dataset.num_sample_per_epoch or num_samples
