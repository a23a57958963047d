"""The host part: what it takes, what it gives, what it draws from."""

import pickle
import re

import jax
import numpy as np
import pytest

from penstock import preprocessing
from penstock.preprocessing import (
    Cifarnet,
    Inception,
    Lenet,
    Plain,
    PreprocessingError,
    Torchvision,
    Vgg,
)
from tests.preprocessing.goldens import EACH, finished, photo

SIZE = 32


def image_for(prep: preprocessing.Preprocessing) -> np.ndarray:
    return photo(SIZE, SIZE) if isinstance(prep, Plain) else photo(37, 50)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@EACH
@pytest.mark.parametrize("is_training", [True, False])
def test_every_image_gets_the_size_and_the_exact_dtype(prep, is_training):
    image = prep.host(image_for(prep), SIZE, SIZE, is_training=is_training, random=generator())
    assert image.shape == (SIZE, SIZE, 3)
    is_resized = isinstance(prep, Inception | Vgg)
    assert image.dtype == (np.float32 if is_resized else np.uint8)


@EACH
def test_one_seed_gives_one_image_and_evaluation_draws_nothing(prep):
    image = image_for(prep)
    results = [
        prep.host(image, SIZE, SIZE, is_training=True, random=generator(seed)) for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(results[0], results[1])
    is_random = isinstance(prep, Inception | Vgg | Cifarnet | Torchvision)
    assert (not np.array_equal(results[0], results[2])) == is_random
    unused = generator()
    prep.host(image, SIZE, SIZE, is_training=False, random=unused)
    assert unused.random() == generator().random()


@EACH
def test_image_is_not_changed_and_need_not_be_contiguous(prep):
    image = image_for(prep)
    turned = np.asfortranarray(image)
    turned.setflags(write=False)
    results = [
        prep.host(x, SIZE, SIZE, is_training=True, random=generator()) for x in (image, turned)
    ]
    np.testing.assert_array_equal(results[0], results[1])


@EACH
@pytest.mark.parametrize("is_training", [True, False])
def test_rounded_form_is_at_most_half_a_level_off(prep, is_training):
    image, rounded = image_for(prep), type(prep)(dtype="uint8")
    exact = type(prep)(dtype="float32")
    results = [
        x.host(image, SIZE, SIZE, is_training=is_training, random=generator())
        for x in (rounded, exact)
    ]
    assert [x.dtype for x in results] == [np.uint8, np.float32]
    assert np.abs(results[0] - results[1]).max() <= 0.5


def test_rounded_form_keeps_bicubic_values_within_bytes():
    edges = np.zeros((40, 40, 3), np.uint8)
    edges[:, ::2] = 255
    full = Inception(fast_mode=False, dtype="uint8", area_range=(0.2, 0.4))
    exact = Inception(fast_mode=False, area_range=(0.2, 0.4))
    for seed in range(12):
        rounded, values = (
            x.host(edges, 64, 64, is_training=True, random=generator(seed)) for x in (full, exact)
        )
        np.testing.assert_array_equal(rounded, np.clip(np.rint(values), 0, 255))


@pytest.mark.quick("vgg")
@pytest.mark.parametrize(
    ("prep", "evaluation", "training"),
    [(Inception(), 1 / 255, 0.02), (Vgg(), 0.5, 0.5)],
    ids=["inception", "vgg"],
)
def test_rounded_form_is_off_by_what_the_page_says(prep, evaluation, training):
    image, rounded = photo(300, 280), type(prep)(dtype="uint8")
    for seed in (None, *range(12)):
        draws = None if seed is None else prep.draw(jax.random.key(seed))
        exact, near = (
            finished(
                x,
                x.host(image, 96, 96, is_training=draws is not None, random=generator(seed or 0)),
                draws,
            )
            for x in (prep, rounded)
        )
        bound = evaluation if seed is None else training
        assert 0 < np.abs(exact - near).max() <= bound * 1.0001


def test_crops_of_vgg_come_from_every_scale():
    # A ramp: the difference between neighbours tells the scale.
    ramp = np.repeat(np.arange(250, dtype=np.uint8)[None, :, None], 250, axis=0).repeat(3, axis=2)
    steps = []
    for seed in range(200):
        crop = Vgg().host(ramp, 224, 224, is_training=True, random=generator(seed))
        steps.append(250 / np.median(np.diff(crop[0, :, 0])))
    assert min(steps) == pytest.approx(256, abs=4)
    assert max(steps) == pytest.approx(512, abs=4)


WRONG = [
    (np.zeros((8, 8), np.uint8), "shape [8, 8] and dtype uint8", "image[..., None]"),
    (np.zeros((2, 8, 8, 3), np.uint8), "shape [2, 8, 8, 3]", "augment= or decode=, not its transf"),
    (np.zeros((8, 8, 4), np.uint8), "shape [8, 8, 4]", "channels=3 of image_folder"),
    (np.zeros((8, 8, 3), np.float32), "dtype float32", "image.round().astype(numpy.uint8)"),
    (np.zeros((0, 8, 3), np.uint8), "shape [0, 8, 3]", "Decode it first"),
    (b"\xff\xd8", "got a bytes", "Decode it first"),
]


@EACH
@pytest.mark.parametrize(("image", "got", "remedy"), WRONG, ids=[got for _, got, _ in WRONG])
def test_image_of_another_kind_is_named_with_the_remedy(prep, image, got, remedy):
    with pytest.raises(PreprocessingError) as caught:
        prep.host(image, 8, 8, is_training=False)
    text = str(caught.value)
    assert text.startswith(f"preprocessing.{type(prep).__name__} got a")
    assert "expected [H, W, C] uint8 with C" in text
    assert got in text
    assert remedy in text


@pytest.mark.parametrize("prep", [Inception(), Vgg()], ids=["inception", "vgg"])
def test_gray_image_is_refused_where_colours_are_meant(prep):
    text = "got an image of shape [9, 9, 1] and dtype uint8, expected [H, W, C] uint8 with C 3. "
    with pytest.raises(PreprocessingError, match=re.escape(text)):
        prep.host(np.zeros((9, 9, 1), np.uint8), 8, 8, is_training=False)


@pytest.mark.parametrize("prep", [Cifarnet(), Lenet(), Plain()], ids=["cifarnet", "lenet", "plain"])
def test_gray_image_is_taken_where_colours_do_not_matter(prep):
    image = prep.host(np.zeros((9, 9, 1), np.uint8), 9, 9, is_training=False)
    assert image.shape == (9, 9, 1)


@EACH
def test_training_without_random_numbers_says_where_they_come_from(prep):
    with pytest.raises(PreprocessingError, match=r"got no random numbers, .* as augment=, not as"):
        prep.host(photo(9, 9), 9, 9, is_training=True)


@pytest.mark.parametrize(
    ("prep", "image", "text"),
    [
        (
            Cifarnet(),
            (20, 40),
            "preprocessing.Cifarnet got an image of 20 x 40, made 28 x 48, expected at least "
            "32 x 32. The crop must lie within the image. Ask for a smaller size, resize the "
            "images in the reader, or raise padding.",
        ),
        (
            Plain(),
            (31, 32),
            "preprocessing.Plain got an image of 31 x 32, expected 32 x 32. It neither crops nor "
            "resizes. Resize in the reader, e.g. image_folder(size=), or choose one that does.",
        ),
        (
            Vgg(resize_side_min=16, resize_side_max=16),
            (64, 64),
            "preprocessing.Vgg got an image of 64 x 64, made 16 x 16, expected at least "
            "32 x 32. The crop must lie within the image. Ask for a smaller size, or raise "
            "resize_side_min.",
        ),
    ],
    ids=["cifarnet", "plain", "vgg"],
)
def test_image_too_small_for_the_crop_is_refused(prep, image, text):
    with pytest.raises(PreprocessingError, match=re.escape(text)):
        prep.host(photo(*image), 32, 32, is_training=True, random=generator())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Vgg().for_training(299),
            "and a shorter side of 299, expected a number from 1 to 256. Images are resized to it.",
        ),
        (lambda: Vgg().for_evaluation(299), "Pass resize_side_min=341, or more."),
        (lambda: Lenet().for_training(0), "preprocessing.Lenet: a side got 0, expected an integer"),
        (
            lambda: Lenet().for_training(8, -1),
            "a side got -1, expected an integer of 1 or more. It is",
        ),
        (lambda: Vgg(resize_side_max=255), "resize_side_min=256, resize_side_max=255, expected"),
        # As from a description of weights that was changed by hand.
        (lambda: Vgg(means=(1.0, 2.0)), "means=(1.0, 2.0), expected three means"),  # pyright: ignore[reportArgumentType]
        (lambda: Cifarnet(padding=-1), "Cifarnet got padding=-1, expected at least 0."),
        (lambda: Lenet(dtype="int8"), "got dtype='int8', expected one of 'uint8', 'float32' or"),  # type: ignore[arg-type]
        (
            lambda: Inception(central_fraction=0, area_range=(0.5, 2)),
            "Inception got area_range=(0.5, 2), central_fraction=0, expected rising",
        ),
    ],
)
def test_option_out_of_range_is_refused_when_given(make, text):
    with pytest.raises(PreprocessingError, match=re.escape(text)):
        make()


