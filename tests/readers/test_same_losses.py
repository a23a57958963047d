"""One training run, fed from every kind of reader: the same samples in the same order, the same
losses, bit for bit.
"""

from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers

NUM_SAMPLES = 120
BATCH_SIZE = 32


def train_program() -> Any:
    image = layers.data("image", shape=[8, 8, 1], dtype="uint8")
    label = layers.data("label", shape=[1], dtype="int32")
    hidden = layers.fc(image.astype("float32") / 16, size=32, act="relu")
    prediction = layers.fc(hidden, size=10, act="softmax")
    return layers.mean(layers.cross_entropy(prediction, label))


def losses(reader: Any, **options: Any) -> list[float]:
    seen: list[float] = []

    def on_event(event: Any) -> None:
        if isinstance(event, ps.EndStep):
            seen.append(float(event.metrics))

    trainer = ps.Trainer(train_program, optax.sgd(0.5), place=jax.devices("cpu")[0])
    trainer.train(reader, on_event, num_epochs=2, **options)
    return seen


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    """Return images of ten classes, class by class: the order of a folder of images."""
    label = np.repeat(np.arange(10, dtype=np.int32), NUM_SAMPLES // 10)
    image = np.random.default_rng(0).integers(0, 3, (NUM_SAMPLES, 64)).astype(np.uint8)
    image[np.arange(NUM_SAMPLES), 6 * label] = 16
    return {"image": image.reshape(-1, 8, 8, 1), "label": label}


@pytest.fixture(scope="module")
def expected(columns: dict[str, np.ndarray]) -> list[float]:
    found = losses(readers.arrays(columns, BATCH_SIZE))
    assert len(found) == 2 * -(-NUM_SAMPLES // BATCH_SIZE)
    assert found[-1] < found[0]
    return found


def rows(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [{key: column[i] for key, column in columns.items()} for i in range(NUM_SAMPLES)]


def fluid(columns: dict[str, np.ndarray], folder: Path) -> Any:
    def creator() -> Any:
        for row in rows(columns):
            yield row["image"].reshape(-1), int(row["label"])

    return readers.batch(readers.buffered(creator, 8), BATCH_SIZE)


def image_folder(columns: dict[str, np.ndarray], folder: Path) -> Any:
    for number, row in enumerate(rows(columns)):
        path = folder / str(row["label"]) / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), row["image"])
    return readers.image_folder(folder, BATCH_SIZE, channels=1)


def tfrecord(columns: dict[str, np.ndarray], folder: Path) -> Any:
    from penstock.readers import records
    from penstock.readers.tfrecord_files import tfrecord as read

    with records.RecordWriter(str(folder / "digits.tfrecord")) as writer:
        for row in rows(columns):
            png = records.encode_png(row["image"])
            example = {"image/encoded": png, "label": int(row["label"])}
            writer.write(records.build_example(example))
    features = {
        "image": records.ImageFeature((8, 8, 1)),
        "label": records.FixedLenFeature((), "int32"),
    }
    return read(folder / "digits.tfrecord", features, batch_size=BATCH_SIZE)


def ofrecord(columns: dict[str, np.ndarray], folder: Path) -> Any:
    from penstock.readers import records
    from penstock.readers.ofrecord_files import ofrecord as read

    with records.RecordWriter(str(folder / "part-0"), framing=records.OFRECORD) as writer:
        for row in rows(columns):
            png = records.encode_png(row["image"])
            writer.write(records.build_ofrecord({"encoded": png, "label": int(row["label"])}))
    blobs = {
        "image": records.BlobConf("encoded", (8, 8, 1), "uint8", records.ImageCodec()),
        "label": records.BlobConf("label", (), "int32", records.RawCodec()),
    }
    return read(folder, blobs, batch_size=BATCH_SIZE)


def grain(columns: dict[str, np.ndarray], folder: Path) -> Any:
    import grain

    return grain.MapDataset.source(rows(columns)).batch(BATCH_SIZE)


FEEDS = {
    "indexed": lambda columns, _: readers.indexed(rows(columns), BATCH_SIZE, num_workers=2),
    "xmap_readers": lambda columns, _: readers.batch(
        readers.xmap_readers(dict, rows(columns), 2, 4, order=True), BATCH_SIZE
    ),
    "tuples": lambda columns, _: readers.arrays(tuple(columns.values()), BATCH_SIZE),
    "fluid": fluid,
    "image_folder": image_folder,
    "tfrecord": tfrecord,
    "ofrecord": ofrecord,
    "grain": grain,
}


@pytest.mark.quick("tuples")
@pytest.mark.parametrize("name", FEEDS)
def test_losses_are_the_same_whatever_feeds_the_run(name, columns, expected, tmp_path):
    reader = FEEDS[name](columns, tmp_path)
    options = {"feed_order": ["image", "label"]} if name in {"fluid", "tuples"} else {}
    assert losses(reader, **options) == expected
