"""Parameters by name, in memory and on disk: what fits, what does not, and what a crash leaves."""

import json
import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file, save_file

import penstock as ps
from penstock import _parameters, layers
from tests.networks import (
    PLACES,
    assert_same_bits,
    eight_devices,
    linear_data,
    linear_program,
    linear_reader,
    one_device,
)


def infer_program():
    """Return a network with parameters, statistics and a scope."""
    hidden = layers.fc(layers.data("x", shape=[4]), size=5, act="relu")
    hidden = layers.batch_norm(hidden)
    return layers.scope("head")(lambda: layers.fc(hidden, size=1))()


def train_program():
    cost = layers.square_error_cost(infer_program(), layers.data("y", shape=[1]))
    return layers.mean(cost)


NAMES = {
    "fc_0/w",
    "fc_0/b",
    "batch_norm_0/scale",
    "batch_norm_0/bias",
    "head/fc_0/w",
    "head/fc_0/b",
    "batch_norm_0/mean",
    "batch_norm_0/variance",
}


def make_trainer(place=one_device, **arguments):
    return ps.Trainer(
        train_program, optax.adam(0.01), infer_func=infer_program, place=place(), **arguments
    )


def make_linear_trainer(place=one_device, **options):
    return ps.Trainer(linear_program, optax.adam(0.01), place=place(), **options)


@pytest.fixture(scope="module")
def trainer():
    trainer = make_trainer()
    trainer.train(linear_reader())
    return trainer


@pytest.fixture(scope="module")
def saved(trainer, tmp_path_factory):
    """Return a folder of parameters after one epoch, and what is in it by name."""
    folder = tmp_path_factory.mktemp("saved") / "linear.params"
    trainer.save_params(folder)
    return folder, dict(trainer.parameters)


# The mapping.


def test_parameters_are_named_by_their_paths(trainer):
    assert set(trainer.parameters) == NAMES
    assert len(trainer.parameters) == len(NAMES)
    assert trainer.parameters["head/fc_0/w"].shape == (5, 1)
    assert "'head/fc_0/w': (5, 1)" in repr(trainer.parameters)


def test_parameter_read_is_a_copy_on_the_host(trainer):
    value = trainer.parameters["fc_0/w"]
    assert isinstance(value, np.ndarray)
    value[:] = 7
    assert not np.any(trainer.parameters["fc_0/w"] == 7)


@PLACES
def test_parameter_set_changes_what_is_predicted_tested_and_trained(place):
    trainer = make_trainer(place)
    data = linear_data(6)
    for name in ("head/fc_0/w", "fc_0/w"):
        trainer.parameters[name] = np.zeros_like(trainer.parameters[name])
    trainer.parameters["head/fc_0/b"] = [2.5]
    np.testing.assert_array_equal(trainer.infer({"x": data["x"]}), np.full((6, 1), 2.5))
    np.testing.assert_allclose(trainer.test([data]), np.mean((2.5 - data["y"]) ** 2), rtol=1e-6)
    trainer.train([data])
    assert trainer.parameters["head/fc_0/b"] != 2.5


def test_parameter_of_another_shape_or_kind_is_refused_and_nothing_changes(trainer):
    before = dict(trainer.parameters)
    for value, got in ((np.zeros((4, 4)), r"\(4, 4\) and dtype float64"), ("w", "dtype <U1")):
        with pytest.raises(ps.ParameterError, match=f"parameter 'fc_0/w' got shape .*{got}, expec"):
            trainer.parameters["fc_0/w"] = value
    assert_same_bits(dict(trainer.parameters), before)


def test_unknown_parameter_is_refused_with_the_nearest_name(trainer):
    text = "parameters got 'head/fc_0/v', expected one of 'batch_norm_0/mean', 'batch_norm_0/"
    with pytest.raises(ps.UnknownNameError) as caught:
        trainer.parameters["head/fc_0/v"]
    assert str(caught.value).startswith(text)
    assert str(caught.value).endswith("Did you mean 'head/fc_0/w'?")
    with pytest.raises(KeyError):
        trainer.parameters["head/fc_0/v"] = 1.0
    assert "head/fc_0/v" not in trainer.parameters