def test_published_crop_larger_than_256_needs_a_larger_side():
    image = Vgg(resize_side_min=341, resize_side_max=512).for_evaluation(299)(
        {"image": photo(40, 50)}
    )["image"]
    assert image.shape == (299, 299, 3)


def test_sample_keeps_its_other_entries():
    image = photo(9, 9)
    sample = {"image": image, "label": 3}
    result = Lenet().for_evaluation(6, 8)(sample)
    assert result["image"].shape == (6, 8, 3)
    assert result["label"] == 3
    assert sample["image"] is image

    label, cropped = Lenet().for_evaluation(6, 8, entry=1)((3, image))
    assert (label, cropped.shape) == (3, (6, 8, 3))


@pytest.mark.parametrize(
    ("sample", "entry", "got"),
    [
        ({"images": 1}, "image", "a sample of 'images', expected a dict or tuple with the entry"),
        ({"images": 1}, "image", "Did you mean 'images'?"),
        ((1, 2), "image", "a tuple of 2, expected a dict or tuple with the entry 'image'."),
        ((1, 2), 2, "a tuple of 2, expected a dict or tuple with the entry 2."),
        (photo(9, 9), "image", "a sample of type ndarray, expected a dict or tuple"),
    ],
)
def test_sample_without_the_entry_is_named(sample, entry, got):
    with pytest.raises(PreprocessingError, match=re.escape(got)):
        Lenet().for_evaluation(8, entry=entry)(sample)


def test_functions_of_samples_travel_to_processes():
    augment = Vgg(resize_side_min=300, dtype="uint8").for_training(224)
    assert pickle.loads(pickle.dumps(augment)) == augment
