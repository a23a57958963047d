"""What runs on Ray do without Ray: what they refuse, what workers are told, and what words mean."""

import functools
import pickle
import signal
import sys
from types import SimpleNamespace

import pytest

from penstock.distributed import launch_on_ray, ray_runs, ray_worker, run_on_ray, this_process
from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.ray_worker import (
    Failure,
    ProcessLostError,
    RunRecord,
    load_ray,
    run_words,
)


def nothing():
    pass


def test_missing_ray_is_said_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # nothing more can be imported
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "penstock\[ray\]"') as raised:
        run_on_ray(nothing, num_processes=2)
    assert str(raised.value).startswith("run_on_ray got no ray, expected the package")
    assert raised.value.name == "ray"


def test_ray_without_ray_train_is_missing_too(tmp_path, monkeypatch):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ModuleNotFoundError, match="got no pyarrow"):
        load_ray("a test")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_processes": 0}, "num_processes got 0, expected an integer of 1 or more"),
        ({"num_processes": (3, 2)}, r"got \(3, 2\), expected a number, or two with the least bef"),
        ({"num_processes": (1, 2, 3)}, r"got \(1, 2, 3\), expected a number, or two"),
        ({"num_processes": 2, "max_restarts": -1}, "max_restarts got -1"),
        ({"num_processes": 2, "hang_secs": 0}, "hang_secs got 0, expected a finite number above 0"),
        ({"num_processes": 2, "use_gpu": True, "use_tpu": True}, "expected one of them"),
    ],
)
def test_wrong_option_is_refused_before_ray_is_loaded(options, error):
    with pytest.raises(ValueError, match=error):
        run_on_ray(nothing, **options)
    assert "ray" not in sys.modules


@pytest.mark.parametrize("words", [[], ["-m"]])
def test_launch_without_a_program_is_refused(words):
    with pytest.raises(ValueError, match="expected what to run, such as"):
        launch_on_ray(words, num_processes=2)


@pytest.mark.parametrize(
    ("resources", "options", "platform"),
    [
        ({"CPU": 8.0}, {}, "cpu"),
        ({"CPU": 8.0, "GPU": 2.0}, {}, "gpu"),
        ({"TPU": 4.0, "GPU": 2.0}, {}, "tpu"),
        ({"TPU": 4.0, "GPU": 2.0}, {"use_gpu": True}, "gpu"),
        ({"GPU": 2.0}, {"use_gpu": False}, "cpu"),
        ({}, {"use_tpu": True}, "tpu"),
    ],
)
def test_platform_is_what_is_asked_for_or_what_the_cluster_has(
    monkeypatch, resources, options, platform
):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    options = {"use_gpu": None, "use_tpu": None, **options}
    assert ray_runs._choose_platform(resources, **options) == platform


def test_platform_is_the_cpu_where_jax_is_told_so(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert ray_runs._choose_platform({"GPU": 2.0}, None, None) == "cpu"


def test_workers_have_the_drivers_settings_and_not_its_place(monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    not_theirs = {"JAX_PROCESS_ID", "PENSTOCK_RESTARTS", "PENSTOCK_FIRST_FAILURE", "SECRET"}
    for name in not_theirs:
        monkeypatch.setenv(name, "3")
    told = ray_runs._environment("gpu", 300.0)
    assert told["JAX_ENABLE_X64"] == "1"
    assert told["JAX_PLATFORMS"] == "cuda,cpu"
    assert told["PENSTOCK_HANG_SECS"] == "300.0"
    assert len(told["PENSTOCK_SECRET"]) == 32
    assert not not_theirs & set(told)
    assert "PENSTOCK_HANG_SECS" not in ray_runs._environment("cpu", None)


def test_storage_is_absolute_or_an_address(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert ray_runs._make_absolute("runs") == str(tmp_path / "runs")
    assert ray_runs._make_absolute(tmp_path / "x y") == str(tmp_path / "x y")
    assert ray_runs._make_absolute("gs://bucket/runs") == "gs://bucket/runs"
    assert ray_runs._make_absolute(None) is None


def test_handler_of_sigterm_that_is_not_pythons_is_no_error_at_the_end(monkeypatch):
    before, install = signal.getsignal(signal.SIGTERM), signal.signal
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", lambda *args: (install(*args), None)[1])
            with ray_runs._forwarding_sigterm(None, None):
                pass
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        install(signal.SIGTERM, before)


def test_node_without_a_slice_names_no_topology():
    labels = [{"ray.io/tpu-topology": "4x4"}, {"ray.io/tpu-topology": ""}, {}]
    nodes = [{"Alive": True, "Labels": label} for label in labels]
    ray = SimpleNamespace(nodes=lambda: nodes, cluster_resources=lambda: {"TPU": 4})
    assert ray_runs._find_slice(ray) == {"topology": "4x4"}


def test_record_has_the_first_failure_with_a_traceback_and_whether_there_are_processes():
    record = RunRecord()
    assert (record.is_ending(), record.request_end()) == (False, False)
    assert (record.begin(), record.begin()) == (0, 1)
    assert (record.request_end(), record.is_ending()) == (True, True)
    assert record.failure() is None
    record.fail(Failure("process 0 of 2 ended with status 1", 1))
    record.fail(Failure("process 1 of 2 failed with ValueError: x", 1, "Traceback"))
    record.fail(Failure("process 0 of 2 failed with OSError: y", 1, "Traceback"))
    assert record.failure() == Failure("process 1 of 2 failed with ValueError: x", 1, "Traceback")


@pytest.mark.parametrize("function", [nothing, functools.partial(sys.exit, AGAIN)])
def test_process_that_asks_for_another_try_says_so(monkeypatch, function):
    monkeypatch.setattr(this_process, "initialize", nothing)
    monkeypatch.setattr(this_process, "end", lambda error: AGAIN)
    with pytest.raises(ProcessLostError, match=r"^Process 1 asked for another try\.$"):
        ray_worker._run(ray_worker._Process(1, 2, None), pickle.dumps(function), pickle)


@pytest.fixture
def own_words(monkeypatch):
    """Leave this process's own words and path as they were."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


SHOW = "import sys, json; print(json.dumps([__name__, sys.argv])); import beside; sys.exit(7)\n"


@pytest.mark.usefixtures("own_words")
@pytest.mark.parametrize("is_module", [False, True])
def test_script_and_module_run_as_python_runs_them(tmp_path, monkeypatch, capsys, is_module):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "shown.py").write_text(SHOW)
    (folder / "beside.py").touch()
    monkeypatch.chdir(tmp_path)
    if is_module:
        monkeypatch.syspath_prepend(str(folder))
    words = ["-m", "shown"] if is_module else ["a folder/shown.py"]
    with pytest.raises(SystemExit) as raised:
        run_words([*words, "--flag", "x y"])
    assert raised.value.code == 7
    output = capsys.readouterr().out
    assert output.startswith('["__main__", [')
    assert output.rstrip().endswith('shown.py", "--flag", "x y"]]')


@pytest.mark.usefixtures("own_words")
def test_other_words_are_a_command_of_penstock(capsys):
    with pytest.raises(SystemExit) as raised:
        run_words(["--version"])
    assert not raised.value.code
    assert capsys.readouterr().out.startswith("penstock ")
