"""What is counted of a network, and whether what is written down of it is still true."""

import types

import jax
import jax.numpy as jnp
import pytest

from penstock import layers, models
from penstock.models._facts import FACTS
from penstock.models._registry import load_families
from penstock.models.report import describe, get_counted_classes, get_report
from tests.models.reference import PUBLISHED
from tests.source_tree import ROOT

OWN = list(load_families())


def described(function, *, image_size=8, num_classes=5):
    """Return the report and layers of a network that is not in the library."""
    model = models.Model(
        name="of the test",
        function=function,
        default_image_size=image_size,
        preprocessing="inception",
        num_classes=num_classes,
    )
    report, rows = describe(model)
    return report, {row.path: row for row in rows}


@pytest.fixture(scope="module")
def script():
    """Return `docs/make_models_page.py` as a module."""
    path = ROOT / "docs" / "make_models_page.py"
    module = types.ModuleType("page")
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


def test_multiply_adds_are_those_of_every_kind_of_product():
    def network(images, num_classes):
        x = layers.conv2d(images, 4, 3, stride=2, padding="SAME", name="plain")
        x = layers.conv2d(x, 6, 1, groups=2, name="grouped")
        x = layers.depthwise_conv2d(x, 3, padding="SAME", depth_multiplier=2, name="depthwise")
        x = layers.separable_conv2d(x, 8, 3, padding="SAME", name="separable")
        x = layers.conv2d_transpose(x, 2, filter_size=2, stride=2, name="transposed")
        return layers.fc(layers.flatten(x), num_classes, name="dense"), {}

    report, rows = described(network)
    macs = {path: row.num_macs for path, row in rows.items()}
    assert macs == {
        "plain": 16 * 9 * 3 * 4,
        "grouped": 16 * 2 * 6,
        "depthwise": 16 * 9 * 12,
        "separable": 16 * (9 * 12 + 12 * 8),
        "transposed": 16 * 4 * 8 * 2,
        "dense": 128 * 5,
    }
    assert report.num_macs == sum(macs.values())
    assert rows["transposed"].output_shape == (8, 8, 2)
    assert rows["separable"].output_shape == (4, 4, 8)
    assert rows["separable"].shapes == {"depthwise": (3, 3, 12, 1), "w": (1, 1, 12, 8), "b": (8,)}


def test_what_the_logits_do_not_need_is_not_counted_but_its_parameters_are():
    def network(images, num_classes):
        head = layers.fc(layers.flatten(images), 7, name="unused")
        return layers.fc(layers.flatten(images), num_classes, name="used"), {"AuxLogits": head}

    report, rows = described(network)
    assert (rows["unused"].num_macs, rows["unused"].output_shape) == (0, None)
    assert report.num_macs == 192 * 5
    assert report.num_params == 192 * (5 + 7) + 5 + 7
    assert report.num_tensors == 4


def test_running_statistics_are_counted_apart():
    def network(images, num_classes):
        x = layers.batch_norm(images, name="norm")
        return layers.fc(layers.flatten(x), num_classes, name="dense"), {}

    report, rows = described(network)
    assert (rows["norm"].num_params, rows["norm"].num_statistics) == (6, 6)
    assert list(rows["norm"].shapes) == ["scale", "bias", "mean", "variance"]
    assert (report.num_statistics, report.num_tensors) == (6, 4)


def test_products_in_loops_count_as_often_as_they_run_and_without_parameters_stand_last():
    def network(images, num_classes):
        x = layers.fc(layers.flatten(images), num_classes, name="dense")

        def body(carry, _):
            return jnp.tanh(carry @ jnp.ones([num_classes, num_classes])), None

        return jax.lax.scan(body, x, length=3)[0], {}

    report, rows = described(network)
    assert list(rows) == ["dense", "(without parameters)"]
    assert rows["(without parameters)"].num_macs == 3 * 25
    assert report.gmacs == (192 * 5 + 75) / 1e9


def test_image_size_and_classes_may_be_others():
    report, rows = describe(models.get("lenet"), num_classes=3, image_size=32)
    assert report.num_classes == 3
    assert {row.path: row.output_shape for row in rows} == {
        "conv1/conv": (32, 32, 32),
        "conv2/conv": (16, 16, 64),
        "fc3/fc": (1024,),
        "fc4/fc": (3,),
    }
    with pytest.raises(ValueError, match=r"got shape \[0, 0, 1\], expected .* positive sizes"):
        describe(models.get("lenet"), image_size=0)


def test_classes_are_counted_without_the_background():
    assert get_counted_classes(models.get("inception_v1")) == 1000
    assert get_counted_classes(models.get("lenet")) == 10


# Of lenet others are published: for images of 3 channels and 1000 classes.
@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"lenet"}))
def test_multiply_adds_are_the_published_ones(name):
    # The table has three decimals, which is all that the smallest networks have of it.
    gmacs = get_report(models.get(name)).gmacs
    assert gmacs == pytest.approx(PUBLISHED[name].gmacs, rel=0.03, abs=0.0005)


@pytest.mark.quick("lenet", "cifarnet", "alexnet_v2", "mobilenet_v1_025", "resnet_cifar10]")
@pytest.mark.parametrize("name", OWN)
def test_facts_are_true(name):
    assert get_report(models.get(name)) == describe(models.get(name))[0]


def test_facts_and_page_are_of_the_networks_there_are(script):
    reports = {name: get_report(models.get(name)) for name in sorted(OWN)}
    how = "python docs/make_models_page.py writes it anew"
    assert sorted(FACTS) == sorted(OWN), how
    assert script.FACTS.read_text(encoding="utf-8") == script.facts_source(reports), how
    assert script.PAGE.read_text(encoding="utf-8") == script.page(reports), how
