"""Write `goldens.npz`: what TensorFlow makes of a small image, with given draws.

    python -m tests.preprocessing.make_goldens

needs TensorFlow. On the host draws come from TensorFlow's random numbers by a seed, on the device
they are numbers stored beside the result.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from penstock.preprocessing import sample_box
from penstock.preprocessing.cifarnet import CifarnetDraws
from penstock.preprocessing.inception import InceptionDraws
from tests.preprocessing import specification
from tests.preprocessing.philox import TensorFlowRandom, as_generator

PATH = Path(__file__).with_name("goldens.npz")
IMAGE = np.random.default_rng(0).integers(0, 256, (13, 17, 3), np.uint8)
IMAGE[4:7, 5:12] = 128  # a gray part, as hues and saturations of gray are cases of their own
NUM_BOXES = 24

INCEPTION_SEEDS = (13, 9, 1, 3)  # they draw each of the four methods of resizing
# is_flipped, brightness, saturation, hue, contrast, order
INCEPTION_DRAWS = np.array(
    [
        [1, 0.11, 1.43, 0.19, 0.62, 0],
        [0, -0.12, 0.55, -0.17, 1.46, 1],
        [0, 0.03, 1.21, 0.08, 1.31, 2],
        [1, -0.07, 0.83, -0.05, 0.77, 3],
    ],
    np.float32,
)
# is_flipped, brightness, contrast
CIFARNET_DRAWS = np.array([[1, 41.5, 0.31], [0, -60.25, 1.72]], np.float32)


def inception_draws(row: np.ndarray, *, fast_mode: bool) -> InceptionDraws:
    """Return a row of `INCEPTION_DRAWS` for the specification."""
    draws = InceptionDraws(*row)
    return draws._replace(order=None) if fast_mode else draws  # type: ignore[arg-type]


def tensorflow_box(seed: tuple[int, int], height: int, width: int) -> list[int]:
    """Return the crop TensorFlow draws."""
    begin, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
        image_size=[height, width, 3],
        bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
        min_object_covered=0.1,
        seed=seed,
        aspect_ratio_range=(0.75, 1.33),
        area_range=(0.05, 1.0),
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return [*map(int, begin[:2]), *map(int, size[:2])]


def resizes() -> dict[str, np.ndarray]:
    """Return one channel of the image shrunk and enlarged by each method."""
    image = IMAGE[..., :1].astype(np.float32)
    sizes = {"smaller": (5, 9), "larger": (16, 20)}
    return {
        f"resize_{way}_{method}": specification.resized(image, *size, method).numpy()
        for way, size in sizes.items()
        for method in range(4)
    }


def inception() -> dict[str, np.ndarray]:
    """Return training images of both modes and the evaluation image, 8 x 8."""
    arrays = {"inception_evaluation": specification.inception_evaluation(IMAGE, 8, 8)}
    for number, row in enumerate(INCEPTION_DRAWS):
        for fast_mode in (True, False):
            random = as_generator((INCEPTION_SEEDS[number], 0))
            box = sample_box(random, *IMAGE.shape[:2])
            method = 0 if fast_mode else random.integers(4)
            draws = inception_draws(row, fast_mode=fast_mode)
            name = f"inception_{'fast' if fast_mode else 'full'}_{number}"
            arrays[name] = specification.inception_train(IMAGE, 8, 8, box, method, draws)
    return arrays


def vgg() -> dict[str, np.ndarray]:
    """Return training images of a shorter side of 16 to 32, and the evaluation image, 8 x 6."""
    arrays = {"vgg_evaluation": specification.vgg(IMAGE, 16, 8, 6, None, False)}
    for number in range(2):
        random = TensorFlowRandom((number, 1))
        side = 16 + random.integers(17)
        rows, columns = side, round(IMAGE.shape[1] * side / IMAGE.shape[0])
        place = random.integers(rows - 8 + 1), random.integers(columns - 6 + 1)
        arrays[f"vgg_{number}"] = specification.vgg(IMAGE, side, 8, 6, place, number == 1)
    return arrays


def cifarnet_and_lenet() -> dict[str, np.ndarray]:
    """Return training images of 8 x 8, and centres of a size with more columns and less rows."""
    arrays = {
        "cifarnet_evaluation": specification.cifarnet_evaluation(IMAGE, 6, 20),
        "lenet": specification.lenet(IMAGE, 6, 20),
    }
    for number, row in enumerate(CIFARNET_DRAWS):
        random = TensorFlowRandom((number, 2))
        place = random.integers(21 - 8 + 1), random.integers(25 - 8 + 1)
        draws = CifarnetDraws(*row)
        arrays[f"cifarnet_{number}"] = specification.cifarnet_train(IMAGE, 4, 8, 8, place, draws)
    return arrays


def main() -> None:
    """Write the file."""
    boxes = [tensorflow_box((seed, 3), 375, 500) for seed in range(NUM_BOXES)]
    arrays = {
        "image": IMAGE,
        "boxes": np.array(boxes, np.int32),
        "inception_seeds": np.array(INCEPTION_SEEDS),
        "inception_draws": INCEPTION_DRAWS,
        "cifarnet_draws": CIFARNET_DRAWS,
        **resizes(),
        **inception(),
        **vgg(),
        **cifarnet_and_lenet(),
    }
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {len(arrays)} arrays, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
