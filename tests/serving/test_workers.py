"""Processes behind a server: what a file that ends them does, and one that never loads."""

import signal
import threading

import numpy as np
import pytest

import penstock as ps
from penstock.serving import workers
from tests.commands.test_serve import files  # noqa: F401

X = {"x": np.arange(16, dtype=np.float32).reshape(2, 8)}


@pytest.fixture
def file(files):  # noqa: F811
    return files[0]


@pytest.fixture
def pool(request):
    ended, variables = threading.Event(), [{"JAX_PLATFORMS": "cpu"}]
    pool = workers.Workers(
        variables * getattr(request, "param", 2), lanes=1, place=None, on_failure=ended.set
    )
    pool.ended = ended
    yield pool
    pool.close()


# Each start of a process takes 2 s, and here are three.
@pytest.mark.parametrize("pool", [1], indirect=True)
def test_feeds_and_files_at_fault_are_refused_and_the_model_before_answers(pool, file, monkeypatch):
    model = pool.load(file, 2)
    assert model.batch_secs.keys() == {1, 2}  # by which batches are chosen
    assert min(model.batch_secs.values()) > 0
    with pytest.raises(ps.FeedError, match="expected"):
        model.infer_columns({"y": X["x"]})
    with pytest.raises(RuntimeError, match="KeyError"):
        pool.infer(7, X)
    wanted = ps.InferenceModel.load(file).infer(X)
    # What a hostile program does to JAX's reader: the process is gone, or reads for ever.
    for name, value in (("_send", end_instead_of_loading), ("_LOAD_SECS", 0.0)):
        with monkeypatch.context() as patch:
            patch.setattr(workers, name, value)
            with pytest.raises(ps.ModelFileError, match="lost while they loaded it"):
                pool.load(file, 1)
        np.testing.assert_allclose(model.infer_columns(X)["output"], wanted, atol=1e-6)
    assert not pool.ended.is_set()
    assert model.infer_columns(X)["output"].shape == (2, 3)


@pytest.mark.slow
def test_model_that_one_process_refuses_is_asked_of_none(pool, files, monkeypatch):  # noqa: F811
    before = pool.load(files[0], 2)

    def send(connection, message):
        is_bad = isinstance(message[1], tuple) and connection is pool._processes[1].control
        SEND(
            connection, (message[0], (*message[1][:2], {}, *message[1][3:])) if is_bad else message
        )

    monkeypatch.setattr(workers, "_send", send)
    with pytest.raises(RuntimeError, match="KeyError"):
        pool.load(files[0], 2)
    monkeypatch.undo()
    after = pool.load(files[1], 2)
    for model, path in ((before, files[0]), (after, files[1])):
        wanted = ps.InferenceModel.load(path).infer(X)
        for _ in range(8):  # whichever process is asked
            np.testing.assert_allclose(model.infer_columns(X)["output"], wanted, atol=1e-6)


@pytest.mark.slow
def test_process_that_cannot_have_its_models_again_is_given_up(pool, file, monkeypatch):
    model = pool.load(file, 2)

    def send(connection, message):
        is_load = isinstance(message[1], tuple)
        SEND(
            connection, (message[0], (*message[1][:2], {}, *message[1][3:])) if is_load else message
        )

    monkeypatch.setattr(workers, "_send", send)
    pool._processes[0].process.kill()
    assert pool.ended.wait(120)
    # The other one answers what is still asked.
    assert model.infer_columns(X)["output"].shape == (2, 3)


@pytest.mark.slow
def test_processes_that_never_start_end_the_server(pool, file, monkeypatch):
    model = pool.load(file, 1)
    monkeypatch.setattr(workers, "_send", end_instead_of_loading)
    for process in list(pool._processes.values()):
        process.process.kill()
    for thread in pool._threads:
        thread.join(120)
    assert pool.ended.is_set()
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="lost"):
        model.infer_columns(X)


SEND = workers._send


def end_instead_of_loading(connection, message):
    if isinstance(message[1], tuple):  # the parts of a model
        message = message[0], End()
    SEND(connection, message)


class End:
    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)
