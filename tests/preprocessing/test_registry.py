"""The registry: names, errors, one's own."""

import re
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

from penstock import models, preprocessing
from penstock._errors import UnknownNameError
from tests.preprocessing.goldens import evaluated, trained


@pytest.mark.parametrize("name", ["cifarnet", "inception", "lenet", "none", "torchvision", "vgg"])
def test_name_gives_the_defaults_which_can_be_changed(name):
    prep = preprocessing.get(name)
    assert prep == type(prep)()
    assert replace(prep, dtype="uint8").dtype == "uint8"


def test_unknown_name_lists_the_known_and_the_nearest():
    text = (
        "preprocessing.get got 'vggg', expected one of 'cifarnet', 'inception', 'lenet', 'none', "
        "'torchvision', 'torchvision_mild', 'torchvision_v2', 'vgg'. "
    )
    with pytest.raises(UnknownNameError, match=re.escape(text)) as caught:
        preprocessing.get("vggg")
    assert "models.get(name).preprocessing" in str(caught.value)
    assert str(caught.value).endswith(" Did you mean 'vgg'?")


def test_every_network_has_a_preprocessing_that_exists():
    for name in models.names():
        preprocessing.get(models.get(name).preprocessing)


def test_taken_name_is_refused():
    with pytest.raises(ValueError, match=r"preprocessing.register got the name 'vgg', expected"):
        preprocessing.register("vgg")(preprocessing.Lenet)
    assert isinstance(preprocessing.get("vgg"), preprocessing.Vgg)


def test_ones_own_has_options_draws_and_every_check():
    @preprocessing.register("erased")
    @dataclass(frozen=True, kw_only=True)
    class Erased(preprocessing.Preprocessing):
        share: float = 0.5

        def crop(self, image, height, width, random):
            return preprocessing.resize(image, height, width)

        def draw(self, key):
            return {"row": preprocessing_row(key)}

        def finish(self, image, draws):
            if draws is None:
                return image
            rows = jnp.arange(image.shape[0])[:, None, None]
            return jnp.where(rows == draws["row"], 0.0, image)

    def preprocessing_row(key):
        import jax

        return jax.random.randint(key, (), 0, 4)

    prep = preprocessing.get("erased")
    image = prep.host(np.full((9, 9, 3), 7, np.uint8), 4, 4, is_training=False)
    images = np.repeat(image[np.newaxis], 16, axis=0)
    np.testing.assert_array_equal(evaluated(prep, images), images)
    erased = np.asarray(trained(prep, images) == 0).all(axis=(2, 3))
    assert erased.sum(axis=1).tolist() == [1] * 16
    assert len(set(erased.argmax(axis=1).tolist())) > 1
    with pytest.raises(
        preprocessing.PreprocessingError, match=r"preprocessing.Erased got an image"
    ):
        prep.host(np.zeros((9, 9), np.uint8), 4, 4, is_training=False)


def test_function_may_make_one():
    @preprocessing.register("large_vgg")
    def large_vgg() -> preprocessing.Preprocessing:
        return preprocessing.Vgg(resize_side_min=341)

    assert preprocessing.get("large_vgg").for_evaluation(299).height == 299


def test_crop_of_another_size_is_refused():
    class Careless(preprocessing.Lenet):
        def crop(self, image, height, width, random):
            return image

    text = "Careless got an image of shape [9, 9, 3] from crop, expected [4, 4, 3]."
    with pytest.raises(preprocessing.PreprocessingError, match=re.escape(text)):
        Careless().host(np.zeros((9, 9, 3), np.uint8), 4, 4, is_training=False)
