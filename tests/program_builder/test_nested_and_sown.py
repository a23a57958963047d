"""Returned values that are nested, and those that flax modules sow."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import handlers, layers, readers
from tests.networks import Recorder, linear_data, one_device


def network():
    """Return a prediction [B, 1] and a label [B, 1]."""
    return layers.fc(layers.data("x", shape=[4]), size=1), layers.data("y", shape=[1])


class Sowing(nn.Module):
    """A dense layer that sows what it returns, and an auxiliary loss."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(1)(x)
        self.sow("intermediates", "hidden", x)
        self.sow("losses", "size", jnp.mean(x**2))
        return x


@pytest.mark.parametrize("num_devices", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_sown_values_are_returned_and_trained_on(num_devices):
    def program():
        hidden = Sowing(name="sowing")(layers.data("x", shape=[4]))
        loss = sum(layers.sown("losses")["sowing"]["size"])
        return {"loss": loss, "sown": layers.sown(), "hidden": hidden}

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=jax.devices()[:num_devices])
    state = builder.init()
    batch = {"x": linear_data(6)["x"]}
    for step in (builder.test, lambda *args: builder.train(*args)[1]):
        values = step(state, batch)
        expected = np.asarray(values["hidden"])
        np.testing.assert_array_equal(values["sown"]["sowing"]["hidden"][0], expected)
        assert float(values["loss"]) == pytest.approx(float(np.mean(expected**2)), rel=1e-5)


def test_nested_metrics_come_back_in_their_structure(tmp_path):
    """In steps, epochs, tests and infer; handlers and checkpoints call each by its path."""

    def program():
        prediction, label = network()
        error = prediction - label
        inner = {"squares": [layers.mean(error**2), layers.mean(abs(error))], "rows": prediction}
        return {"z": {"inner": inner, "bias": (layers.mean(error),)}, "loss": layers.mean(error**2)}

    config = ps.CheckpointConfig(directory=tmp_path, num_best=1, monitor="z/inner/squares/1")
    trainer = ps.Trainer(
        program,
        optax.sgd(0.1),
        infer_func=lambda: {"a": [network()[0]]},
        place=one_device(),
        checkpoint=config,
    )
    recorder = Recorder()
    json_log = handlers.JSONLog(tmp_path / "log.jsonl")
    trainer.train(readers.arrays(linear_data(6), 4), [recorder, json_log])
    step = recorder.of(ps.EndStep)[-1].metrics
    assert list(step) == ["z", "loss"]
    assert step["z"]["inner"]["squares"][0] == step["loss"]
    assert step["z"]["inner"]["rows"].shape == (2, 1)
    means = trainer.test(readers.arrays(linear_data(6), 4))
    assert jax.tree.structure(means) == jax.tree.structure(step)
    assert means["z"]["inner"]["squares"][0] == means["loss"]
    assert trainer.infer(linear_data(6))["a"][0].shape == (6, 1)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[-1]["z inner squares metric_1"] == pytest.approx(
        recorder.of(ps.EndEpoch)[-1].metrics["z"]["inner"]["squares"][1]
    )
