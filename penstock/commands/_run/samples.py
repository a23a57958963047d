"""What readers do to each sample before it goes into a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.preprocessing import SamplePreprocessing


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

    def __call__(self, sample: Any, random: np.random.Generator | None = None) -> dict[str, Any]:
        """Return `image` `[H, W, C]` and `label`, an int32 scalar.

        Raises:
          ValueError: no image, or a label that is none of the network's classes.
        """
        image, label = get_image_and_label(sample)
        cropped = self.crop({"image": convert_channels(to_bytes(image), self.num_channels)}, random)
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


def get_image_and_label(sample: Any) -> tuple[Any, Any]:
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
        "trains classifiers of images. Write a program for it, as README shows."
    )


def to_bytes(image: Any) -> np.ndarray:
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
        return np.repeat(image, num_channels, axis=-1)
    import cv2

    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., np.newaxis]
