"""`fluid.Trainer` and `fluid.Inferencer`: both signatures, and lists of arrays."""

import functools
import inspect
import io
import json

import jax
import numpy as np
import pytest

import penstock as ps
import penstock.fluid as fluid

X = np.random.default_rng(0).normal(size=(32, 2)).astype("float32")
DATA = {"x": X, "y": X.sum(axis=1, keepdims=True)}
reader = ps.readers.arrays(DATA, batch_size=8)
ORDER = ["x", "y"]


def samples():
    yield from zip(DATA["x"], DATA["y"], strict=True)


def infer_program():
    return fluid.layers.fc(input=fluid.layers.data(name="x", shape=[2]), size=1)


def train_program():
    y = fluid.layers.data(name="y", shape=[1])
    cost = fluid.layers.square_error_cost(input=infer_program(), label=y)
    return fluid.layers.mean(cost)


def train_program_with_prediction():
    return [train_program(), infer_program()]


def optimizer_func():
    return fluid.optimizer.SGD(learning_rate=0.1)


def ignore(event):
    pass


def test_released_signature_by_position(tmp_path):
    trainer = fluid.Trainer(train_program, optimizer_func, str(tmp_path), fluid.CPUPlace(), False)
    trainer.train(np.int64(2), ignore, ps.readers.batch(samples, 8), ORDER)
    assert trainer.global_step == 8
    trainer.save_params(tmp_path / "params")
    again = fluid.Trainer(train_program, optimizer_func, tmp_path / "params")
    assert again.test(reader, ORDER) == trainer.test(reader, ORDER)
    inferencer = fluid.Inferencer(infer_program, tmp_path / "params", fluid.CPUPlace(), False)
    assert inferencer.infer({"x": X}, True)[0].shape == (32, 1)


def test_released_signature_by_name(tmp_path):
    trainer = fluid.Trainer(
        train_func=train_program,
        optimizer_func=optimizer_func,
        param_path=None,
        place=fluid.CPUPlace(),
        parallel=False,
        checkpoint_config=fluid.CheckpointConfig(str(tmp_path / "checkpoints"), 2, 1, 3),
    )
    trainer.train(reader=reader, num_epochs=1, event_handler=ignore, feed_order=ORDER)
    assert (tmp_path / "checkpoints" / "4").is_dir()
    trainer.save_params(tmp_path / "params")
    inferencer = fluid.Inferencer(
        infer_func=infer_program, param_path=tmp_path / "params", place=None, parallel=False
    )
    assert inferencer.infer(inputs={"x": X}, return_numpy=True)[0].shape == (32, 1)


def test_signature_of_the_draft(tmp_path):
    trainer = fluid.Trainer(
        program_func=train_program,
        optimizer=fluid.optimizer.SGD(),
        param_path=tmp_path,
        place=fluid.CPUPlace(),
        infer_func=infer_program,
    )
    trainer.train(num_epochs=1, event_handler=ignore, reader=reader, feed_order=ORDER)
    [prediction] = trainer.infer({"x": X})
    trainer.save_inference_model(tmp_path, ["x"], [0])
    assert (tmp_path / "params.safetensors").is_file()
    [same] = fluid.Inferencer(infer_func=infer_program, param_path=tmp_path).infer({"x": X})
    np.testing.assert_array_equal(prediction, same)


def test_trainer_takes_everything_that_penstocks_takes():
    assert inspect.signature(ps.Trainer).parameters.keys() <= (
        inspect.signature(fluid.Trainer).parameters.keys()
    ), "an argument of ps.Trainer is missing in penstock/fluid/trainer.py"


