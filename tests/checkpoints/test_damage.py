"""Damaged checkpoints are noticed, reported and left aside; foreign ones are refused."""

import dataclasses
import os
import random
import shutil

import google_crc32c
import optax
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import penstock as ps
from penstock import layers
from penstock._checkpoint import Position, Store
from tests.checkpoints.runs import StopAfter, as_killed_at, every_step, train_line, whole_state
from tests.networks import (
    assert_same_bits,
    compile_warnings,
    linear_reader,
    one_device,
)

FILE = "part_0.safetensors"

NEWEST = 5  # of six steps in two epochs, a checkpoint after each


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the folder of a whole run, its checkpoints' contents and its last state."""
    directory = tmp_path_factory.mktemp("line") / "all"
    trainer = train_line(every_step(directory))
    trainer.train(linear_reader(), num_epochs=2)
    store = Store(every_step(directory))
    contents = {step: store.read(step) for step in store.steps()}
    return directory, contents, whole_state(trainer)


@pytest.fixture
def left(run, tmp_path):
    """Return a folder of five checkpoints, as the run was killed before its last step."""
    return as_killed_at(run[0], NEWEST, tmp_path / "left")


def assert_goes_on(trainer, run):
    """Train to the end; the state must be that of the whole run."""
    trainer.train(linear_reader(), num_epochs=2)
    assert_same_bits(whole_state(trainer), run[2])


def files_of(directory, step=NEWEST):
    return sorted(path for path in (directory / str(step)).rglob("*") if path.is_file())


