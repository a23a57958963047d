"""Your own data set, network and preprocessing, for `penstock train`.

Stripes of two directions stand in for your own data. Print some of them with
`python examples/extend.py`, and train with

    penstock train --plugin=examples/extend.py --dataset_name=stripes --model_name=two_layers
"""

import jax
import numpy as np

from penstock import layers, models, preprocessing, readers


@readers.register_dataset("stripes")  # with files=, the function parses a TFRecord as FastNN's do
def load_stripes(request):
    random = np.random.default_rng(0 if request.split == "train" else 1)
    label = random.integers(0, 2, 512 if request.split == "train" else 128)
    rows, columns = np.mgrid[:16, :16]
    phase = random.integers(0, 4, (len(label), 1, 1))
    is_bright = np.where(label[:, None, None], rows + phase, columns + phase) % 4 < 2
    noise = random.integers(0, 156, (len(label), 16, 16))
    image = (100 * is_bright + noise)[..., np.newaxis].astype(np.uint8)
    return {"image": image, "label": label.astype(np.int32)}


@preprocessing.register("dimmed")
class Dimmed(preprocessing.Preprocessing):
    channels = (1, 3)

    def crop(self, image, height, width, random):  # on the host; random is None in evaluation
        return preprocessing.resize(image, height, width)

    def draw(self, key):
        return jax.random.uniform(key, minval=0.5, maxval=1.0)

    def finish(self, image, draws):  # on the device; draws are None outside training
        return image / 255 if draws is None else image / 255 * draws


@models.register(
    "two_layers", default_image_size=16, preprocessing="dimmed", num_classes=2, num_channels=1
)
def two_layers(images, num_classes):
    hidden = layers.conv2d(images, num_filters=8, filter_size=5, act="relu")
    hidden = layers.pool2d(hidden, pool_size=4, pool_stride=4)
    return layers.fc(hidden, size=num_classes or 16), {}


if __name__ == "__main__":
    batch = next(iter(readers.dataset("stripes", "test", batch_size=2)))
    for image, label in zip(batch["image"], batch["label"], strict=True):
        print(f"label {label}")
        print("\n".join("".join(" ░▒▓█"[p // 52] * 2 for p in row) for row in image[..., 0]))
