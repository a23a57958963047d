"""What readers' threads do to each sample on its way into a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.preprocessing import SamplePreprocessing


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """Prepare one sample: image as bytes with the right channels, cropped; label in its range.

    It can be pickled. In training it is a reader's `augment=`, in evaluation its `decode=`.

    Arguments:
      crop: the host part of a preprocessing.
      num_channels: that the network takes.
      num_classes: that it tells apart.
      labels_offset: subtracted from each label.
    """

    crop: SamplePreprocessing
    num_channels: int
    num_classes: int
    labels_offset: int = 0

    def __call__(self, sample: Any, random: np.random.Generator | None = None) -> dict[str, Any]:
        """Return `image` `[H, W, C]` and `label`, an int32 scalar.

        Raises:
          ValueError: no image, or a label that the network cannot tell.
        """
        image, label = entries_of(sample)
        cropped = self.crop({"image": with_channels(as_bytes(image), self.num_channels)}, random)
        return {"image": cropped["image"], "label": self._label(label)}

    def _label(self, label: Any) -> np.int32:
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
        return np.int32(value)


def entries_of(sample: Any) -> tuple[Any, Any]:
    """Return image and label of a sample: a dict with these names, or a tuple that begins so.

    Raises:
      ValueError: the sample has no images, as those of other kinds of data sets.
    """
    if isinstance(sample, Mapping) and {"image", "label"} <= set(sample):
        return sample["image"], sample["label"]
    if isinstance(sample, tuple) and len(sample) >= 2:
        return sample[0], sample[1]
    has = ", ".join(map(str, sample)) if isinstance(sample, Mapping) else type(sample).__name__
    raise ValueError(
        f"--dataset_name got a data set of {has}, expected one of image and label. The command "
        "trains classifiers of images. Write a program for it, as README shows."
    )


def as_bytes(image: Any) -> np.ndarray:
    """Return an image `[H, W, C]` as uint8; floats are in 0..1.

    >>> as_bytes(np.full((1, 2), 0.5, np.float32)).ravel().tolist()
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


def with_channels(image: np.ndarray, num_channels: int) -> np.ndarray:
    """Return an image with so many channels: gray repeated, colours averaged by their lightness.

    >>> with_channels(np.zeros((2, 2, 1), np.uint8), 3).shape
    (2, 2, 3)
    """
    if image.shape[-1] == num_channels:
        return image
    if image.shape[-1] == 1:
        return np.repeat(image, num_channels, axis=-1)
    import cv2

    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., np.newaxis]
