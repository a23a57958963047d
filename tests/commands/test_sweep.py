"""`penstock sweep`: its trials are runs, and none is lost or counted twice."""

import csv
import importlib.util
import json
import shutil
import signal

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from penstock.commands import _study
from penstock.commands._failures import UsageError
from penstock.commands._study import Range, read_space
from penstock.events import EndEpoch
from tests.commands.running import TINY, fail, run, start, succeed, wait_for

WORDS = ("sweep", *TINY, "--optimizer=sgd", "--num_epochs=2", "--batch_size=256")
RATES = ("--search", "learning_rate=0.1,0.3,1e30")


@pytest.fixture(autouse=True)
def folder(tmp_path):
    return tmp_path / "runs/digits_sweep"


def read(folder):
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def open_study(folder):
    folder.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(folder / "study.log")))
    return optuna.create_study(
        storage=storage, study_name="sweep", direction="maximize", load_if_exists=True
    )


def test_trials_are_runs_whose_table_the_report_has(folder, capsys):
    # Without a word the output folder is the current one.
    out, _ = succeed(capsys, *WORDS, *RATES, "--num_trials=3", "--seed=10", "--output_dir=")
    rows = read(folder)
    # The loss of one is nan, and the others are trained all the same.
    assert [row["state"] for row in rows] == ["finished", "finished", "failed"]
    assert float(rows[0]["accuracy"]) > float(rows[1]["accuracy"])
    assert [row["epochs"] for row in rows] == ["2.0", "2.0", ""]
    assert rows[2]["learning_rate"] == "1e+30"
    assert "3 trials in runs/digits_sweep, for the highest accuracy on 359 images" in out
    best = f"{float(rows[0]['accuracy']):.2%}"
    assert f"{rows[0]['trial']}  finished: accuracy {best}, epochs 2" in " ".join(out.split("\n"))
    assert f"evaluate it:       penstock eval runs/digits_sweep/{rows[0]['trial']}" in out
    runs = {r["run"]: r for r in json.loads(succeed(capsys, "runs", "--json")[0])}
    for row in rows[:2]:
        trial = runs[f"runs/digits_sweep/{row['trial']}"]
        assert trial["state"] == "done"
        assert trial["best"]["accuracy"] == float(row["accuracy"])
        assert trial["flags"]["learning_rate"] == float(row["learning_rate"])
    succeed(capsys, "report", "digits_sweep")
    page = (folder / "report.html").read_text()
    assert all(text in page for text in (*(row["trial"] for row in rows), best, "--learning_rate="))
    # All are done: nothing is trained.
    shutil.rmtree(folder / rows[0]["trial"])
    again, _ = succeed(capsys, *WORDS, *RATES, "--num_trials=3", "--seed=10")
    assert read(folder) == rows
    assert again.count(rows[0]["trial"]) == 1
    err = fail(capsys, *WORDS, "--search", "learning_rate=0.1,0.2", "--seed=10", status=2)
    assert "the folder of another sweep, whose --search differ, expected" in " ".join(err.split())


@pytest.mark.slow
def test_trial_that_was_cut_goes_on_from_its_checkpoint(folder, capsys, monkeypatch):
    fit, starts, epochs = _study.fit, [], []

    def cut(event):
        if isinstance(event, EndEpoch):
            epochs.append(event.epoch)
            if len(epochs) == 1:
                raise KeyboardInterrupt

    def watch(run, *handlers, title):
        starts.append(run.trainer.global_step)
        fit(run, *handlers, cut, title=title)

    monkeypatch.setattr(_study, "fit", watch)
    words = (*WORDS, "--search", "learning_rate=0.1..0.2", "--num_trials=1")
    status, _, err = run(capsys, *words)
    assert status == 130
    assert "trial_000 stopped at step 6; the same command goes on" in err
    (before,) = read_params(folder)
    succeed(capsys, *words)
    # The end of an epoch that was cut off is told again, and counts once.
    assert (starts, epochs) == ([0, 6], [0, 0, 1])
    (row,) = read(folder)
    assert (row["state"], float(row["learning_rate"])) == ("finished", before["learning_rate"])
    assert row["epochs"] == "2.0"


