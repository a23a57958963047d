"""Triton's own client is answered."""

import importlib.util
import os
import socket
import subprocess
import threading

import pytest

from tests.distributed.launchers import require_python
from tests.serving.stand_in import Doubler
from tests.source_tree import ROOT


@pytest.mark.slow
def test_client_of_triton_is_answered():
    if os.environ.get("PENSTOCK_REQUIRE_EXTRAS") != "1" and not importlib.util.find_spec("uvicorn"):
        pytest.skip("uvicorn is not installed")
    import uvicorn

    from penstock import serving

    python = require_python("tritonclient")
    models = {"array": Doubler(), "image": Doubler(kind="image")}
    app = serving.App(models, load=lambda name: models[name])
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        words = [python, "tests/serving/triton_client.py", str(listener.getsockname()[1])]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        server.should_exit = True
        thread.join()
    assert done.returncode == 0, done.stderr