TRAINS = {"train_func": train_program}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "got no train_func, expected a function without arguments"),
        (
            {**TRAINS, "program_func": train_program},
            "got train_func and program_func, expected one of them. They are two names",
        ),
        (
            {**TRAINS, "optimizer_func": optimizer_func, "optimizer": optimizer_func()},
            "got optimizer_func and optimizer, expected one of them",
        ),
        (
            {**TRAINS, "checkpoint_config": fluid.CheckpointConfig("a"), "checkpoint": "a"},
            "got checkpoint_config and checkpoint, expected one of them",
        ),
        (
            {**TRAINS, "checkpoint_config": "a"},
            "got checkpoint_config='.*, expected a fluid.CheckpointConfig.*checkpoint=",
        ),
        (
            {"train_func": optimizer_func(), "optimizer_func": train_program},
            "function without arguments",
        ),
        (
            {**TRAINS, "param_path": jax.devices()[0]},
            "got param_path=.*, expected a folder. The order is Trainer.train_func, optimizer_func",
        ),
        ({**TRAINS, "parallel": 2}, "got parallel=2, expected True or False"),
        ({**TRAINS, "place": True}, "place got True, expected None"),
    ],
)
def test_wrong_arguments_of_the_trainer_are_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        fluid.Trainer(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((reader, ignore, 2, ORDER), r"got num_epochs=.*train\(num_epochs, event_handler"),
        ((1, ignore), "reader got NoneType, expected a function without arguments"),
        ((True, ignore, reader), "got num_epochs=True"),
        ((1, reader, ignore, ORDER), "event"),
    ],
)
def test_arguments_of_train_in_another_order_are_named(arguments, message):
    trainer = fluid.Trainer(train_program, optimizer_func)
    with pytest.raises(TypeError, match=message):
        trainer.train(*arguments)


@pytest.mark.parametrize("program", [train_program, train_program_with_prediction])
def test_metrics_and_test_are_lists_of_arrays(program):
    trainer = fluid.Trainer(program, optimizer_func)
    count = 1 if program is train_program else 2
    seen = []

    def handler(event):
        if isinstance(event, fluid.BeginStepEvent):
            event.fetch_metrics = event.step != 1
        if isinstance(event, fluid.EndStepEvent):
            seen.append(event.metrics)
        if isinstance(event, fluid.EndEpochEvent):
            seen.append(trainer.test(reader, feed_order=ORDER))
            assert isinstance(event.metrics, list)

    trainer.train(1, handler, reader, ORDER)
    assert [len(metrics) for metrics in seen] == [count, 0, count, count, count]
    seen.remove([])
    assert all(isinstance(metric, np.ndarray) for metrics in seen for metric in metrics)
    costs = [float(metrics[0]) for metrics in seen]
    assert costs[-1] < costs[0]
    assert "%f" % seen[0][0] == f"{seen[0][0]:f}" == "%f" % seen[0][0][0]  # noqa: UP031
    if count == 2:
        assert seen[0][1].shape == (8, 1)
    else:
        assert np.array(seen[0]).mean() == costs[0]


def test_epoch_has_no_value_of_a_metric_that_keeps_rows():
    def program():
        prediction, y = infer_program(), fluid.layers.data("y", [1])
        return [fluid.layers.mean(prediction), ps.metrics.Spearman.of(prediction, y)]

    seen = []
    fluid.Trainer(program, optimizer_func).train(1, seen.append, reader, ORDER)
    [[_, value]] = [event.metrics for event in seen if isinstance(event, fluid.EndEpochEvent)]
    assert value is None


def test_metrics_are_read_only_where_a_handler_reads_them():
    trainer = fluid.Trainer(train_program, optimizer_func)
    with jax.transfer_guard_device_to_host("disallow"):
        trainer.train(1, ignore, reader, ORDER)


def test_objectives_and_dicts_keep_their_names():
    def named():
        return {"cost": train_program()}

    seen = []
    trainer = fluid.Trainer(
        {"first": ps.Objective(train_program, optimizer_func), "second": ps.Objective(named)},
        schedule={"first": 1},
    )
    trainer.train(1, seen.append, reader, ORDER)
    tested = trainer.test(reader)
    assert isinstance(tested["first"], list)
    assert tested["first"] == [tested["second"]["cost"]]
    steps = [event for event in seen if isinstance(event, fluid.EndStepEvent)]
    assert [type(event.metrics["first"]) for event in steps] == [list] * 4


