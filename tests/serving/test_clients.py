"""A server at a port, asked by a browser that shows its page, and by Triton's own client."""

import contextlib
import importlib.util
import json
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from penstock import serving
from tests.distributed.launchers import require_python
from tests.readers.case import require
from tests.serving.stand_in import Doubler
from tests.source_tree import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def serve(app):
    """Run a server in a thread; yields its port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None or shutil.which("node") is None or not importlib.util.find_spec("uvicorn"),
    reason="Chromium, node or uvicorn is not installed",
)
def test_page_asks_the_models_and_shows_what_they_answer():
    """A picture is dropped, a text is typed, and the answers are seen."""
    models = {kind: Doubler(kind=kind) for kind in ("array", "image", "text")}
    with serve(serving.App(models, token="secret")) as port:
        program = Path(__file__).parent / "browser.mjs"
        words = ["node", "--experimental-websocket", program, CHROMIUM, f"http://127.0.0.1:{port}/"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["models"] == ["array", "image", "text"]
    assert seen["image"][::3] == ["cow", "dog", "cat"]
    assert seen["image"][1::3] == ["198.0", "196.0", "194.0"]
    assert seen["text xyz"][1::3] == ["244.0", "242.0", "240.0"]
    assert seen["array [[1, 2, 3]]"][:2] == ["cow", "6.000"]
    assert "JSON" in seen["array [1"][-1]
    assert "expected 3 of FP32 for [1, 3]" in seen["array [1]"][-1]
    # The browser has refused nothing by the page's policy; that the last one was refused it logs.
    assert [line for line in seen["complaints"] if "status of 400" not in line] == []


@pytest.mark.slow
def test_client_of_triton_is_answered():
    require("uvicorn")
    python = require_python("tritonclient")
    models = {"array": Doubler(), "image": Doubler(kind="image")}
    with serve(serving.App(models, load=lambda name: models[name])) as port:
        words = [python, "tests/serving/triton_client.py", str(port)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
