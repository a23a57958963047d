"""The data of a run: readers of batches that are ready for the network, and facts about them."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax

from penstock import _parameters, models, preprocessing, readers
from penstock.commands._failures import check
from penstock.commands._flags import DatasetFlags, ModelFlags, TrainFlags
from penstock.commands._image_folders import SplitName
from penstock.commands._run import splits
from penstock.commands._run_folder.folder import Facts, find_run_folder, read_facts
from penstock.models import weights as weight_files
from penstock.preprocessing import Preprocessing

FASTNN_NUM_CLASSES = 100
_ONE_SIZE = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
# What FastNN's page says, where mnist and flowers stand in each other's row.
_FASTNN_SIZES = {"mnist": 3320, "cifar10": 50_000, "flowers": 60_000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a network is made for: images `[H, W, C]`, whose preprocessing ends in its programs."""

    image_shape: tuple[int, int, int]
    num_classes: int
    preprocessing: preprocessing.Preprocessing | None


class Preparation(NamedTuple):
    """How the images of a run are prepared, and why so, in one line.

    The notes are for the first lines of a run: the summary, where it is another than the network's
    own.
    """

    preprocessing: Preprocessing
    name: str
    summary: str
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a run: readers of batches of `image` and `label`, and facts about them.

    The best network is chosen by `test`, and then tested by `final_test`, where there are such
    parts. Without a preparation, images are made as the network takes them.
    """

    train: splits.BatchReader
    test: splits.BatchReader | None = None
    final_test: splits.BatchReader | None = None
    preparation: Preparation | None = None
    num_train: int
    facts: Facts  # as they are kept in the run's folder
    shape: Shape
    batch_size: int
    samples_per_epoch: int
    notes: tuple[str, ...] = ()
    test_part: str = ""
    test_files: tuple[str, ...] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_train // self.batch_size)

    @property
    def schedule_steps_per_epoch(self) -> float:
        """Steps of an epoch for the learning rate's schedule, not always a whole number."""
        return max(self.samples_per_epoch / self.batch_size, 1.0)


def open_data(
    flags: TrainFlags, weights: Path | None, *, num_devices: int, shard: readers.Shard
) -> Data:
    """Open the data of a run; `weights` are what it starts from, whose preprocessing it takes."""
    name = flags.dataset.dataset_name
    if name == "mock":
        return _make_mock(flags, num_devices, shard)
    if flags.fastnn_compat and name in _FASTNN_SIZES:
        # FastNN has its own list.
        dataset = dataclasses.replace(flags.dataset, train_files=None)
        flags = dataclasses.replace(flags, dataset=dataset)
    train = splits.open_split(flags, "train")
    test = final_test = None
    # A run needs nothing to test on.
    with contextlib.suppress(readers.DatasetNotFoundError):
        test = splits.open_split(flags, "validation")
        # What the best network is chosen on says too much good of it.
        if splits.find_part(flags, "test") != test.part:
            final_test = splits.open_split(flags, "test")
    return _prepare(flags, weights, (train, test, final_test), num_devices, shard)


def check_has_pictures(flags: DatasetFlags) -> None:
    """Raise for data that has nothing to look at, and no class to learn."""
    expected = "data with pictures: it is arrays of ones, to measure speed. Name other data."
    check(flags, "dataset_name", flags.dataset_name != "mock", expected)


def open_for_evaluation(
    flags: TrainFlags, split: SplitName, weights: Path, *, num_devices: int | None = None
) -> tuple[Data, splits.BatchReader, int]:
    """Open a split for all devices or so many; return data, reader and number of samples."""
    check_has_pictures(flags.dataset)
    # Nothing is added up there, however few images a device gets.
    model = dataclasses.replace(flags.model, gradient_accumulation_steps=1)
    flags = dataclasses.replace(flags, model=model)
    opened = splits.open_split(flags, split)
    num_devices = num_devices or jax.device_count()
    data = _prepare(flags, weights, (opened, opened, None), num_devices, shard=None)
    assert data.test is not None
    folder = find_run_folder(weights)
    if folder is not None and flags.dataset.dataset_name == "image_folder":
        names = read_facts(folder).class_names
        if what := splits.describe_other_classes(data.facts.class_names, names):
            raise ValueError(
                f"{flags.dataset.dataset_dir!r} got {what}, expected the {len(names)} classes that "
                f"{str(folder.path)!r} was trained on. Name its folders as then, or train again."
            )
    return data, data.test, opened.num_samples


