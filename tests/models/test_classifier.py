"""Programs from a network: loss, smoothing, auxiliary head, weight decay, metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, models
from penstock.models import Model, Settings
from penstock.models._style import Style
from tests.layers.programs import infer
from tests.networks import one_device

LABELS = np.arange(6)[:, None]
IMAGES = np.random.default_rng(0).standard_normal((6, 4, 4, 3)).astype(np.float32)
FEED = {"image": IMAGES, "label": LABELS}


def network(images, num_classes):
    logits = layers.fc(images, num_classes, name="main")
    return logits, {"Logits": logits}


def with_auxiliary(images, num_classes):
    auxiliary = layers.fc(images, num_classes, name="auxiliary")
    return network(images, num_classes)[0], {"AuxLogits": auxiliary}


def model_of(function, **settings):
    return Model(
        name="own",
        function=function,
        default_image_size=4,
        preprocessing="none",
        num_classes=7,
        settings=Settings(**settings),
    )


def metrics_of(chosen):
    """Return the metrics of the test program, and the initial parameters."""
    builder = ps.ProgramBuilder(
        chosen.train_program, optax.sgd(0.1), infer_func=chosen.infer_program, place=one_device()
    )
    state = builder.init()
    params = jax.tree.map(np.asarray, state.variables["params"])
    return jax.tree.map(float, builder.test(state, FEED)), params


def log_probabilities(params, name="main"):
    logits = IMAGES.reshape(6, -1) @ params[name]["w"] + params[name]["b"]
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits)))


def cross_entropy(params, name="main"):
    return -log_probabilities(params, name)[np.arange(6), LABELS[:, 0]].mean()


def test_loss_is_the_mean_cross_entropy():
    metrics, params = metrics_of(models.classifier(model_of(network), 7))
    assert metrics["loss"] == pytest.approx(cross_entropy(params), rel=1e-5)
    order = log_probabilities(params).argsort(-1)[:, ::-1]
    assert metrics["accuracy"] == pytest.approx((order[:, :1] == LABELS).mean())
    assert metrics["top_5"] == pytest.approx((order[:, :5] == LABELS).any(-1).mean())


def test_label_smoothing_spreads_a_share_over_all_classes():
    metrics, params = metrics_of(models.classifier(model_of(network), 7, label_smoothing=0.1))
    uniform = -log_probabilities(params).mean()
    expected = 0.9 * cross_entropy(params) + 0.1 * uniform
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_auxiliary_head_counts_two_fifths():
    metrics, params = metrics_of(models.classifier(model_of(with_auxiliary), 7))
    expected = cross_entropy(params) + 0.4 * cross_entropy(params, "auxiliary")
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    half, params = metrics_of(models.classifier(model_of(with_auxiliary), 7, auxiliary_weight=0.5))
    expected = cross_entropy(params) + 0.5 * cross_entropy(params, "auxiliary")
    assert half["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_weight_decay_is_in_the_loss_and_can_be_set():
    model = model_of(network, weight_decay=0.5)
    metrics, params = metrics_of(models.classifier(model, 7))
    penalty = 0.25 * (params["main"]["w"] ** 2).sum()
    assert metrics["loss"] == pytest.approx(cross_entropy(params) + penalty, rel=1e-5)
    without, params = metrics_of(models.classifier(model, 7, settings=Settings(weight_decay=0.0)))
    assert without["loss"] == pytest.approx(cross_entropy(params), rel=1e-5)


def test_few_classes_have_no_top_5():
    chosen = models.classifier(model_of(network), 5)
    builder = ps.ProgramBuilder(chosen.train_program, optax.sgd(0.1), place=one_device())
    feed = {"image": IMAGES, "label": LABELS % 5}
    assert set(builder.test(builder.init(), feed)) == {"loss", "accuracy"}


def test_preprocess_runs_inside_the_programs_on_bytes():
    chosen = models.classifier(model_of(network), 7, preprocess=lambda images: images / 255)
    whole = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    plain = models.classifier(model_of(network), 7)
    expected = infer(plain.infer_program, {"image": whole / np.float32(255)})
    actual = infer(chosen.infer_program, {"image": whole})
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_image_size_changes_the_input():
    chosen = models.classifier(model_of(network), 7, image_size=2)
    assert infer(chosen.infer_program, {"image": IMAGES[:, :2, :2]}).shape == (6, 7)


def test_label_smoothing_out_of_range_says_the_range():
    with pytest.raises(ValueError, match=r"label_smoothing=1.0, expected a number from 0 to below"):
        models.classifier("lenet", 10, label_smoothing=1.0)


def test_unknown_network_is_said_before_anything_is_built():
    with pytest.raises(KeyError, match="Did you mean 'lenet'"):
        models.classifier("lenet5", 10)


def with_batch_norm(images, num_classes, *, settings):
    style = Style(settings=settings)
    hidden = style.conv(images, 8, 3, name="conv")
    return style.logits(hidden.reshape(hidden.shape[0], -1), num_classes, name="logits"), {}


@pytest.mark.quick("None-True")
@pytest.mark.parametrize(("warmup", "is_right"), [(None, True), (False, False)])
def test_short_run_with_a_published_batch_norm_decay_tests_as_it_trains(warmup, is_right):
    images = 100 + 20 * np.random.default_rng(0).standard_normal((64, 4, 4, 3))
    label = np.arange(64)[:, None] % 2
    images = (images + 40 * label[:, :, None, None]).astype(np.float32)
    settings = {"batch_norm_decay": 0.9997, "batch_norm_epsilon": 1e-3}
    model = model_of(with_batch_norm, **settings, batch_norm_warmup=warmup)
    chosen = models.classifier(model, 2)
    trainer = ps.Trainer(chosen.train_program, optax.adam(1e-2), place=one_device())
    reader = ps.readers.arrays({"image": images, "label": label}, 16, shuffle=True, seed=0)
    trainer.train(reader, num_epochs=15)
    assert (trainer.test(reader)["accuracy"] > 0.95) == is_right
