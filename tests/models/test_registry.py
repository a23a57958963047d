"""The registry of networks: by name, with settings, and one's own."""

import importlib

import jax
import pytest

import penstock as ps
from penstock import layers, models
from penstock._errors import UnknownNameError
from penstock.models import _registry


def test_unknown_network_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match=r"models.get got 'lenett', .* Did you mean 'lenet'"):
        models.get("lenett")


def test_names_are_sorted_and_match_a_glob():
    assert models.names() == sorted(models.names())
    assert "cifarnet" in models.names("cifar*")
    assert models.names("no_such_*") == []


def test_registered_network_is_built_by_its_name():
    @models.register("of_this_test", default_image_size=4, num_classes=3)
    def tiny(images, num_classes):
        features = layers.fc(images, 5)
        return (features if num_classes is None else layers.fc(features, num_classes)), {}

    assert models.get("of_this_test").function is tiny
    assert "of_this_test" in models.names()
    builder = ps.ProgramBuilder(infer_func=models.classifier("of_this_test", 3).infer_program)
    shapes = {row.name: row.shape for row in builder.parameter_table()}
    assert shapes == {"fc_0/w": (48, 5), "fc_0/b": (5,), "fc_1/w": (5, 3), "fc_1/b": (3,)}


def test_name_that_is_taken_is_an_error_and_changes_nothing():
    before = models.get("lenet")
    with pytest.raises(ValueError, match=r"got the name 'lenet', expected one that is not taken"):
        models.register("lenet", default_image_size=4)(lambda images, num_classes: (images, {}))
    assert models.get("lenet") == before


def test_settings_that_are_none_are_the_networks_own():
    own = models.get("cifarnet").settings
    changed = models.get("cifarnet", models.Settings(dropout=0.1)).settings
    assert (changed.dropout, changed.weight_decay) == (0.1, own.weight_decay)
    assert own.dropout == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dropout", 1.5),
        ("batch_norm_decay", -0.1),
        ("batch_norm_group_size", 0),
        ("drop_path", 1.0),
        ("weight_decay", -1.0),
    ],
)
def test_setting_out_of_its_range_says_the_range(field, value):
    with pytest.raises(ValueError, match=rf"models.Settings got {field}={value}, expected a numb"):
        models.Settings(**{field: value})


def test_network_of_no_classes_is_an_error_and_of_none_gives_features():
    lenet = models.get("lenet")

    def program(num_classes):
        return lambda: lenet(layers.data("image", [28, 28, 1]), num_classes)[0]

    with pytest.raises(
        ValueError, match=r"model 'lenet' got num_classes=0, expected an integer of 1"
    ):
        ps.ProgramBuilder(infer_func=program(0))
    builder = ps.ProgramBuilder(infer_func=program(None), place=jax.devices()[:1])
    feed = {"image": jax.numpy.zeros([2, 28, 28, 1])}
    assert builder.infer(builder.init(), feed).shape == (2, 1024)


def test_loading_that_was_interrupted_begins_again(monkeypatch):
    load, library = _registry.load_families.__wrapped__, _registry.load_families()
    monkeypatch.setattr(_registry, "_MODELS", {})
    with monkeypatch.context() as patch:
        patch.setattr(_registry, "FAMILIES", ("vgg", "interrupted"))
        patch.setattr(importlib, "import_module", _import_or_interrupt)
        with pytest.raises(KeyboardInterrupt):
            load()
    assert load() == library
    assert _registry._MODELS.keys() == library.keys()


def _import_or_interrupt(name, own=importlib.import_module):
    if name.endswith("interrupted"):
        raise KeyboardInterrupt
    return own(name)
