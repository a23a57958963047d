"""What deploy/serving holds starts what `penstock serve` knows, and waits as long as it needs."""

import asyncio
import importlib
import json
import re
from typing import Any

import pytest
import yaml

from penstock import serving
from penstock.commands._argument_parser import parse
from penstock.commands.serve import ServeFlags
from tests.distributed.test_manifests import find_unknown
from tests.readers.case import require
from tests.serving.stand_in import ask
from tests.source_tree import ROOT

FOLDER = ROOT / "deploy/serving"


def read_entrypoint() -> list[str]:
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    words = json.loads(line)
    assert words[:2] == ["penstock", "serve"]
    return words[2:]


def read_predictor() -> dict[str, Any]:
    text = (FOLDER / "inferenceservice.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    assert (document["apiVersion"], document["kind"]) == (
        "serving.kserve.io/v1beta1",
        "InferenceService",
    )
    return document["spec"]["predictor"]


def read_flags(words) -> ServeFlags:
    return parse(ServeFlags, words)[0]


def test_image_listens_where_its_port_is_and_serves_what_is_mounted():
    flags = read_flags([*read_entrypoint(), "/models/model.penstock"])
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    assert flags.host == "0.0.0.0"
    assert f"EXPOSE {flags.port}\n" in text
    assert f"CMD {json.dumps(list(flags.files))}\n" in text


def test_service_checks_and_ends_the_server_as_it_is_started():
    predictor = read_predictor()
    (container,) = predictor["containers"]
    flags = read_flags([*read_entrypoint(), *container["args"]])
    assert container["name"] == "kserve-container"
    assert [port["containerPort"] for port in container["ports"]] == [flags.port]
    assert predictor["terminationGracePeriodSeconds"] > flags.linger + flags.grace
    # Where it says that it is not ready, for as long as that takes to be seen.
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < flags.linger
    # No check has a token.
    app = serving.App({}, token="secret")
    for name in ("startup", "readiness", "liveness"):
        check = container[f"{name}Probe"]["httpGet"]
        assert check["port"] == flags.port
        assert asyncio.run(ask(app, "GET", check["path"])).status == 200


@pytest.mark.slow
def test_container_fits_the_schema_of_kubernetes():
    require("kubeflow_trainer_api")
    models: Any = importlib.import_module("kubeflow_trainer_api.models")
    (container,) = read_predictor()["containers"]
    read = models.IoK8sApiCoreV1Container.from_dict(container).to_dict()
    assert find_unknown(container, read) == []
