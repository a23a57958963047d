"""`penstock serve` as a process: reloads and drains under load, and workers that are killed."""

import contextlib
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests import compiling
from tests.commands.running import CODE, fail
from tests.readers.case import is_missing

X = np.arange(-4, 4, dtype=np.float32)[None] / 8
BODY = {"inputs": [{"name": "x", "shape": [1, 8], "datatype": "FP32", "data": X[0].tolist()}]}
TOKEN = "Bearer secret"
needs_server = pytest.mark.skipif(is_missing("uvicorn"), reason="uvicorn is not installed")


def infer_program():
    return layers.fc(layers.data("x", shape=[8]), size=3, act="softmax")


def train_program():
    label = layers.data("label", shape=[1], dtype="int32")
    return layers.mean(layers.cross_entropy(infer_program(), label))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Return the files of two models that answer otherwise."""
    folder = tmp_path_factory.mktemp("models")
    paths = [folder / "first.penstock", folder / "second.penstock"]
    for seed, path in enumerate(paths):
        trainer = ps.Trainer(train_program, optax.sgd(0.1), infer_func=infer_program, seed=seed)
        trainer.save_inference_model(path, platforms=["cpu"])
    return paths


@pytest.fixture
def model(files, tmp_path) -> Path:
    """Return the file that is served: the first model."""
    path = tmp_path / "m.penstock"
    replace(path, files[0])
    return path


def replace(path: Path, by: Path) -> None:
    """Put another model in the place of the one that is served."""
    path.with_suffix(".new").write_bytes(by.read_bytes())
    path.with_suffix(".new").replace(path)


def expect(files) -> dict[str, np.ndarray]:
    models = [ps.InferenceModel.load(path) for path in files]
    return {model.version: model.infer({"x": X}) for model in models}


class Server:
    """A process of `penstock serve`, from when it answers."""

    def __init__(self, *words: object) -> None:
        flags = ["serve", *map(str, words), "--port=0", "--max_batch_size=4"]
        own = {"XLA_FLAGS": compiling.xla_flags(), "JAX_PLATFORMS": "cpu"}
        own["PENSTOCK_SERVE_TOKEN"] = TOKEN.removeprefix("Bearer ")
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, *flags],
            env=os.environ | own,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        port = re.search(r"serving .* at http://127\.0\.0\.1:(\d+)", line)
        assert port is not None, line
        self.port = int(port[1])
        self.errors: list[object] = []
        self.versions: list[str] = []

    def ask(self, path: str, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            headers = {"Authorization": token}
            connection.request("GET" if body is None else "POST", path, text, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def load(self, expected: dict[str, np.ndarray], until: threading.Event) -> None:
        """Ask again and again on one connection, until the server says that it ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            while not until.is_set():
                headers = {"Authorization": TOKEN}
                connection.request("POST", "/v2/models/m/infer", json.dumps(BODY), headers)
                answer = connection.getresponse()
                result = json.loads(answer.read())
                wanted = expected[result["model_version"]].ravel()
                if not np.allclose(result["outputs"][0]["data"], wanted, atol=1e-6):
                    self.errors.append(result)
                self.versions.append(result["model_version"])
                if answer.headers.get("connection") == "close":
                    return
        # Whatever it is, the test is to see it.
        except Exception as error:
            self.errors.append(error)
        finally:
            connection.close()

    @contextlib.contextmanager
    def under_load(self, expected: dict[str, np.ndarray], clients: int = 8):
        done = threading.Event()
        threads = [
            threading.Thread(target=self.load, args=(expected, done)) for _ in range(clients)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in threads:
                thread.join()

    def wait_for_version(self, version: str) -> None:
        start = len(self.versions)
        while version not in self.versions[start:] and not self.errors:
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def check_limits(server: Server) -> None:
    """See that a server asks for its token, and reads no more than is sensible."""
    assert server.ask("/v2", token="")[0] == 401
    assert server.ask("/v2")[0] == 200
    for text in (
        b"GET / HTTP/1.1\r\nx: ",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
            peer.sendall(text)
            # More than a parser should hold; it stops to take it before all is there.
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    peer.sendall(b"a" * 10_000)
                raise AssertionError("10 MB of headers were taken")
    for status, token in ((413, TOKEN), (401, "")):
        assert server.ask("/v2/models/m/infer", " " * (50 << 20), token)[0] == status
    assert server.ask("/v2/health/live")[0] == 200


@needs_server
def test_limits_are_kept_and_reload_and_drain_under_load_lose_and_mistake_no_request(files, model):
    expected = expect(files)
    first, second = expected
    with Server(model, "--linger=1") as server:
        check_limits(server)
        with server.under_load(expected):
            server.wait_for_version(first)
            replace(model, files[1])
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_version(second)
            replace(model, files[0])
            assert server.ask("/v2/repository/models/m/load", {}) == (200, {})
            server.wait_for_version(first)
            # What is no model leaves the one before.
            model.write_bytes(b"nothing")
            status, answer = server.ask("/v2/repository/models/m/load", {})
            assert status == 400
            assert answer["error"].startswith("model 'm' cannot be loaded: ")
            server.process.send_signal(signal.SIGTERM)
            while server.ask("/v2/health/ready")[0] == 200:
                pass
            # They end by the answer that says it, and not by an error.
            while threading.active_count() > 1 and not server.errors:
                time.sleep(0.01)
                if server.process.poll() is not None:
                    break
        assert server.process.wait(60) == 0
    assert server.errors == []
    assert set(server.versions) == {first, second}


def find_workers(server: Server) -> list[int]:
    """Return the processes that run models, in any order."""
    workers = []
    for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        pids: list[str] = []
        # A thread of the server may end meanwhile, as a child may.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pids = children.read_text().split()
        for pid in pids:
            # Python's own helper for resources is a child too.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    workers.append(int(pid))
    return workers


@pytest.mark.slow
@needs_server
def test_workers_that_are_killed_lose_no_request_and_are_started_again(files, model):
    expected = expect(files)
    first, second = expected
    with Server(model, "--workers=2") as server:
        before = find_workers(server)
        assert len(before) == 2
        with server.under_load(expected):
            server.wait_for_version(first)
            os.kill(before[0], signal.SIGKILL)
            server.wait_for_version(first)
            # The next one has the model that is served, whatever its file is by now.
            replace(model, files[1])
            while len(set(find_workers(server)) - set(before)) < 1:
                time.sleep(0.01)
            os.kill(before[1], signal.SIGKILL)
            server.wait_for_version(first)
            assert server.ask("/v2/repository/models/m/load", {}) == (200, {})
            server.wait_for_version(second)
        # What was asked before the load may be answered after the first that was asked behind it.
        num_answers = len(server.versions)
        with server.under_load(expected):
            server.wait_for_version(second)
        assert set(server.versions[num_answers:]) == {second}
        workers = find_workers(server)
        assert not set(workers) & set(before)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    assert server.errors == []
    for pid in workers:
        assert not Path(f"/proc/{pid}").exists()


def test_port_in_use_and_files_of_something_else_are_said(capsys, model, tmp_path):
    if importlib.util.find_spec("uvicorn") is None:
        err = fail(capsys, "serve", str(model))
        assert 'pip install "penstock[serve]"' in " ".join(err.split())
        return
    (tmp_path / "other").write_bytes(b"nothing")
    err = fail(capsys, "serve", str(tmp_path / "other"), "--port=0")
    assert "penstock serve: " in err
    err = fail(capsys, "serve", str(model), "--host=1.2.3.4", "--port=0", status=2)
    assert "expected an address that can be listened at" in " ".join(err.split())
