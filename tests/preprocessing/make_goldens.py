"""Write `goldens.npz`: what TF-Slim's preprocessing makes of a small image, with given draws.

    python -m tests.preprocessing.make_goldens

needs TensorFlow, of whose own operations it is made. On the host draws come from TensorFlow's
random numbers by a seed, on the device they are numbers stored beside the result.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from penstock.preprocessing import sample_box
from penstock.preprocessing.cifarnet import CifarnetDraws
from penstock.preprocessing.inception import InceptionDraws
from tests.preprocessing.philox import TensorFlowRandom, as_generator

PATH = Path(__file__).with_name("goldens.npz")
IMAGE = np.random.default_rng(0).integers(0, 256, (13, 17, 3), np.uint8)
IMAGE[4:7, 5:12] = 128  # a gray part, as hues and saturations of gray are cases of their own

NUM_BOXES = 200
# Ranges of the aspect ratio and of the area, the share that is covered, the number of attempts;
# the first are TF-Slim's.
BOX_OPTIONS = (
    (0.75, 1.33, 0.05, 1.0, 0.1, 100),
    (0.75, 1.33, 0.05, 1.0, 0.0, 100),
    (0.75, 1.33, 0.9, 1.0, 0.1, 100),
    (2.0, 2.1, 0.05, 1.0, 0.1, 3),
)
SIZES = {"smaller": (5, 9), "larger": (16, 20), "wider": (3, 79), "higher": (79, 1)}
# The range that each operation's amount is drawn from.
COLOURS = {
    "brightness": (-1, 1),
    "contrast": (0.2, 1.8),
    "saturation": (0, 2.5),
    "hue": (-0.9, 0.9),
}
NUM_COLOURED = 6

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


ORDERS = ("BSHC", "SBCH", "CHBS", "HSCB")  # brightness, saturation, hue, contrast


def resized(image: Any, height: int, width: int, method: int = 0) -> Any:
    """Resize as TF1: `method` counts bilinear, nearest, bicubic, area."""
    return tf.compat.v1.image.resize_images(image, [height, width], method)


def coloured(image: Any, draws: Any) -> Any:
    """Apply the four operations in the order that was drawn."""
    operations = {
        "B": lambda x: tf.image.adjust_brightness(x, draws.brightness),
        "S": lambda x: tf.image.adjust_saturation(x, draws.saturation),
        "H": lambda x: tf.image.adjust_hue(x, draws.hue),
        "C": lambda x: tf.image.adjust_contrast(x, draws.contrast),
    }
    order = "BS" if draws.order is None else ORDERS[int(draws.order)]
    for name in order:
        image = operations[name](image)
    return image


def flipped(image: Any, is_flipped: Any) -> Any:
    """Mirror left and right."""
    return tf.image.flip_left_right(image) if is_flipped else image


def inception_train(
    image: np.ndarray, height: int, width: int, box: Any, method: int, draws: Any
) -> np.ndarray:
    """Return a training image; `draws.order` None is the fast mode."""
    x = tf.image.convert_image_dtype(image, tf.float32)
    x = tf.slice(x, [box.top, box.left, 0], [box.height, box.width, 3])
    x = flipped(resized(x, height, width, method), draws.is_flipped)
    x = tf.clip_by_value(coloured(x, draws), 0.0, 1.0)
    return ((x - 0.5) * 2.0).numpy()


def inception_evaluation(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an evaluation image."""
    x = tf.image.central_crop(tf.image.convert_image_dtype(image, tf.float32), 0.875)
    return ((resized(x, height, width) - 0.5) * 2.0).numpy()