def _prepare(
    flags: TrainFlags,
    weights: Path | None,
    parts: tuple[splits.Split, splits.Split | None, splits.Split | None],
    num_devices: int,
    shard: readers.Shard | None,
) -> Data:
    train, test, final_test = parts
    preparation = choose_preparation(flags, weights)
    chosen, size = preparation.preprocessing, flags.image_size
    offset = flags.dataset.labels_offset
    num_classes, notes = _choose_num_classes(flags.dataset, train)
    image = splits.to_bytes(splits.get_image_and_label(train.first)[0])
    channels = _choose_channels(flags, chosen, image.shape[-1])
    augment = splits.PrepareSample(
        crop=chosen.for_training(size),
        num_channels=channels,
        num_classes=num_classes,
        labels_offset=offset,
    )
    batch_size, batch_notes = _limit_batch_size(flags.model, num_devices, train.num_samples)
    options = dataclasses.replace(_choose_options(flags), batch_size=batch_size, shard=shard)
    test_options = dataclasses.replace(
        options, decode=dataclasses.replace(augment, crop=chosen.for_evaluation(size))
    )
    # All records, whatever the size: a window is what a stream can do, and records are reached by
    # number.
    is_shuffled = flags.preprocessing.shuffle_buffer_size > 1
    names = train.class_names or tuple(map(str, range(num_classes)))
    facts = Facts(
        image_shape=(size, size, channels),
        stored_shape=tuple(image.shape) if flags.dataset.dataset_name in _ONE_SIZE else None,
        # The numbers of the network's classes are labels less an offset.
        class_names=tuple(
            [
                names[i + offset] if 0 <= i + offset < len(names) else f"class {i}"
                for i in range(num_classes)
            ]
        ),
        preprocessing=preprocessing.describe(chosen),
        num_train=train.num_samples,
        num_test=None if test is None else test.num_samples,
        num_final_test=None if final_test is None else final_test.num_samples,
        names_digests=tuple([part and part.names_digest for part in parts]),
    )
    test_notes = [
        note for part in (test, final_test) if part not in (None, train) for note in part.notes
    ]
    return Data(
        train=train.read(dataclasses.replace(options, augment=augment, shuffle=is_shuffled)),
        test=None if test is None else test.read(test_options),
        final_test=None if final_test is None else final_test.read(test_options),
        num_train=train.num_samples,
        facts=facts,
        shape=Shape(
            image_shape=(size, size, channels), num_classes=num_classes, preprocessing=chosen
        ),
        batch_size=batch_size,
        samples_per_epoch=_count_samples_per_epoch(flags, train.num_samples),
        preparation=preparation,
        notes=(*train.notes, *test_notes, *preparation.notes, *batch_notes, *notes),
        test_part="" if test is None else test.part,
        test_files=None if test is None else test.files,
    )


def _make_mock(flags: TrainFlags, num_devices: int, shard: readers.Shard) -> Data:
    batch_size, size = flags.model.device_batch_size * num_devices, flags.image_size
    shape = (size, size, models.get(flags.model.model_name).num_channels)
    train: Any = readers.dataset("mock", "train", batch_size, image_shape=shape, shard=shard)
    num_classes = flags.dataset.num_classes or FASTNN_NUM_CLASSES
    num_train = len(train) * batch_size
    return Data(
        train=train,
        num_train=num_train,
        # How many there are is a matter of the devices.
        facts=Facts(shape, stored_shape=shape, class_names=tuple(map(str, range(num_classes)))),
        shape=Shape(image_shape=shape, num_classes=num_classes, preprocessing=None),
        batch_size=batch_size,
        samples_per_epoch=_count_samples_per_epoch(flags, num_train),
    )


