"""The host part of a preprocessing, as a function of a reader's sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from penstock._errors import PreprocessingError, listed, nearest

Sample = TypeVar("Sample", Mapping[Any, Any], tuple[Any, ...])


class Host(Protocol):
    """The host part of a preprocessing. A protocol, as `Preprocessing` imports this module."""

    def host(
        self,
        image: np.ndarray,
        height: int,
        width: int,
        *,
        is_training: bool,
        random: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Crop and resize one decoded image."""
        ...


@dataclass(frozen=True, kw_only=True)
class SamplePreprocessing:
    """The host part of a preprocessing as a reader's `augment=` or, in evaluation, `decode=`.

    Returned by `Preprocessing.for_training` and `for_evaluation`. It can be pickled, so worker
    processes can run it.

    Arguments:
      preprocessing: the preprocessing.
      height: height of the images that it returns, in pixels.
      width: width of the images that it returns, in pixels.
      is_training: crop at random.
      entry: the sample's entry that holds the image: a key, or an index for tuples.
    """

    preprocessing: Host
    height: int
    width: int
    is_training: bool
    entry: str | int = "image"

    def __call__(self, sample: Sample, random: np.random.Generator | None = None) -> Sample:
        """Return the sample with its image cropped and resized, `[height, width, C]`.

        Arguments:
          sample: a dict or a tuple.
          random: what a reader passes to `augment`, of this record and epoch.

        Raises:
          PreprocessingError: the sample has no such entry, or the image cannot be preprocessed.
        """
        image = self.preprocessing.host(
            self._find_image(sample),
            self.height,
            self.width,
            is_training=self.is_training,
            random=random,
        )
        if isinstance(sample, Mapping):
            return {**sample, self.entry: image}
        return tuple(image if i == self.entry else leaf for i, leaf in enumerate(sample))

    def _find_image(self, sample: object) -> np.ndarray:
        if isinstance(sample, Mapping):
            if self.entry in sample:
                return sample[self.entry]
            got, hint = f"a sample of {listed(map(str, sample))}", nearest(str(self.entry), sample)
        elif isinstance(sample, tuple):
            if isinstance(self.entry, int) and 0 <= self.entry < len(sample):
                return sample[self.entry]
            got, hint = f"a tuple of {len(sample)}", ""
        else:
            got, hint = f"a sample of type {type(sample).__name__}", ""
        raise PreprocessingError(
            f"preprocessing got {got}, expected a dict or tuple with the entry {self.entry!r}. Its "
            f"image is what is cropped.{hint} Pass entry= to for_training and for_evaluation: a "
            "name, or an index in a tuple."
        )