def test_parameter_cannot_be_removed(trainer):
    with pytest.raises(TypeError, match="parameter 'fc_0/w' cannot be removed, its program needs"):
        del trainer.parameters["fc_0/w"]


# Saving and loading.


def test_saved_parameters_load_bit_for_bit_on_any_number_of_devices(saved, trainer):
    folder, expected = saved
    data = linear_data(6)
    for place in (one_device, eight_devices):
        other = make_trainer(place, seed=5)
        report = other.load_params(folder)
        assert report.pop("loaded") == sorted(expected)
        assert not any(report.values())
        assert_same_bits(dict(other.parameters), expected)
        inferencer = ps.Inferencer(infer_program, folder, place=place())
        assert_same_bits(inferencer.infer({"x": data["x"]}), other.infer({"x": data["x"]}))


def test_folder_holds_safetensors_and_a_description_and_nothing_else(saved):
    folder, expected = saved
    assert sorted(os.listdir(folder)) == ["description.json", "params.safetensors"]
    description = json.loads((folder / "description.json").read_text())
    assert {entry["name"] for entry in description["entries"]} == NAMES
    [entry] = [e for e in description["entries"] if e["name"] == "batch_norm_0/mean"]
    assert entry == {
        "name": "batch_norm_0/mean",
        "collection": "batch_stats",
        "shape": [5],
        "dtype": "float32",
    }
    assert len(load_file(folder / "params.safetensors")) == len(expected)


@pytest.mark.parametrize("has_earlier", [False, True])
def test_process_that_does_not_write_reads_what_process_0_has_written(
    has_earlier, tmp_path, monkeypatch
):
    def make(number):
        return {"params": {"fc_0": {"w": np.full([2, 3], number, np.float32)}}}

    if has_earlier:
        _parameters.save(tmp_path / "p", make(1))
    with monkeypatch.context() as patch:
        patch.setattr(jax, "process_index", lambda: 1)
        _parameters.save(tmp_path / "p", make(2))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_parameters.read_parameters, tmp_path / "p")
        assert not reading.done()
        time.sleep(0.2)  # in which it reads what is there
        _parameters.save(tmp_path / "p", make(2))
        (value,) = reading.result(60).values()
    assert value.tolist() == make(2)["params"]["fc_0"]["w"].tolist()
    # What another script writes later is nothing to wait for.
    _parameters.save(tmp_path / "p", make(3))
    (value,) = _parameters.read_parameters(tmp_path / "p").values()
    assert value[0, 0] == 3


@pytest.mark.parametrize("name", ["none", ""])
def test_param_path_of_a_trainer_that_has_nothing_yet_starts_anew_and_says_so(
    tmp_path, caplog, name
):
    trainer = make_trainer(param_path=tmp_path / name, seed=3)
    assert_same_bits(dict(trainer.parameters), dict(make_trainer(seed=3).parameters))
    assert "training starts from initial values" in caplog.text


def test_load_keeps_optimizer_state_and_step_numbers(tmp_path):
    loaded, untouched = make_linear_trainer(), make_linear_trainer()
    for trainer in (loaded, untouched):
        trainer.train(linear_reader())
    loaded.save_params(tmp_path)
    loaded.parameters["fc_0/w"] = np.zeros((4, 1))
    loaded.load_params(tmp_path)
    assert (loaded.epoch, loaded.global_step) == (1, 3)
    for trainer in (loaded, untouched):
        trainer.train(linear_reader())
    assert_same_bits(dict(loaded.parameters), dict(untouched.parameters))