def _limit_batch_size(
    wanted: ModelFlags, num_devices: int, num_samples: int
) -> tuple[int, tuple[str, ...]]:
    """Return the size of a batch of all devices, no larger than the data; and what to say."""
    # Larger batches would be padding for the most part.
    size, num_parts = wanted.device_batch_size, wanted.gradient_accumulation_steps
    share = min(size, -(-num_samples // num_devices))
    if num_parts > share:
        raise ValueError(
            f"--gradient_accumulation_steps got {num_parts}, expected {share} or less: a "
            f"device gets {share} images per step, and a part without images would be padding."
        )
    if share == size:
        return share * num_devices, ()
    what = f"--batch_size={size} is more than there are: a step takes all"
    return share * num_devices, (f"{what} {num_samples:,} images",)


def _choose_options(flags: TrainFlags) -> readers.records.ReadOptions:
    read = flags.preprocessing
    # FastNN's flag bounds the images in work, so more workers than that would wait.
    in_flight = read.num_parallel_batches * flags.model.device_batch_size
    return readers.records.ReadOptions(
        seed=flags.performance.seed,
        num_workers=min(read.num_preprocessing_threads, in_flight),
        look_ahead=read.prefetch_buffer_size,
        cache_records=read.datasets_use_caching or read.cache_image_size is not None,
        on_error=read.on_error,
    )


def _choose_num_classes(wanted: DatasetFlags, train: splits.Split) -> tuple[int, tuple[str, ...]]:
    asked, offset = wanted.num_classes, wanted.labels_offset
    less = f", less --labels_offset={offset}" if offset else ""
    if asked is not None:
        needed = None if train.largest_label is None else train.largest_label - offset + 1
        if needed is not None and asked < needed:
            raise ValueError(
                f"--num_classes got {asked}, expected at least {needed}: the data has the labels 0 "
                f"to {train.largest_label}{less}. Leave it out for the data's own number."
            )
        return asked, ()
    if train.num_classes is not None:
        if train.num_classes - offset < 2:
            classes = "1 class" if train.num_classes == 1 else f"{train.num_classes} classes"
            raise ValueError(
                f"--dataset_name={wanted.dataset_name} got {classes}{less}, expected two or more: "
                "there is nothing to tell apart."
            )
        return train.num_classes - offset, ()
    note = (
        f"nothing says how many classes the data has: {FASTNN_NUM_CLASSES}, as FastNN; "
        "--num_classes, or a labels.txt beside the files, says otherwise"
    )
    return FASTNN_NUM_CLASSES, (note,)


def _choose_channels(flags: TrainFlags, chosen: Preprocessing, stored: int) -> int:
    """Return how many channels the network gets: three of images that have them, if it can."""
    if flags.fastnn_compat and flags.dataset.dataset_name == "mnist":
        return 3
    if stored == 3 and 3 in chosen.channels:
        return 3
    own = models.get(flags.model.model_name).num_channels
    return own if own in chosen.channels else chosen.channels[0]


def _count_samples_per_epoch(flags: TrainFlags, num_samples: int) -> int:
    if flags.fastnn_compat and flags.dataset.dataset_name in _FASTNN_SIZES:
        return _FASTNN_SIZES[flags.dataset.dataset_name]
    return flags.dataset.num_sample_per_epoch or num_samples


def choose_preparation(flags: TrainFlags, weights: Path | None = None) -> Preparation:
    """Choose the preprocessing: the named one, else that of the weights, else the network's own."""
    asked, model = flags.preprocessing.preprocessing_name, models.get(flags.model.model_name)
    follows_fastnn = flags.fastnn_compat and asked is None
    name = asked or model.preprocessing
    if follows_fastnn and model.name.startswith("resnet_v2_"):
        # FastNN's choice, though the published weights were trained with inception's.
        name = "vgg"
    of_weights = None if weights is None else find_preprocessing(weights, model)
    shown = "" if of_weights is None else format_preprocessing(of_weights)
    if of_weights is not None and not follows_fastnn:
        own = preprocessing.describe(of_weights)["name"]
        if asked in (None, own):
            text = f"images: {shown}, which the weights were trained with"
            return Preparation(of_weights, own, text, (text,))
    chosen = preprocessing.get(name)
    why = "FastNN's for the network" if follows_fastnn else "the network's own"
    text = f"images: {name}, {why if asked is None else 'as --preprocessing_name asks'}"
    if of_weights is None or of_weights == chosen:
        return Preparation(chosen, name, text)
    text += f", though the weights were trained with {shown}"
    return Preparation(chosen, name, text, (text,))


def find_preprocessing(weights: Path, model: models.Model) -> Preprocessing | None:
    """Return the preprocessing that belongs to weights; None where nothing says it."""
    if not weights.is_dir():
        return weight_files.find_preprocessing(model, weights)
    description = _parameters.read_about(weights).get("preprocessing")
    folder = find_run_folder(weights)
    if not description and folder is not None:
        # A damaged description: the network's own will do.
        with contextlib.suppress(OSError, ValueError, KeyError):
            description = read_facts(folder).preprocessing
    return None if description is None else preprocessing.restore(description)


def describe_weights(
    chosen: Preprocessing, left_initial: tuple[str, ...] = ()
) -> dict[str, object]:
    """Return the description that is saved with parameters."""
    about: dict[str, object] = {"preprocessing": preprocessing.describe(chosen)}
    return about | ({"left_initial": list(left_initial)} if left_initial else {})


def format_preprocessing(chosen: Preprocessing) -> str:
    """Return a preprocessing as text: its name, and the options that are not its defaults.

    >>> format_preprocessing(preprocessing.Vgg(resize_side_min=300))
    'vgg (resize_side_min=300)'
    """
    description = preprocessing.describe(chosen)
    options = ", ".join(f"{name}={value}" for name, value in description["options"].items())
    return f"{description['name']} ({options})" if options else description["name"]