def read_params(folder):
    return [trial.params for trial in open_study(folder).get_trials()]


def test_trial_that_is_worse_than_most_is_ended_early(folder, capsys):
    study = open_study(folder)
    for _ in range(5):
        trial = study.ask()
        trial.suggest_float("learning_rate", 0.1, 0.2)
        trial.report(1.0, 0)
        study.tell(trial, 1.0)
    words = (*WORDS, "--search", "learning_rate=0.1..0.2")
    succeed(capsys, *words, "--num_trials=6")
    *_, pruned = read(folder)
    assert (pruned["trial"], pruned["state"], pruned["epochs"]) == ("trial_005", "pruned", "1.0")
    succeed(capsys, *words, "--num_trials=7", "--prune=False")
    assert read(folder)[5]["state"] == "finished"


@pytest.mark.slow
def test_without_tests_the_loss_of_training_counts(folder, capsys):
    words = (*WORDS, *RATES, "--num_trials=1", "--eval_every_n_epochs=0", "--stop_at_step=2")
    out, _ = succeed(capsys, *words)
    assert "for the lowest loss of training, as nothing is tested" in out
    (row,) = read(folder)
    assert 0 < float(row["loss"]) < 10


def test_words_of_search_are_ranges_and_choices():
    words = ("learning_rate=1e-4..1e-1:log", "--batch-size=8..64", "optimizer=adam,sgd")
    space = read_space((*words, "use_fp16=True,False", "optax_options=b1=0.9,b1=0.95"))
    assert space == {
        "learning_rate": Range(1e-4, 0.1, True),
        "batch_size": Range(8, 64, False),
        "optimizer": ["adam", "sgd"],
        "use_fp16": [True, False],
        "optax_options": ["b1=0.9", "b1=0.95"],
    }


def test_values_of_search_are_checked_as_training_reads_them():
    mapping = read_space(["optax_options=b1=0.9,b1=0.95"])
    _study._check_space(mapping, None, {"optimizer": "optax.adam"})
    with pytest.raises(UsageError, match="--batch_size got 0, expected a number of 1 or more"):
        _study._check_space(read_space(["batch_size=0,auto"]), None, {})


def test_flags_of_a_file_are_settings_of_the_sweep(folder, monkeypatch, tmp_path, capsys):
    seen = []

    def refuse(*arguments):
        seen.append(arguments[-1])
        raise UsageError("seen")

    monkeypatch.setattr(_study, "Sweep", refuse)
    for decay in ("0.1", "0.2"):
        (tmp_path / "a.yaml").write_text(f"weight_decay: {decay}\nlearning_rate: 0.3\n")
        assert run(capsys, *WORDS, *RATES, "--config=a.yaml")[0] == 2
    assert [settings.get("weight_decay") for settings in seen] == ["0.1", "0.2"]
    assert "learning_rate" not in seen[0]


def test_missing_optuna_is_said(capsys, monkeypatch):
    find = importlib.util.find_spec
    hidden = {"optuna"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    err = fail(capsys, *WORDS, *RATES)
    assert 'Run pip install "penstock[sweep]".' in " ".join(err.split())


@pytest.mark.slow
def test_two_processes_share_the_trials_and_a_killed_one_loses_none(folder, tmp_path):
    words = (*WORDS, "--num_epochs=40", "--search", "learning_rate=0.01..0.3:log", "--num_trials=4")
    first = start(tmp_path, *words)
    wait_for(first, "trial_000  finished")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = read_params(folder)
    assert len(before) in (1, 2)
    both = [start(tmp_path, *words), start(tmp_path, *words)]
    texts = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("trial_00" in text.split("trial   ")[0] for text in texts)
    assert sorted(row["trial"] for row in read(folder)) == [f"trial_00{n}" for n in range(4)]
    assert {row["state"] for row in read(folder)} <= {"finished", "pruned"}
    assert read_params(folder)[: len(before)] == before
