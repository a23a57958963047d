"""What readers do to each sample before it goes into a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from penstock.preprocessing import SamplePreprocessing

Batch = Mapping[str, np.ndarray]


class BatchIterator(Protocol):
    """A pass over a reader of batches."""

    def __iter__(self) -> Iterator[Batch]:
        """Return the iterator itself."""
        ...

    def __next__(self) -> Batch:
        """Return the next batch, `image` and `label`."""
        ...

    def get_state(self) -> Mapping[str, object]:
        """Return the position behind the last batch."""
        ...

    def set_state(self, state: Mapping[str, object], /) -> None:
        """Go on from a position."""
        ...


class BatchReader(Protocol):
    """A reader of batches, as far as the commands use one."""

    def __len__(self) -> int:
        """Return the number of batches."""
        ...

    def __call__(self) -> BatchIterator:
        """Begin a pass."""
        ...

    def iterate(self, epoch: int, /) -> BatchIterator:
        """Begin the pass of an epoch."""
        ...


@dataclass(frozen=True, kw_only=True)
class PrepareSample:
    """Prepare one sample: crop its image to bytes of the right channels, and shift its label.

    A class, as it travels to processes. It is a reader's `augment=` in training, and its `decode=`
    in evaluation.

    Arguments:
      crop: the host part of a preprocessing.
      num_channels: that the network takes.
      num_classes: of the network.
      labels_offset: subtracted from each label.
    """

    crop: SamplePreprocessing
    num_channels: int
    num_classes: int
    labels_offset: int = 0

    def __call__(
        self, sample: object, random: np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Return `image` `[H, W, C]` and `label`, an int32 scalar.

        Raises:
          ValueError: no image, or a label that is none of the network's classes.
        """
        image, label = get_image_and_label(sample)
        cropped = self.crop({"image": convert_channels(to_bytes(image), self.num_channels)}, random)
        return {"image": cropped["image"], "label": self._shift_label(label)}

    def _shift_label(self, label: ArrayLike) -> np.ndarray:
        value = int(np.asarray(label).reshape(-1)[0]) - self.labels_offset
        if not 0 <= value < self.num_classes:
            offset = f" after --labels_offset={self.labels_offset}" if self.labels_offset else ""
            raise ValueError(
                f"--num_classes got {self.num_classes}, expected at least {value + 1}: the data "
                f"has the label {value}{offset}."
                if value >= 0
                else f"the data got the label {value}{offset}, expected 0 or more. Change "
                "--labels_offset."
            )
        return np.asarray(value, np.int32)


def get_image_and_label(sample: object) -> tuple[ArrayLike, ArrayLike]:
    """Return image and label of a sample, a dict or a tuple.

    Raises:
      ValueError: the sample is of another kind of data set.
    """
    if isinstance(sample, Mapping) and {"image", "label"} <= set(sample):
        return sample["image"], sample["label"]
    if isinstance(sample, tuple) and len(sample) >= 2:
        return sample[0], sample[1]
    has = ", ".join(map(str, sample)) if isinstance(sample, Mapping) else type(sample).__name__
    raise ValueError(
        f"--dataset_name got a data set of {has}, expected one of image and label. The command "
        "trains classifiers of images. Write a program for it, as `penstock docs tutorial` "
        "shows."
    )


def to_bytes(image: ArrayLike) -> np.ndarray:
    """Return an image `[H, W, C]` as uint8; floats are in 0..1.

    >>> to_bytes(np.full((1, 2), 0.5, np.float32)).ravel().tolist()
    [128, 128]
    """
    array = np.asarray(image)
    array = array[..., np.newaxis] if array.ndim == 2 else array
    if array.dtype == np.uint8:
        return array
    if np.issubdtype(array.dtype, np.floating) and array.min() >= 0 and array.max() <= 1:
        return np.rint(array * 255).astype(np.uint8)
    raise ValueError(
        f"the data set got images of dtype {array.dtype} from {array.min()} to {array.max()}, "
        "expected uint8, or floats in 0..1."
    )


def convert_channels(image: np.ndarray, num_channels: int) -> np.ndarray:
    """Return an image with so many channels: gray repeated, colours averaged by their lightness.

    >>> convert_channels(np.zeros((2, 2, 1), np.uint8), 3).shape
    (2, 2, 3)
    """
    if image.shape[-1] == num_channels:
        return image
    if image.shape[-1] == 1:
        # Gray in three channels, as TF-Slim's decoders give it.
        return np.repeat(image, num_channels, axis=-1)
    import cv2

    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., np.newaxis]
