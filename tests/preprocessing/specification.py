"""TF-Slim's preprocessing in TensorFlow's own operations, with what it draws given as numbers.

Written from the table in the specification, for `make_goldens.py` and `test_tensorflow.py`.
"""

from typing import Any

import numpy as np
import tensorflow as tf

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


def vgg(
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