def damages(data, seed):
    """Return what becomes of a file: cut off, emptied, gone, or with one bit the other way."""
    yield from (data[: len(data) // 2], data[:-1], b"", None)
    chosen = random.Random(seed)
    for _ in range(40):
        flipped = bytearray(data)
        flipped[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        yield bytes(flipped)


def write(path, data):
    path.unlink() if data is None else path.write_bytes(data)


def spoil(directory, step):
    """Flip a bit in the arrays of a checkpoint."""
    path = directory / str(step) / FILE
    data = bytearray(path.read_bytes())
    data[-10] ^= 4
    path.write_bytes(data)


def read_newest(directory):
    return Store(every_step(directory)).read_newest()


def assert_same_contents(actual, expected):
    assert_same_bits(dict(actual.leaves), dict(expected.leaves))
    assert actual.description() == expected.description()


def test_damage_to_any_file_gives_the_same_checkpoint_or_the_one_before(run, left, caplog):
    _, contents, _ = run
    for number, path in enumerate(files_of(left)):
        whole = path.read_bytes()
        for data in damages(whole, seed=number):
            caplog.clear()
            write(path, data)
            checkpoint = read_newest(left)
            path.write_bytes(whole)
            step = checkpoint.position.global_step
            assert step in (NEWEST, NEWEST - 1), path
            assert_same_contents(checkpoint, contents[step])
            reports = compile_warnings(caplog)
            assert len(reports) == NEWEST - step
            if reports:
                assert reports[0].startswith(f"damaged checkpoint left aside: {path}: ")
    assert_same_contents(read_newest(left), contents[NEWEST])


def test_run_goes_on_from_the_checkpoint_before_a_damaged_one(run, left, caplog):
    spoil(left, NEWEST)
    trainer = train_line(every_step(left))
    assert trainer.global_step == NEWEST - 1
    damaged, resuming = compile_warnings(caplog)
    assert damaged.startswith(f"damaged checkpoint left aside: {left / str(NEWEST) / FILE}: ")
    assert resuming.startswith(f"resuming from {left / str(NEWEST - 1)}: ")
    assert_goes_on(trainer, run)


@pytest.mark.quick("1")
@pytest.mark.parametrize("max_to_keep", [1, 2])
def test_damaged_checkpoint_does_not_take_the_place_of_a_good_one(left, max_to_keep):
    for step in range(2, NEWEST + 1):
        spoil(left, step)
    config = every_step(left, max_to_keep=max_to_keep)
    trainer = train_line(config)
    assert trainer.global_step == 1
    trainer.train(linear_reader(), StopAfter(2), num_epochs=2)
    assert train_line(config).global_step == 2


def test_folder_with_nothing_but_damaged_checkpoints_is_refused_naming_each(left):
    for step in range(1, NEWEST + 1):
        spoil(left, step)
    with pytest.raises(ps.CheckpointError) as caught:
        train_line(every_step(left))
    first, *lines, last = str(caught.value).splitlines()
    assert first == "no checkpoint can be read:"
    assert [line.split(":")[0] for line in lines if str(left) in line] == [
        f"  {left / str(step) / FILE}" for step in range(NEWEST, 0, -1)
    ]
    assert last == "Move the folder away to train from the beginning."


def test_folder_with_a_number_for_a_name_and_no_file_of_ours_is_left_alone(left):
    (left / "2024").mkdir()
    (left / "2024" / "notes.txt").write_text("mine")
    store = Store(every_step(left, max_to_keep=1))
    contents = store.read_newest()
    assert contents.position.global_step == NEWEST
    store.write(dataclasses.replace(contents, position=Position(global_step=NEWEST + 1)))
    assert store.steps() == [NEWEST + 1]
    with pytest.raises(ps.CheckpointError, match=r"2024', which is no checkpoint, expected"):
        store.write(dataclasses.replace(contents, position=Position(global_step=2024)))
    assert (left / "2024" / "notes.txt").read_text() == "mine"


def test_what_is_no_checkpoint_is_left_alone(run, left):
    (left / "notes").mkdir()
    (left / "notes" / "a.txt").write_text("mine")
    (left / "7").write_text("a file")
    for name in ("\u00b2", "\u0667", "07"):  # digits to `str.isdigit`, and not what is written
        (left / name).mkdir()
    trainer = train_line(every_step(left))
    assert_goes_on(trainer, run)
    assert (left / "notes" / "a.txt").read_text() == "mine"
    assert (left / "7").read_text() == "a file"
    assert {"\u00b2", "\u0667", "07"} < set(os.listdir(left))


def test_temporary_folder_of_a_killed_save_is_cleaned_up(run, left):
    unfinished = left / ".saving-"
    shutil.copytree(left / str(NEWEST), unfinished)
    spoil(left, unfinished.name)
    trainer = train_line(every_step(left))
    assert trainer.global_step == NEWEST
    assert_goes_on(trainer, run)
    assert not unfinished.exists()


def test_checkpoint_that_was_about_to_be_replaced_comes_back(run, left):
    (left / ".deleted").mkdir()
    (left / str(NEWEST)).rename(left / ".deleted" / str(NEWEST))
    (left / "1").rename(left / ".deleted" / "1")
    trainer = train_line(every_step(left))
    assert trainer.global_step == NEWEST
    assert not (left / ".deleted").exists()
    assert Store(every_step(left)).steps() == [2, 3, 4, 5]
    assert_goes_on(trainer, run)


def test_checkpoint_of_a_newer_format_is_refused_by_its_number(run, left):
    for step in range(1, NEWEST + 1):
        path = left / str(step) / FILE
        with safe_open(path, framework="np") as file:
            body = file.metadata()["body"].replace('"format": 1', '"format": 3')
        crc = google_crc32c.value(body.encode())
        save_file(load_file(path), path, {"body": body, "crc32c": str(crc)})
    with pytest.raises(ps.CheckpointError, match="got format 3, expected a number from 0 to 2"):
        train_line(every_step(left))


# Another network.


def other_program():
    """Return the regression's loss with a wider layer of another name before it."""
    hidden = layers.fc(layers.data("x", shape=[4]), size=2, name="hidden")
    prediction = layers.fc(hidden, size=1)
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


def test_checkpoint_of_another_network_is_refused_with_every_difference_and_stays(left):
    before = {path: path.read_bytes() for path in files_of(left)}
    with pytest.raises(ps.CheckpointError) as caught:
        ps.Trainer(other_program, optax.sgd(0.1), place=one_device(), checkpoint=left)
    first, *lines, last = str(caught.value).splitlines()
    assert first == f"the checkpoint {left} is of another network or optimizer:"
    assert last == (
        "Give this run a directory of its own; to start from those parameters, pass param_path=... "
        "of a folder that save_params wrote."
    )
    parameters = [line for line in lines if "params" in line and "opt_state" not in line]
    assert parameters == [
        "  mismatched: variables.params.fc_0.w got float32[4, 1], expected float32[2, 1]",
        "  missing: variables.params.hidden.b float32[2]",
        "  missing: variables.params.hidden.w float32[4, 2]",
    ]
    moments = [line for line in lines if line not in parameters]
    assert all(line.startswith("  extra: opt_state.") for line in moments)
    assert len(moments) == 5  # Adam's count and two moments of each parameter
    assert {path: path.read_bytes() for path in files_of(left)} == before
