"""The device part: modes, draws by row, precision, errors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._errors import LayerContextError, ProgramError
from penstock.preprocessing import Cifarnet, Inception, Lenet, Vgg
from tests.layers.programs import infer
from tests.preprocessing.goldens import (
    ALL,
    EACH,
    Seen,
    declared,
    evaluated,
    finished,
    photo,
    trained,
)

RANDOM = pytest.mark.parametrize("prep", ALL[:4], ids=lambda prep: repr(prep)[:28])
IMAGES = np.stack([photo(6, 8, seed=seed) for seed in range(8)])
SAME = np.repeat(IMAGES[:1], 24, axis=0)


@EACH
def test_evaluation_finishes_each_image_without_draws(prep):
    actual = evaluated(prep, IMAGES)
    expected = np.stack([finished(prep, image, None) for image in IMAGES])
    assert actual.dtype == np.float32
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@EACH
def test_bytes_and_floats_give_the_same(prep):
    def program():
        return prep.device(layers.data("image", [6, 8, 3], dtype="uint8"))

    as_bytes = infer(program, {"image": IMAGES})
    np.testing.assert_array_equal(as_bytes, evaluated(prep, IMAGES.astype(np.float32)))


@pytest.fixture(
    scope="module",
    params=[ALL[0], *(pytest.param(prep, marks=pytest.mark.slow) for prep in ALL[1:3]), ALL[3]],
    ids=lambda prep: repr(prep)[:28],
)
def runs(request):
    """Train on eight images, the first three times over, on one and on eight devices."""
    images = np.concatenate([IMAGES[:1], IMAGES[:1], IMAGES, IMAGES[1:7]])
    seen = Seen(inner=request.param)
    return request.param, images, [trained(seen, images, devices) for devices in (1, 8)]


@pytest.mark.slow
def test_rows_of_equal_images_draw_apart(runs):
    prep, _, (one, _) = runs
    rows = {row.tobytes() for row in one["image"][:3]}
    assert len(rows) == 3 or (isinstance(prep, Vgg) and len(set(one["draws"].tolist())) == 2)


@pytest.mark.quick("Cifarnet")
def test_draws_do_not_depend_on_the_number_of_devices(runs):
    _, _, (one, eight) = runs
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-5)


def test_training_batch_is_finished_with_what_its_rows_drew(runs):
    prep, images, (one, _) = runs
    for row, image in enumerate(images):
        draws = jax.tree.map(lambda leaf, row=row: leaf[row], one["draws"])
        as_drawn = jax.tree.map(_as_drawn, draws, prep.draw(jax.random.key(0)))
        expected = finished(prep, image, as_drawn)
        np.testing.assert_allclose(one["image"][row], expected, rtol=1e-5, atol=1e-5)


def _as_drawn(value: np.ndarray, like: jax.Array) -> np.ndarray:
    return np.asarray(value).astype(like.dtype)


@pytest.mark.parametrize(
    ("prep", "ranges"),
    [
        (
            Inception(),
            {
                "brightness": (-32 / 255, 32 / 255),
                "saturation": (0.5, 1.5),
                "hue": (-0.2, 0.2),
                "contrast": (0.5, 1.5),
            },
        ),
        (Cifarnet(), {"brightness": (-63, 63), "contrast": (0.2, 1.8)}),
    ],
    ids=["inception", "cifarnet"],
)
def test_draws_of_1200_images_fill_their_ranges(prep, ranges):
    keys = jax.random.split(jax.random.key(0), 1200)
    drawn = jax.tree.map(np.asarray, jax.jit(jax.vmap(prep.draw))(keys))
    for name, (low, high) in ranges.items():
        values, width = getattr(drawn, name), high - low
        assert low <= values.min() < low + 0.01 * width
        assert high - 0.01 * width < values.max() < high + 1e-6
    assert np.mean(drawn.is_flipped) == pytest.approx(0.5, abs=0.06)
    if isinstance(prep, Inception):
        assert np.bincount(drawn.order).min() > 250
    # Independent: 1200 draws, so that a correlation of 0.12 is four deviations.
    every = np.stack([np.asarray(leaf, float) for leaf in drawn])
    assert np.abs(np.corrcoef(every) - np.eye(len(every))).max() < 0.12


def test_draws_differ_between_steps_and_seeds_and_not_between_runs():
    def program():
        result = Vgg().device(declared(SAME))
        weight = layers.create_parameter([1], name="w")
        return layers.mean(result) + jnp.sum(weight), result

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=jax.devices()[:1])

    def flips(seed):
        state = builder.init(seed=seed)
        results = []
        for _ in range(2):
            state, (_, result) = builder.train(state, {"image": SAME})
            results.append(np.asarray(result).tobytes())
        return results

    first = flips(0)
    assert len({*first, *flips(1)}) == 4
    assert flips(0) == first


@pytest.mark.slow
def test_two_preprocessings_of_one_program_draw_apart():
    def program():
        images = declared(SAME)
        return layers.mean(images), Vgg().device(images), Vgg().device(images)

    builder = ps.ProgramBuilder(
        lambda: (program()[0] + jnp.sum(layers.create_parameter([1], name="w")), *program()[1:]),
        optax.sgd(0.1),
        place=jax.devices()[:1],
    )
    _, (_, first, second) = builder.train(builder.init(), {"image": SAME})
    assert not np.array_equal(first, second)


@pytest.mark.quick("Vgg", "Cifarnet", "Lenet")
@RANDOM
def test_constant_image_stays_finite_in_training(prep):
    draws = prep.draw(jax.random.key(0))
    for value in (0, 128, 255):
        assert np.isfinite(finished(prep, np.full((6, 8, 3), value), draws)).all()


def test_call_outside_a_program_says_where_it_belongs():
    text = "preprocessing.Vgg.device got called outside a program, expected a call inside a program"
    with pytest.raises(LayerContextError, match=re.escape(text)):
        Vgg().device(jnp.zeros((2, 8, 8, 3)))


@pytest.mark.parametrize(
    ("prep", "shape", "text"),
    [
        (Inception(), [8, 8, 1], "Inception.device got an array of shape [B, 8, 8, 1], expected"),
        (Vgg(), [192], "[B, 192], expected [B, H, W, C] with C 3. Its operations are on whole"),
        (Lenet(), [8, 8, 4], "with C 1 or 3. "),
    ],
)
def test_array_that_is_no_batch_of_images_is_refused(prep, shape, text):
    with pytest.raises(ProgramError, match=re.escape(text)):
        ps.ProgramBuilder(infer_func=lambda: prep.device(layers.data("image", shape)))
