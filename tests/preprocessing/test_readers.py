"""Preprocessing in readers: one draw for each record and epoch, whoever computes it."""

import cv2
import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.preprocessing import Cifarnet, Inception, PreprocessingError, Vgg
from tests.preprocessing.goldens import photo

NUM_IMAGES = 10
SIZES = [(40, 56), (56, 40), (48, 48)]
PHOTOS = [photo(*SIZES[i % 3], seed=i) for i in range(NUM_IMAGES)]
VGG = Vgg(resize_side_min=32, resize_side_max=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two classes of photographs of three sizes, as PNG."""
    path = tmp_path_factory.mktemp("photos")
    for number, image in enumerate(PHOTOS):
        (path / f"class_{number // 5}").mkdir(exist_ok=True)
        cv2.imwrite(str(path / f"class_{number // 5}" / f"{number:02d}.png"), image[..., ::-1])
    return path


def images_of(reader) -> np.ndarray:
    return np.concatenate([batch["image"] for batch in reader()])


def test_photographs_of_any_size_become_batches(folder):
    batch = next(readers.image_folder(folder, 6, augment=VGG.for_training(24, 32))())
    assert batch["image"].shape == (6, 24, 32, 3)
    assert batch["image"].dtype == np.float32
    assert batch["label"].tolist() == [0, 0, 0, 0, 0, 1]


def test_each_record_draws_from_seed_epoch_and_number(folder):
    augment = Inception(dtype="uint8").for_training(24)
    reader = readers.image_folder(folder, 4, augment=augment, seed=5)
    for epoch in range(2):
        expected = [
            augment({"image": image}, np.random.default_rng((5, epoch, number)))["image"]
            for number, image in enumerate(PHOTOS)
        ]
        np.testing.assert_array_equal(images_of(reader), expected)


def test_evaluation_is_a_decode_and_an_augment(folder):
    evaluate = VGG.for_evaluation(24)
    decoded = images_of(readers.image_folder(folder, 4, decode=evaluate))
    augmented = images_of(readers.image_folder(folder, 4, augment=evaluate))
    np.testing.assert_array_equal(decoded, augmented)
    expected = VGG.host(PHOTOS[0], 24, 24, is_training=False)
    np.testing.assert_array_equal(decoded[0], expected)


def test_training_as_decode_or_transform_says_where_it_belongs(folder):
    augment = Cifarnet().for_training(24)
    with pytest.raises(PreprocessingError, match=r"got no random numbers.*give `for_training"):
        next(readers.image_folder(folder, 4, decode=augment)())
    with pytest.raises(PreprocessingError, match=r"shape \[4, 24, 24, 3\].*not its transform="):
        next(readers.image_folder(folder, 4, size=(24, 24), transform=augment)())


def test_reader_and_trainer_train_test_and_infer(folder):
    def infer_program():
        images = VGG.device(layers.data("image", [24, 24, 3]))
        return layers.fc(layers.pool2d(images, 24, pool_type="avg"), 2, act="softmax")

    def train_program():
        label = layers.data("label", [1], dtype="int32")
        return layers.mean(layers.cross_entropy(infer_program(), label))

    trainer = ps.Trainer(train_program, optax.sgd(1e-4), place=jax.devices()[:2])
    train = readers.image_folder(folder, 4, augment=VGG.for_training(24), shuffle=True)
    test = readers.image_folder(folder, 4, decode=VGG.for_evaluation(24))
    losses = []
    trainer.train(
        train,
        lambda event: (
            losses.append(float(event.metrics)) if isinstance(event, ps.EndStep) else None
        ),
        num_epochs=2,
    )
    assert len(losses) == 6
    assert np.isfinite(losses).all()
    assert trainer.test(test) == trainer.test(test)
