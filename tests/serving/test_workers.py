"""Processes behind a server: what a file that ends them does, and one that never loads."""

import signal
import threading

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.serving import workers

X = {"x": np.arange(16, dtype=np.float32).reshape(2, 8)}


def infer_program():
    return layers.fc(layers.data("x", shape=[8]), size=3, act="softmax")


def train_program():
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.cross_entropy(infer_program(), label))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "m.penstock"
    trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=infer_program)
    trainer.save_inference_model(path, platforms=["cpu"])
    return path


@pytest.fixture
def pool():
    ended = threading.Event()
    pool = workers.Workers(
        [{"JAX_PLATFORMS": "cpu"}] * 2, lanes=1, place=None, on_failure=ended.set
    )
    pool.ended = ended
    yield pool
    pool.close()


def test_file_that_ends_its_processes_is_refused_and_the_model_before_answers(
    pool, file, monkeypatch
):
    model = pool.load(file, [1, 2])
    wanted = ps.InferenceModel.load(file).infer(X)
    # What a hostile program does to JAX's reader: the process is gone.
    monkeypatch.setattr(workers, "_send", end_instead_of_loading)
    with pytest.raises(ps.ModelFileError, match="lost while they loaded it"):
        pool.load(file, [1])
    monkeypatch.undo()
    np.testing.assert_allclose(model.infer_columns(X)["output"], wanted, atol=1e-6)
    assert not pool.ended.is_set()


def test_file_that_is_read_for_ever_is_refused(pool, file, monkeypatch):
    monkeypatch.setattr(workers, "_LOAD_SECS", 0.0)
    with pytest.raises(ps.ModelFileError, match="lost while they loaded it"):
        pool.load(file, [1])


def test_processes_that_never_start_end_the_server(pool, file, monkeypatch):
    model = pool.load(file, [1])
    monkeypatch.setattr(workers, "_send", end_instead_of_loading)
    for process in list(pool._processes.values()):
        process.process.kill()
    assert pool.ended.wait(120)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="lost"):
        model.infer_columns(X)


def test_only_feeds_and_models_at_fault_are_told_as_such(pool, file):
    model = pool.load(file, [1])
    with pytest.raises(ps.FeedError, match="expected"):
        model.infer_columns({"y": X["x"]})
    with pytest.raises(RuntimeError, match="KeyError"):
        pool.infer(7, X)
    assert model.infer_columns(X)["output"].shape == (2, 3)


SEND = workers._send


def end_instead_of_loading(connection, message):
    if isinstance(message[1], tuple):  # the parts of a model
        message = message[0], End()
    SEND(connection, message)


class End:
    """Ends the process that reads it."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)