def test_infer_gives_a_list_also_for_several_values(tmp_path):
    fluid.Trainer(train_program, optimizer_func).save_params(tmp_path)

    def several():
        prediction = infer_program()
        return prediction, 2 * prediction

    inferencer = fluid.Inferencer(several, tmp_path)
    once, twice = inferencer.infer({"x": X})
    np.testing.assert_allclose(2 * once, twice)
    assert "%.2f" % twice[3] == f"{2 * once[3, 0]:.2f}"  # noqa: UP031
    on_device = inferencer.infer({"x": X}, return_numpy=False)
    assert [type(value) for value in on_device] == [type(jax.numpy.zeros(1))] * 2
    np.testing.assert_array_equal(np.array(on_device[0]), once)


@pytest.mark.parametrize("inputs", [X, [X], {"y": X}])
def test_infer_refuses_other_inputs(tmp_path, inputs):
    fluid.Trainer(train_program, optimizer_func).save_params(tmp_path)
    with pytest.raises(ps.FeedError, match="x"):
        fluid.Inferencer(infer_program, tmp_path).infer(inputs)


@pytest.mark.slow
def test_one_device_is_used_unless_parallel(tmp_path):
    make = functools.partial(fluid.Trainer, train_program, optimizer_func)
    count = len(jax.devices("cpu"))
    assert make(place=fluid.CPUPlace()).builder.mesh.size == 1
    assert make().builder.mesh.size == 1
    assert make(place=fluid.CPUPlace(), parallel=True).builder.mesh.size == count
    assert make(place=jax.devices("cpu")[:2]).builder.mesh.size == 2
    trainer = make(parallel=True)
    assert trainer.builder.mesh.size == len(jax.devices())
    trainer.save_params(tmp_path)
    inferencer = fluid.Inferencer(infer_program, tmp_path, parallel=True)
    assert inferencer.builder.mesh.size == len(jax.devices())


def test_checkpoint_config_goes_on_where_training_ended(tmp_path):
    config = fluid.CheckpointConfig(tmp_path / "runs", max_num_checkpoints=2, step_interval=3)
    make = functools.partial(fluid.Trainer, train_func=train_program, optimizer_func=optimizer_func)
    first = make(checkpoint_config=config)
    first.train(2, ignore, reader, ORDER)
    second = make(checkpoint_config=config)
    assert second.global_step == 8
    assert second.test(reader, ORDER) == first.test(reader, ORDER)


@pytest.mark.parametrize("name", ["max_num_checkpoints", "epoch_interval", "step_interval"])
def test_checkpoint_config_refuses_what_is_no_count(name):
    with pytest.raises(ValueError, match=f"{name} got 0, expected an integer of 1 or more"):
        fluid.CheckpointConfig("a", **{name: 0})


def test_handlers_of_penstock_read_the_same_metrics(tmp_path):
    log = ps.handlers.JSONLog(tmp_path / "log.jsonl", every_steps=1, names=("cost",))
    text = io.StringIO()
    evaluate = ps.handlers.Evaluate(reader, names=("cost",), monitor="cost", file=text)
    stopping = ps.handlers.EarlyStopping(monitor="cost", names=("cost",), patience=3)
    trainer = fluid.Trainer(train_program, optimizer_func)
    trainer.train(2, [log, evaluate, stopping], reader, ORDER)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(isinstance(line["cost"], float) for line in lines)
    assert "test at step 8: cost = " in text.getvalue()
    assert evaluate.last == {"cost": pytest.approx(float(trainer.test(reader)[0]))}


@pytest.mark.parametrize("module", ["trainer", "contrib.trainer"])
def test_scripts_may_import_everything_from_the_module(module):
    names = {}
    exec(f"from penstock.fluid.{module} import *", names)
    for name in ("Trainer", "EndStepEvent", "EndEpochEvent", "CheckpointConfig"):
        assert names[name] is getattr(fluid, name) is getattr(fluid.contrib, name)
    assert fluid.EndStepEvent is ps.EndStepEvent
    exec("from penstock.fluid.contrib.inferencer import *", names)
    assert names["Inferencer"] is fluid.Inferencer is fluid.contrib.Inferencer
