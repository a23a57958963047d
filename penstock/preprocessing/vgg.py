"""VGG's preprocessing: a crop of a random scale, the mean colour subtracted."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import PreprocessingError, check_number
from penstock.preprocessing import colour
from penstock.preprocessing._base import Preprocessing
from penstock.preprocessing._registry import register
from penstock.preprocessing.crops import Box, random_box
from penstock.preprocessing.resizing import resize


@register("vgg")
@dataclass(frozen=True, kw_only=True)
class Vgg(Preprocessing):
    """VGG's preprocessing, also used for resnet_v1 and resnet_v2.

    Training: the shorter side is resized to a random 256 to 512 pixels, keeping the aspect ratio;
    then a random crop and a random flip. Evaluation: the shorter side is resized to 256, then a
    centre crop. Both: the mean of each channel is subtracted; nothing is scaled. Source: TF-Slim's
    `vgg_preprocessing`.

    Arguments:
      resize_side_min: the smallest shorter side in training, in pixels; evaluation always uses it.
      resize_side_max: the largest shorter side in training, in pixels.
      means: the means of red, green and blue, in 0..255.

    >>> Vgg(resize_side_min=320).for_evaluation(299).height
    299
    """

    resize_side_min: int = 256
    resize_side_max: int = 512
    means: tuple[float, float, float] = (123.68, 116.78, 103.94)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_right = 1 <= self.resize_side_min <= self.resize_side_max
        self.check_options(
            {"resize_side_min": is_right, "resize_side_max": is_right},
            "1 <= resize_side_min <= resize_side_max",
            "The shorter side is drawn from between them",
            "Raise resize_side_max",
        )
        self.check_options(
            {"means": len(self.means) == 3},
            "three means",
            "They are those of red, green and blue",
            "Leave them out for those of the published networks",
        )

    def check_size(self, height: int, width: int) -> None:
        """Check that a crop of this size fits the smallest resized image.

        Raises:
          PreprocessingError: its shorter side is above `resize_side_min`, or a size is below 1.
        """
        super().check_size(height, width)
        side, most = min(height, width), self.resize_side_min
        why = f"Images are resized to it. Pass resize_side_min={side * 8 // 7}, or more."
        thing = f"preprocessing.Vgg got resize_side_min={most} and a shorter side of "
        check_number(thing, side, f"[1, {most}]", why, PreprocessingError)

    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Return a crop of the resized image: `[height, width, 3]` float32."""
        side = self.resize_side_min
        if random is not None:
            side += int(random.integers(self.resize_side_max - side + 1))
        rows, columns = _find_resized_size(image.shape[0], image.shape[1], side)
        remedy = "Ask for a smaller size, or raise resize_side_min"
        self.check_covers(image, rows, columns, height, width, remedy)
        if random is None:
            box = Box((rows - height) // 2, (columns - width) // 2, height, width)
        else:
            box = random_box(random, rows, columns, height, width)
        return resize(image, rows, columns, window=box)

    def draw(self, key: jax.Array) -> jax.Array:
        """Return whether one image is flipped."""
        return jax.random.bernoulli(key)

    def finish(self, image: jax.Array, draws: jax.Array | None) -> jax.Array:
        """Return the image minus the means, about -124 to 151."""
        image = image if draws is None else colour.flip(image, draws)
        return image - jnp.asarray(self.means, jnp.float32).reshape(1, 1, 3)


def _find_resized_size(height: int, width: int, side: int) -> tuple[int, int]:
    """Return the size with a shorter side of `side`."""
    # Rounded in float32, as TensorFlow does.
    scale = np.float32(side) / np.float32(min(height, width))
    rows, columns = (int(np.rint(np.float32(size) * scale)) for size in (height, width))
    return rows, columns
