"""What deploy/ holds fits the schemas of the clusters it is for, and starts what penstock knows."""

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from penstock.commands.train import read_flags
from penstock.distributed.exit_codes import is_again
from tests.source_tree import ROOT

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
MODELS = {
    "JobSet": "JobsetV1alpha2JobSet",
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
}
"""The classes of kubeflow_trainer_api that have the schemas of Kubernetes, JobSet and Trainer."""


def documents() -> Iterator[Any]:
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield pytest.param(document, id=f"{path.stem}-{document['kind']}")


def pod_template(document: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the one job that a JobSet or a runtime has."""
    spec = document["spec"]
    spec = spec["template"]["spec"] if "template" in spec else spec
    (job,) = spec["replicatedJobs"]
    return job["template"]["spec"]


def find_unknown(document: Any, reading: Any, where: str = "") -> list[str]:
    """Return the places in a document that a schema's reading of it has not, or otherwise."""
    if isinstance(document, dict) and isinstance(reading, dict):
        return [
            line
            for key, value in document.items()
            for line in find_unknown(value, reading.get(key), f"{where}.{key}")
        ]
    if isinstance(document, list) and isinstance(reading, list) and len(document) == len(reading):
        pairs = enumerate(zip(document, reading, strict=True))
        return [line for n, (a, b) in pairs for line in find_unknown(a, b, f"{where}[{n}]")]
    return [] if document == reading else [f"{where}: got {document!r}, the schema has {reading!r}"]


def read_by_schema(document: dict[str, Any]) -> Any:
    """Return what Kubernetes would make of a document; raises where that is nothing."""
    is_required = os.environ.get("PENSTOCK_REQUIRE_EXTRAS") == "1"
    if not is_required and importlib.util.find_spec("kubeflow_trainer_api") is None:
        pytest.skip("kubeflow-trainer-api is not installed")
    models = importlib.import_module("kubeflow_trainer_api.models")
    return getattr(models, MODELS[document["kind"]]).from_dict(document).to_dict()


def test_there_is_a_manifest_of_each_kind():
    expected = ["jobset_gpu", "jobset_tpu", "trainjob_gpu", "trainjob_tpu"]
    assert [path.stem for path in MANIFESTS] == expected


@pytest.mark.slow
@pytest.mark.parametrize("document", [*documents()])
def test_manifest_fits_its_schema(document):
    assert find_unknown(document, read_by_schema(document)) == []


def split_words(command: str) -> list[str]:
    """Return the words of a command that a shell reads, on several lines."""
    return shlex.split(command.replace("\\\n", ""))


def commands() -> Iterator[Any]:
    """Yield the words of every command line in deploy/."""
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document["kind"] == "TrainJob":
                containers = [document["spec"]["trainer"]]
            else:
                containers = pod_template(document)["template"]["spec"]["containers"]
            for container in containers:
                if "command" in container:
                    yield pytest.param(container["command"] + container["args"], id=path.stem)
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text(encoding="utf-8"))
    yield pytest.param(split_words(task["run"]), id="skypilot")
    script = (DEPLOY / "slurm.sbatch").read_text(encoding="utf-8")
    example = re.search(r"(penstock train.*?)\n#\n", script, re.DOTALL)
    assert example is not None
    yield pytest.param(split_words(example[1].replace("\n#", "\n")), id="sbatch")


@pytest.mark.parametrize("words", [*commands()])
def test_command_line_is_one_that_penstock_reads(words):
    assert words[:2] == ["penstock", "train"]
    flags = read_flags(words[2:])
    assert flags.model.model_name == "resnet_v1_50"


@pytest.mark.parametrize("document", [*documents()])
def test_cluster_starts_again_what_penstock_wants_started_again(document):
    if document["kind"] == "TrainJob":
        assert document["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
        return
    job = pod_template(document)
    (rule,) = job["podFailurePolicy"]["rules"]
    (container,) = job["template"]["spec"]["containers"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["containerName"] == container["name"]
    # Kubernetes takes such a rule only with restartPolicy Never, and a Job that does not retry.
    assert (job["template"]["spec"]["restartPolicy"], job["backoffLimit"]) == ("Never", 0)
    assert not any(is_again(code) for code in rule["onExitCodes"]["values"])


@pytest.mark.parametrize("document", [*documents()])
def test_pods_have_the_secret_of_the_run_where_there_is_one(document):
    if document["kind"] == "TrainJob":
        return
    (container,) = pod_template(document)["template"]["spec"]["containers"]
    (source,) = [e["valueFrom"] for e in container["env"] if e["name"] == "PENSTOCK_SECRET"]
    assert source == {"secretKeyRef": {"name": "penstock", "key": "secret", "optional": True}}


def test_batch_script_hands_all_processes_a_secret():
    script = (DEPLOY / "slurm.sbatch").read_text(encoding="utf-8")
    (line,) = re.findall(r"^export PENSTOCK_SECRET=.*$", script, re.MULTILINE)
    for variables in ({}, {"PENSTOCK_SECRET": "own"}):
        words = ["bash", "-c", f'{line}; printf "%s" "$PENSTOCK_SECRET"']
        environ = {"PATH": os.environ["PATH"], **variables}
        made = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
        assert re.fullmatch(variables.get("PENSTOCK_SECRET", "[0-9a-f]{32}"), made)


def test_batch_script_starts_again_what_penstock_wants_started_again():
    script = (DEPLOY / "slurm.sbatch").read_text(encoding="utf-8")
    codes = re.search(r"^ +([\d |]+)\) ;;", script, re.MULTILINE)
    assert codes is not None
    assert {int(code) for code in codes[1].split("|")} == {
        code for code in range(256) if is_again(code)
    }


def test_process_of_a_job_set_finds_its_place():
    (job_set,) = yaml.safe_load_all((DEPLOY / "kubernetes" / "jobset_gpu.yaml").read_text())
    job = pod_template(job_set)
    (container,) = job["template"]["spec"]["containers"]
    values = {variable["name"]: variable.get("value") for variable in container["env"]}
    (name,) = {replicated["name"] for replicated in job_set["spec"]["replicatedJobs"]}
    own = job_set["metadata"]["name"]
    port = container["ports"][0]["containerPort"]
    assert values["JAX_COORDINATOR_ADDRESS"] == f"{own}-{name}-0-0.{own}:{port}"
    assert int(values["JAX_NUM_PROCESSES"]) == job["completions"] == job["parallelism"]
    assert "JAX_PROCESS_ID" in values
