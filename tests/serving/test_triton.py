"""Triton's own client is answered."""

import importlib.util
import os
import subprocess

import pytest

from penstock import serving
from tests.distributed.launchers import require_python
from tests.serving.stand_in import Doubler
from tests.serving.test_page import serve
from tests.source_tree import ROOT


@pytest.mark.slow
def test_client_of_triton_is_answered():
    if os.environ.get("PENSTOCK_REQUIRE_EXTRAS") != "1" and not importlib.util.find_spec("uvicorn"):
        pytest.skip("uvicorn is not installed")
    python = require_python("tritonclient")
    models = {"array": Doubler(), "image": Doubler(kind="image")}
    with serve(serving.App(models, load=lambda name: models[name])) as port:
        words = [python, "tests/serving/triton_client.py", str(port)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