def vgg_image(
    image: np.ndarray, side: int, height: int, width: int, place: Any, is_flipped: Any
) -> np.ndarray:
    """Return an image, cut at `place` (top, left); the centre without one."""
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    scale = tf.cast(side, tf.float32) / tf.reduce_min(shape)
    rows, columns = tf.cast(tf.math.rint(shape * scale), tf.int32).numpy()
    x = resized(image, rows, columns)
    top, left = place or ((rows - height) // 2, (columns - width) // 2)
    x = flipped(tf.slice(x, [top, left, 0], [height, width, 3]), is_flipped)
    return (x - [123.68, 116.78, 103.94]).numpy()


def cifarnet_train(
    image: np.ndarray, padding: int, height: int, width: int, place: Any, draws: Any
) -> np.ndarray:
    """Return a training image, cut from the padded one at `place`."""
    x = tf.pad(tf.cast(image, tf.float32), [[padding, padding], [padding, padding], [0, 0]])
    x = tf.slice(x, [*place, 0], [height, width, image.shape[-1]])
    x = tf.image.adjust_brightness(flipped(x, draws.is_flipped), draws.brightness)
    x = tf.image.adjust_contrast(x, draws.contrast)
    return tf.image.per_image_standardization(x).numpy()


def cifarnet_evaluation(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an evaluation image."""
    x = tf.image.resize_with_crop_or_pad(tf.cast(image, tf.float32), height, width)
    return tf.image.per_image_standardization(x).numpy()


def lenet(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image, the same in training and evaluation."""
    x = tf.image.resize_with_crop_or_pad(tf.cast(image, tf.float32), height, width)
    return ((x - 128.0) / 128.0).numpy()


def inception_draws(row: np.ndarray, *, fast_mode: bool) -> InceptionDraws:
    """Return a row of `INCEPTION_DRAWS` as draws."""
    draws = InceptionDraws(*row)
    return draws._replace(order=None) if fast_mode else draws  # type: ignore[arg-type]


def boxes() -> dict[str, np.ndarray]:
    """Return options of crops, and of each height, width, and the box that TensorFlow draws."""
    random, drawn = np.random.default_rng(0), []
    options = np.array([BOX_OPTIONS[seed % len(BOX_OPTIONS)] for seed in range(NUM_BOXES)])
    for seed, (*ranges, covered, attempts) in enumerate(options.tolist()):
        height, width = random.integers(1, 20 if seed % 8 < 4 else 600, 2).tolist()
        begin, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
            image_size=[height, width, 3],
            bounding_boxes=[[[0.0, 0.0, 1.0, 1.0]]],
            seed=(seed, 3),
            use_image_if_no_bounding_boxes=True,
            aspect_ratio_range=ranges[:2],
            area_range=ranges[2:],
            min_object_covered=covered,
            max_attempts=int(attempts),
        )
        drawn.append([height, width, *begin[:2], *size[:2]])
    return {"box_options": options, "boxes": np.array(drawn, np.int32)}


def resizes() -> dict[str, np.ndarray]:
    """Return one channel of the image in several sizes by each method."""
    image = IMAGE[..., :1].astype(np.float32)
    return {
        f"resize_{way}_{method}": resized(image, *size, method).numpy()
        for way, size in SIZES.items()
        for method in range(4)
    }


def colours() -> dict[str, np.ndarray]:
    """Return images of values inside and outside the range, and what an operation makes of them."""
    random = np.random.default_rng(0)
    images = random.uniform(-0.3, 1.4, (NUM_COLOURED, 4, 5, 3)).astype(np.float32)
    images[::3] = images[::3].round(1)  # equal channels
    arrays = {"colour_images": images}
    for name, (low, high) in COLOURS.items():
        amounts = random.uniform(low, high, NUM_COLOURED).astype(np.float32)
        adjust = getattr(tf.image, f"adjust_{name}")
        made = [adjust(*pair).numpy() for pair in zip(images, amounts, strict=True)]
        arrays |= {f"amounts_{name}": amounts, f"colour_{name}": np.stack(made)}
    return arrays


def inception() -> dict[str, np.ndarray]:
    """Return training images of both modes and the evaluation image, 8 x 8."""
    arrays = {"inception_evaluation": inception_evaluation(IMAGE, 8, 8)}
    for number, row in enumerate(INCEPTION_DRAWS):
        for fast_mode in (True, False):
            random = as_generator((INCEPTION_SEEDS[number], 0))
            box = sample_box(random, *IMAGE.shape[:2])
            method = 0 if fast_mode else random.integers(4)
            draws = inception_draws(row, fast_mode=fast_mode)
            name = f"inception_{'fast' if fast_mode else 'full'}_{number}"
            arrays[name] = inception_train(IMAGE, 8, 8, box, method, draws)
    return arrays


def vgg() -> dict[str, np.ndarray]:
    """Return training images of a shorter side of 16 to 32, and the evaluation image, 8 x 6."""
    arrays = {"vgg_evaluation": vgg_image(IMAGE, 16, 8, 6, None, False)}
    for number in range(2):
        random = TensorFlowRandom((number, 1))
        side = 16 + random.integers(17)
        rows, columns = side, round(IMAGE.shape[1] * side / IMAGE.shape[0])
        place = random.integers(rows - 8 + 1), random.integers(columns - 6 + 1)
        arrays[f"vgg_{number}"] = vgg_image(IMAGE, side, 8, 6, place, number == 1)
    return arrays


def cifarnet_and_lenet() -> dict[str, np.ndarray]:
    """Return training images of 8 x 8, and centres of a size with more columns and less rows."""
    arrays = {
        "cifarnet_evaluation": cifarnet_evaluation(IMAGE, 6, 20),
        "lenet": lenet(IMAGE, 6, 20),
    }
    for number, row in enumerate(CIFARNET_DRAWS):
        random = TensorFlowRandom((number, 2))
        place = random.integers(21 - 8 + 1), random.integers(25 - 8 + 1)
        draws = CifarnetDraws(*row)
        arrays[f"cifarnet_{number}"] = cifarnet_train(IMAGE, 4, 8, 8, place, draws)
    return arrays


def main() -> None:
    """Write the file."""
    arrays = {
        "image": IMAGE,
        "inception_seeds": np.array(INCEPTION_SEEDS),
        "inception_draws": INCEPTION_DRAWS,
        "cifarnet_draws": CIFARNET_DRAWS,
        **boxes(),
        **resizes(),
        **colours(),
        **inception(),
        **vgg(),
        **cifarnet_and_lenet(),
    }
    np.savez_compressed(PATH, **arrays)
    print(f"{PATH}: {len(arrays)} arrays, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