@pytest.mark.quick("params.safetensors")
@pytest.mark.parametrize("file", ["params.safetensors", "description.json"])
def test_crash_in_the_middle_of_a_save_leaves_loadable_parameters(
    saved, trainer, tmp_path, monkeypatch, file
):
    first = make_trainer(seed=4)
    first.save_params(tmp_path)
    replace = os.replace

    def crash(source, target):
        if os.fspath(target).endswith(file):
            raise OSError("the disk is full")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(OSError, match="the disk is full"):
            trainer.save_params(tmp_path)
    expected = first if file == "params.safetensors" else trainer
    other = make_trainer()
    other.load_params(tmp_path)
    assert_same_bits(dict(other.parameters), dict(expected.parameters))
    assert sorted(os.listdir(tmp_path)) == ["description.json", "params.safetensors"]


def test_save_to_a_file_is_refused(trainer, tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(NotADirectoryError, match="which is a file, expected a folder or a new"):
        trainer.save_params(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_parameters_of_every_dtype_and_shape_save_and_load(tmp_path):
    def make(key, shape, dtype):
        return (jnp.arange(np.prod(shape)) + 1).reshape(shape).astype(dtype)

    def program():
        for dtype in ("bfloat16", "float16", "int32", "bool"):
            for shape in ((2, 3), ()):
                name = f"{dtype} of {len(shape)} axes"
                value = layers.create_parameter(shape, dtype=dtype, name=name, attr=make)
                assert value.dtype == dtype
        return layers.data("x", shape=[2])

    builder = ps.ProgramBuilder(infer_func=program, place=one_device())
    saved = builder.init().variables
    _parameters.save(tmp_path, saved)
    inferencer = ps.Inferencer(program, tmp_path, place=one_device())
    assert_same_bits(dict(inferencer.parameters), dict(saved["params"]))


# What does not fit.


def changed(saved, folder, change):
    """Save changed entries to another folder."""
    entries = load_file(saved[0] / "params.safetensors")
    change(entries)
    folder.mkdir(exist_ok=True)
    save_file(entries, folder / "params.safetensors")
    return folder


def spoil(entries):
    del entries["params/fc_0/b"]
    del entries["batch_stats/batch_norm_0/mean"]
    entries["params/fc_1/w"] = np.zeros((2, 3), np.float32)
    entries["params/head/fc_0/w"] = np.zeros((6, 1), np.float32)
    entries["params/fc_0/w"] = entries["params/fc_0/w"].astype(np.float16)


LINES = [
    "  missing: fc_0/b float32[5]",
    "  missing: batch_norm_0/mean float32[5]",
    "  extra: fc_1/w float32[2, 3]",
    "  mismatched: head/fc_0/w got float32[6, 1], expected float32[5, 1]",
    "  mismatched: fc_0/w got float16[4, 5], expected float32[4, 5]",
]


@pytest.mark.parametrize("load", ["trainer", "inferencer", "param_path"])
def test_parameters_that_do_not_fit_are_all_listed_in_one_error(saved, tmp_path, load):
    folder = changed(saved, tmp_path, spoil)
    trainer = make_trainer()
    before = dict(trainer.parameters)
    with pytest.raises(ps.ParameterError) as caught:
        {
            "trainer": lambda: trainer.load_params(folder),
            "inferencer": lambda: ps.Inferencer(infer_program, folder, place=one_device()),
            "param_path": lambda: make_trainer(param_path=folder),
        }[load]()
    first, *lines, hint = str(caught.value).splitlines()
    assert first == f"the parameters in {str(folder)!r} do not fit the program:"
    assert sorted(lines) == sorted(LINES)
    assert ("ignore_extra=True" if load == "inferencer" else "partial=True") in hint
    assert_same_bits(dict(trainer.parameters), before)


def test_partial_load_takes_what_fits_and_reports_the_rest(saved, tmp_path):
    folder, expected = changed(saved, tmp_path, spoil), saved[1]
    trainer = make_trainer(seed=8)
    before = dict(trainer.parameters)
    report = trainer.load_params(folder, partial=True)
    assert {kind: len(lines) for kind, lines in report.items()} == {
        "loaded": len(expected) - 4,
        "excluded": 0,
        "missing": 2,
        "extra": 1,
        "mismatched": 2,
    }
    kept = {"fc_0/b", "batch_norm_0/mean", "head/fc_0/w", "fc_0/w"}
    for name, value in trainer.parameters.items():
        np.testing.assert_array_equal(value, (before if name in kept else expected)[name])
    trainer.train(linear_reader())


@pytest.mark.parametrize(
    "spoil_file",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"not safetensors at all" * 10,
        lambda data: data[:20] + b"\xff\xff" + data[22:],
    ],
    ids=["cut off", "empty", "foreign", "header"],
)
def test_damaged_file_is_refused(saved, trainer, tmp_path, spoil_file):
    file = tmp_path / "params.safetensors"
    file.write_bytes(spoil_file((saved[0] / "params.safetensors").read_bytes()))
    with pytest.raises(ps.ParameterError) as caught:
        trainer.load_params(tmp_path)
    assert str(caught.value).startswith(
        f"{str(file)!r} got damaged or is no safetensors file, expected one written by "
        "trainer.save_params ("
    )


def test_safetensors_file_of_another_library_is_refused(tmp_path):
    save_file({"weight": np.zeros(2, np.float32)}, tmp_path / "params.safetensors")
    with pytest.raises(ps.ParameterError, match="got an entry 'weight', expected names that begin"):
        ps.Inferencer(infer_program, tmp_path, place=one_device())


@pytest.mark.parametrize("name", ["none", ""])
def test_folder_without_parameters_is_refused(tmp_path, trainer, name):
    (tmp_path / "notes.txt").write_text("nothing to load")
    loads = [trainer.load_params, lambda path: ps.Inferencer(infer_program, path)]
    if not name:
        loads.append(lambda path: make_trainer(param_path=path))
    for load in loads:
        with pytest.raises(FileNotFoundError) as caught:
            load(tmp_path / name)
        assert str(caught.value).startswith(
            f"param_path got {str(tmp_path / name)!r}, expected a folder of save_params, with "
            "params.safetensors"
        )


def test_several_parameters_are_replaced_at_once_or_not_at_all(trainer):
    before = dict(trainer.parameters)
    changed_all = {name: value + np.float32(1) for name, value in before.items()}
    trainer.parameters.update(changed_all)
    assert_same_bits(dict(trainer.parameters), changed_all)
    with pytest.raises(ps.ParameterError, match="'fc_0/w' got shape"):
        trainer.parameters.update({"fc_0/b": before["fc_0/b"], "fc_0/w": np.zeros(2)})
    assert_same_bits(dict(trainer.parameters), changed_all)
    trainer.parameters.update(pair for pair in before.items())
    assert_same_bits(dict(trainer.parameters), before)


# Where they are read from.


def linear():
    return layers.fc(layers.data("x", shape=[4]), size=1)


@pytest.mark.quick("params", "3")
@pytest.mark.parametrize("part", ["params", "checkpoints", "checkpoints/3", ".", "checkpoint"])
def test_everything_that_takes_parameters_takes_the_same_paths(tmp_path, part):
    folder = tmp_path / "checkpoints"
    trainer = make_linear_trainer(checkpoint=folder)
    trainer.train(linear_reader())
    if part == "params":
        trainer.save_params(tmp_path / part)
    if part == "checkpoint":  # called otherwise, and alone
        folder.rename(tmp_path / part)
    expected = dict(trainer.parameters)
    path = tmp_path / part
    started = make_linear_trainer(param_path=path, seed=5)
    loaded = make_linear_trainer(seed=5)
    loaded.load_params(path)
    inferencer = ps.Inferencer(linear, path)
    for owner in (started, loaded, inferencer):
        assert_same_bits(dict(owner.parameters), expected)


def test_file_that_the_disk_does_not_take_is_an_os_error_and_leaves_nothing(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*params\.safetensors"):
            _parameters.save(tmp_path, {"params": {"w": np.zeros([1000], np.float32)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
