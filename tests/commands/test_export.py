"""`penstock export`: the file of a run, and what answers with it."""

import contextlib
import json
import re
import shutil

import numpy as np
import onnxruntime
import pytest

import penstock as ps
from penstock import _model_file, commands
from tests.commands.running import TINY, fail, run, succeed


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Return the folder of a run of a tiny network on digits."""
    folder = tmp_path_factory.mktemp("export")
    with contextlib.chdir(folder):
        assert not commands.main(["train", *TINY, "--stop_at_step=3"])
    (made,) = (folder / "runs").iterdir()
    return made


def test_a_run_becomes_a_file_that_answers_as_it_does(digits, capsys):
    out, _ = succeed(capsys, "export", str(digits), TINY[0])
    path = digits / "model.penstock"
    assert re.search(r"model\.penstock: [\d.]+ MiB, float32 weights\n  takes image: float32", out)
    samples = sorted(map(str, (digits / "samples").iterdir()))
    model = ps.InferenceModel.load(path)
    words = (*samples, "--json", "--top_k=2")
    by_run = [
        json.loads(x) for x in succeed(capsys, "predict", str(digits), *words)[0].splitlines()
    ]
    by_file = [json.loads(x) for x in succeed(capsys, "predict", str(path), *words)[0].splitlines()]
    for one, other, answer in zip(by_run, by_file, model.predict(samples, 2), strict=True):
        assert [c["name"] for c in one["classes"]] == [c["name"] for c in answer]
        assert other["classes"] == answer
        expected = [c["probability"] for c in one["classes"]]
        np.testing.assert_allclose([c["probability"] for c in answer], expected, rtol=1e-5)


def test_small_weights_are_measured_on_the_test_images(digits, tmp_path, capsys):
    file = tmp_path / "small.penstock"
    out, _ = succeed(
        capsys, "export", str(digits), TINY[0], f"--output={file}", "--weights=int8", "--json"
    )
    told = json.loads(out)
    assert told["weights"] == "int8"
    assert told["about"]["measured"]["examples"] == 359
    assert 0.9 < told["about"]["measured"]["same_class"] <= 1


def test_predict_with_a_file_takes_plugins_and_no_other_flags_of_training(digits, tmp_path, capsys):
    path, plugin = tmp_path / "model.penstock", tmp_path / "own.py"
    succeed(capsys, "export", str(digits), TINY[0], f"--output={path}")
    words = ("predict", str(path), str(next((digits / "samples").iterdir())))
    err = fail(capsys, *words, "--num_classes=3", "--train_image_size=9", status=2)
    assert "with --num_classes, --train_image_size, expected none of them" in " ".join(err.split())
    plugin.write_text("raise ValueError('imported')")
    assert "imported" in run(capsys, *words, f"--plugin={plugin}")[2]


@pytest.mark.slow
def test_a_file_is_renewed_with_its_own_flags(digits, tmp_path, capsys):
    file = tmp_path / "old.penstock"
    words = ("--weights=bfloat16", "--platforms=cpu", "--warm=2", f"--output={file}")
    # Of the flags of training too.
    succeed(capsys, "export", str(digits), TINY[0], "--preprocessing_name=cifarnet", *words)
    before = _model_file.read_manifest(file)
    assert list(file.with_name("old.penstock.cache").iterdir())
    file.rename(tmp_path / "moved.penstock")
    succeed(capsys, "export", f"--renew={tmp_path / 'moved.penstock'}")
    after = _model_file.read_manifest(tmp_path / "moved.penstock")
    assert (after.weights, after.about["export"]) == (before.weights, before.about["export"])
    assert after.host["image"]["preprocessing"]["name"] == "cifarnet"
    assert [p.platforms for p in after.programs] == [("cpu",)]
    # Also where the run is named; of another one, those that concern its network are not taken.
    succeed(capsys, "export", str(digits), f"--renew={tmp_path / 'moved.penstock'}")
    own = _model_file.read_manifest(tmp_path / "moved.penstock")
    assert own.about["export"] == before.about["export"]
    another = shutil.copytree(digits, tmp_path / "another")
    succeed(capsys, "export", str(another), f"--renew={tmp_path / 'moved.penstock'}")
    other = _model_file.read_manifest(tmp_path / "moved.penstock")
    assert (other.weights, other.about["export"]["training"]) == ("bfloat16", {})
    assert other.host["image"]["preprocessing"]["name"] != "cifarnet"


def test_renewing_changes_nothing_unsaid(capsys):
    err = fail(capsys, "export", "--renew=a.penstock", "--weights=int8", status=2)
    assert "--renew got 'a.penstock', expected none of --weights" in " ".join(err.split())


@pytest.mark.parametrize("part", ["checkpoints/3", "checkpoints", "params"])
def test_a_file_says_which_weights_of_the_run_it_has(part, digits, tmp_path, capsys):
    words = (str(digits / part), TINY[0], f"--output={tmp_path / 'a.penstock'}")
    succeed(capsys, "export", *words)
    made = _model_file.read_manifest(tmp_path / "a.penstock").about
    assert made["export"]["run"] == str(digits / part)
    assert made.get("global_step") == (None if part == "params" else 3)


def test_a_run_becomes_an_onnx_file(digits, capsys):
    out, _ = succeed(capsys, "export", str(digits), TINY[0], "--format=onnx")
    assert "ONNX Runtime and JAX differ by" in out
    session = onnxruntime.InferenceSession(digits / "model.onnx")
    image = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1)).astype(np.float32)
    (name,) = (node.name for node in session.get_inputs())
    succeed(capsys, "export", str(digits), TINY[0])
    expected = ps.InferenceModel.load(digits / "model.penstock").infer({name: image})
    np.testing.assert_allclose(session.run(None, {name: image})[0], expected, rtol=1e-4, atol=1e-6)
