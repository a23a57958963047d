"""One to four processes with one to four devices each train as one process does with one device."""

import csv
import functools
import itertools
import json
import re
import socket

import cv2
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.distributed import grid_run
from tests.distributed.processes import run_group
from tests.distributed.test_joining import check_joined

QUICK, ALL = ("plain", "synced"), ("plain", "synced", "by_device")
CELLS = [
    pytest.param(*cell, id="{}x{}".format(*cell))
    for cell in itertools.product(range(1, 5), repeat=2)
]


def run(num_processes, num_devices, folder, *networks):
    """Return what each process of a run has."""
    return run_group(num_processes, num_devices, "tests.distributed.grid_run", folder, *networks)


@pytest.fixture(scope="module")
def run_alone(tmp_path_factory):
    """Run networks in one process with so many devices, once; return its folder and result."""

    @functools.cache
    def run_once(num_devices, *networks):
        folder = tmp_path_factory.mktemp("alone")
        return folder, run(1, num_devices, folder, *networks)[0]

    return run_once


def assert_same_training(processes, alone):
    """Raise unless each process has the numbers of the one, and all of its rows together."""
    for each in processes:
        assert each["counts"] == alone["counts"]
        np.testing.assert_allclose(each["epochs"], alone["epochs"], rtol=1e-5)
        np.testing.assert_allclose(each["test"], alone["test"], rtol=1e-5)
        assert each["parameters"].keys() == alone["parameters"].keys()
        for name, value in alone["parameters"].items():
            np.testing.assert_allclose(each["parameters"][name], value, rtol=1e-5, atol=1e-6)
    rows = np.sum([each["rows"] for each in processes], axis=0)
    assert rows.tolist() == alone["rows"] == alone["counts"]


def assert_close(actual, expected, name):
    """Raise unless two rows have the same keys and words, and the same numbers but for rounding."""
    assert actual.keys() == expected.keys(), name
    for key, value in expected.items():
        if isinstance(value, float):
            assert actual[key] == pytest.approx(value, rel=1e-5, abs=1e-6), (name, key)
        else:
            assert actual[key] == value, (name, key)


def read_rows(path):
    """Return the rows of a log of CSV or JSON, without the time that they were written at."""
    lines = path.read_text().splitlines()
    rows = csv.DictReader(lines) if path.suffix == ".csv" else map(json.loads, lines)
    texts = {"kind", "epoch", "step", "global_step", "examples"}
    found = []
    for row in rows:
        del row["seconds"]
        # A value with a batch axis has the rows of the process that writes.
        cells = {key: cell for key, cell in row.items() if not isinstance(cell, list)}
        found.append({k: c if k in texts or c == "" else float(c) for k, c in cells.items()})
    return found


def read_curves(folder):
    """Return what TensorBoard shows, by run and name, without speeds."""
    found = {}
    for part in ("train", "test"):
        events = EventAccumulator(str(folder / part), size_guidance={"scalars": 0})
        events.Reload()
        names = [name for name in events.Tags()["scalars"] if not name.startswith("speed/")]
        found |= {
            f"{part} {name}": [(e.step, e.value) for e in events.Scalars(name)] for name in names
        }
    return found


def read_lines(printed):
    """Return what handlers printed, without speeds: the words, and all numbers of each line.

    Without the lines within an epoch too, which come by the clock.
    """
    lines = [line for line in printed.splitlines() if not line.startswith("RESULT")]
    lines = [line for line in lines if not re.search(r"epoch \d+/\d+  step ", line)]
    lines = [re.sub(r"^\[.*?\]|  \S+ ex/s.*", "", line) for line in lines]
    number = r"\d+(?:\.\d+)?"
    return [(re.sub(number, "#", line), [*map(float, re.findall(number, line))]) for line in lines]


def list_files(folder):
    """Return the paths of all files, those of TensorBoard without time and process."""
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(re.sub(r"tfevents.*", "tfevents", path) for path in paths)


def assert_same_files(folder, alone):
    """Raise unless the handlers have written the same, each file once."""
    assert list_files(folder) == list_files(alone)
    for name in ("log.csv", "log.jsonl"):
        rows, expected = read_rows(folder / name), read_rows(alone / name)
        assert len(rows) == len(expected) == 10  # four steps, three epochs, three tests
        for actual, row in zip(rows, expected, strict=True):
            assert_close(actual, row, name)
    curves, expected = read_curves(folder / "board"), read_curves(alone / "board")
    assert curves.keys() == expected.keys()
    for name, points in expected.items():
        np.testing.assert_allclose(curves[name], points, rtol=1e-5, err_msg=name)
    pictures = [cv2.imread(str(each / "curves.png")) for each in (folder, alone)]
    # A point may fall on either side of a pixel's edge.
    assert pictures[0].shape == pictures[1].shape
    assert (pictures[0] != pictures[1]).mean() < 1e-3


def test_two_processes_with_two_devices_join_once_and_train_as_one_with_one(tmp_path):
    processes = run(2, 2, tmp_path, "synced")
    check_joined([each["joined"] for each in processes])
    joined = (
        "penstock: joined 2 processes through JAX_COORDINATOR_ADDRESS (process 0 of 2 on "
        f"{socket.gethostname()}, coordinator 127.0.0.1:"
    )
    assert [each["said"].count(joined) for each in processes] == [1, 0]
    # In this very process: the import of JAX takes longer than the training.
    alone = grid_run.train("synced", place="cpu")
    assert alone["counts"] == [48, 48, 14] * 3
    assert_same_training([each["synced"] for each in processes], alone)


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "num_devices"), CELLS)
def test_cell_trains_and_writes_as_one_process_with_one_device(
    num_processes, num_devices, run_alone, tmp_path
):
    folder, alone = run_alone(1, *ALL, "handlers")
    processes = run(num_processes, num_devices, tmp_path, *ALL, "handlers")
    for network in QUICK:
        assert_same_training([each[network] for each in processes], alone[network])
    # Of batch norm by device another number of devices makes another network.
    _, with_as_many = run_alone(num_processes * num_devices, "by_device")
    assert_same_training([each["by_device"] for each in processes], with_as_many["by_device"])
    assert_same_files(tmp_path, folder)
    first, *others = [read_lines(each["printed"]) for each in processes]
    assert not any(others)
    expected = read_lines(alone["printed"])
    assert [words for words, _ in first] == [words for words, _ in expected]
    for (words, numbers), (_, wanted) in zip(first, expected, strict=True):
        # Of losses, six digits are printed.
        assert numbers == pytest.approx(wanted, rel=2e-5), words
