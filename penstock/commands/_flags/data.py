"""Flags of the data set and of its way into the network: FastNN's tables 4.1 and 4.2."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Literal

from penstock._errors import nearest
from penstock.commands._checks import UsageError, check_at_least, check_choice
from penstock.commands._run_folders import make_title


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetFlags:
    """Which images, and their labels.

    Arguments:
      dataset_name: the data: a data set of readers.dataset, such as digits, mnist or cifar10;
        image_folder, which is one folder of images per class in --dataset_dir; mock, which is
        arrays of ones, to measure speed; or another name together with --dataset_dir and
        --train_files, TFRecord files with TF-Slim's keys.
      dataset_dir: the folder that holds the data.
      num_sample_per_epoch: how many samples count as an epoch for the learning-rate schedule; by
        default the data's own number.
      num_classes: how many classes the network distinguishes; by default the data's own number, or
        100 if the data does not say.
      train_files: the TFRecord files in --dataset_dir to train on, separated by commas.
      eval_files: the TFRecord files in --dataset_dir to evaluate on, separated by commas; by
        default the data set's own.
      labels_offset: the number to subtract from each label.
    """

    dataset_name: str = "digits"
    dataset_dir: str | None = None
    num_sample_per_epoch: int | None = None
    num_classes: int | None = None
    train_files: str | None = None
    eval_files: str | None = None
    labels_offset: int = 0

    @property
    def title(self) -> str:
        """What names the data in a run's folder: of one's own images the name of their folder."""
        return make_title(self.dataset_name, self.dataset_dir)

    def __post_init__(self) -> None:
        """Check the values."""
        check_at_least(1, num_sample_per_epoch=self.num_sample_per_epoch)
        check_at_least(2, num_classes=self.num_classes)
        if self.dataset_name == "image_folder" and self.dataset_dir is None:
            raise UsageError(
                "--dataset_name=image_folder got no folder, expected --dataset_dir=FOLDER as "
                "well: a folder that holds one folder of images per class."
            )
        known = list_datasets()
        if self.dataset_name not in known and self.dataset_dir is None:
            hint = nearest(self.dataset_name.lower(), known)
            if Path(self.dataset_name).is_dir():
                folder = shlex.quote(self.dataset_name)
                hint = f" For a folder: --dataset_name=image_folder --dataset_dir={folder}."
            raise UsageError(
                f"--dataset_name got {self.dataset_name!r}, expected one of: {', '.join(known)}; "
                f"or --dataset_dir as well, with its TFRecord files.{hint}"
            )
        if (self.train_files or self.eval_files) and self.dataset_dir is None:
            raise UsageError(
                "--train_files and --eval_files got no folder, expected --dataset_dir beside them: "
                "they are names of files there."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreprocessingFlags:
    """How images are read and prepared.

    Arguments:
      preprocessing_name: the preprocessing of the images; by default that of the weights it starts
        from, or the network's own.
      train_image_size: the height and width in pixels of the images that the network gets; by
        default its own.
      shuffle_buffer_size: a number above 1 shuffles all records in every epoch; 0 and 1 keep the
        order of the files.
      num_parallel_batches: this number times batch_size is the maximum number of images prepared at
        a time.
      prefetch_buffer_size: how many batches to read ahead.
      num_preprocessing_threads: how many threads read and prepare images; with 0 this happens
        between the steps.
      datasets_use_caching: keep the encoded records in memory.
      cache_image_size: keep the images of a folder in memory, scaled down so that their shorter
        side has this many pixels; each file is then decoded once, not once per epoch.
      skip_damaged: leave out images that cannot be read, and name them after each epoch.
    """

    preprocessing_name: str | None = None
    train_image_size: int | None = None
    shuffle_buffer_size: int = 1024
    num_parallel_batches: int = 8
    prefetch_buffer_size: int = 32
    num_preprocessing_threads: int = 16
    datasets_use_caching: bool = False
    cache_image_size: int | None = None
    skip_damaged: bool = False

    @property
    def on_error(self) -> Literal["raise", "skip"]:
        """What readers do with images that cannot be read."""
        return "skip" if self.skip_damaged else "raise"

    def __post_init__(self) -> None:
        """Check the values."""
        from penstock import preprocessing

        check_at_least(
            1, train_image_size=self.train_image_size, cache_image_size=self.cache_image_size
        )
        check_at_least(1, num_parallel_batches=self.num_parallel_batches)
        check_at_least(
            0,
            shuffle_buffer_size=self.shuffle_buffer_size,
            prefetch_buffer_size=self.prefetch_buffer_size,
            num_preprocessing_threads=self.num_preprocessing_threads,
        )
        if self.preprocessing_name is not None:
            check_choice("preprocessing_name", self.preprocessing_name, preprocessing.names())


def list_datasets() -> list[str]:
    """Return the names that --dataset_name takes without --train_files."""
    from penstock import readers

    return sorted({*readers.dataset_names(), "image_folder"})
