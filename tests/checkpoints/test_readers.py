"""A resumed run goes on at the next sample, with readers of every kind."""

import contextlib
import warnings

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.distributed.group import Group
from penstock.readers import Shard
from penstock.trainer._saver import gather_states, pick_state
from tests.checkpoints.runs import as_killed_at, every_step, whole_state
from tests.networks import assert_same_bits, compile_warnings, one_device
from tests.readers.cases import ALL
from tests.readers.samples import NUM_SAMPLES, ids

NUM_EPOCHS = 3

# One of each kind; each takes seconds, since it trains four times. The readers' own tests
# (test_contract.py) go on from the state of every reader.
KINDS = [
    *("arrays-shuffled", "indexed-in-threads", "indexed-in-processes", "tfrecord"),
    *("xmap_readers-in-order", "xmap_readers-as-ready", "all-together", "pack"),
    *("batch_by_length-by-words", "of-list", "of-grain-dataset", "of-grain-loader"),
]


def program():
    """Return a loss whose one weight depends on every sample and on their order."""
    x = layers.data("x", shape=[1])
    weight = layers.create_parameter([1, 1], name="weight")
    return layers.mean(layers.square_error_cost(x * weight, 1.0 - x)), x


class Batches:
    """An event handler that keeps the numbers of the samples of each step."""

    def __init__(self):
        self.ids = {}

    def __call__(self, event):
        if isinstance(event, ps.EndStep):
            numbers = np.rint(event.metrics[1][:, 0] * NUM_SAMPLES).astype(int)
            self.ids[event.global_step] = numbers.tolist()


def trained(reader, config, *handlers):
    trainer = ps.Trainer(program, optax.sgd(0.3), place=one_device(), checkpoint=config)
    batches = Batches()
    trainer.train(reader, [batches, *handlers], num_epochs=NUM_EPOCHS)
    return whole_state(trainer), batches.ids


def as_batch(item):
    """Return the numbers of an item's samples, from 0 to 1: what any reader's items have."""
    return {"x": np.asarray(ids(item), np.float32)[:, None] / NUM_SAMPLES}


def fed(case):
    return readers.map_readers(as_batch, case.make(Shard()))


def count_items(case):
    with contextlib.closing(case.make(Shard())) as reader:
        return sum(1 for _ in reader)


class SaveAfter:
    """An event handler that writes a checkpoint after some of the steps."""

    def __init__(self, *steps):
        self._steps, self._trainer = steps, None

    def __call__(self, event):
        if isinstance(event, ps.BeginTraining):
            self._trainer = event.trainer
        elif isinstance(event, ps.EndStep) and event.global_step + 1 in self._steps:
            self._trainer.save_checkpoint()


def resumed_at(step, case, directory, to):
    """Return the state and the batches of a run killed at a step, and whether it counted items."""
    left = as_killed_at(directory, step, to)
    config = ps.CheckpointConfig(directory=left, max_to_keep=1000)  # one at each epoch's end
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state, seen = trained(fed(case), config)
    counted = [record for record in caught if "cannot restore its position" in str(record.message)]
    return state, seen, bool(counted)


def assert_goes_on(resumed, whole, step, case):
    """Check that a resumed run read what the whole run read after a step, in its order."""
    rest = {k: numbers for k, numbers in whole[1].items() if k >= step}
    assert list(resumed[1]) == list(rest)
    if case.is_ordered:
        assert resumed[1] == rest
        assert_same_bits(resumed[0], whole[0])
    epochs = [{**whole[1], **resumed[1]}[k] for k in sorted(whole[1])]
    if case.name == "pack":
        # In another order sequences fill another number of rows, so epochs are not equally long.
        numbers = sorted(number for item in epochs for number in item)
        assert numbers == sorted([*range(NUM_SAMPLES)] * NUM_EPOCHS)
        return
    num_items = len(epochs) // NUM_EPOCHS
    for first in range(0, len(epochs), num_items):
        numbers = [number for item in epochs[first : first + num_items] for number in item]
        assert len(numbers) == len(set(numbers))
        assert not case.is_complete or sorted(numbers) == list(range(NUM_SAMPLES))


@pytest.mark.quick("arrays-shuffled")
@pytest.mark.parametrize("name", KINDS)
def test_run_goes_on_at_the_next_sample_of_every_kind_of_reader(name, tmp_path):
    (case,) = [case for case in ALL if case.name == name]
    # In epoch 1: what is shuffled by the epoch comes in another order than in epoch 0.
    num_items = count_items(case)
    mid_epoch, last_step = num_items + num_items // 2, 2 * num_items
    config = ps.CheckpointConfig(
        directory=tmp_path / "all", save_interval_epochs=1000, max_to_keep=1000
    )
    whole = trained(fed(case), config, SaveAfter(mid_epoch, last_step))
    moments = [
        (mid_epoch, tmp_path / "all"),
        (last_step, tmp_path / "all"),
        (last_step, tmp_path / "0"),  # written between the epochs, by the first resumed run
    ]
    # Processes are started anew for each, for seconds.
    for number, (step, directory) in enumerate(moments[: 1 if "in-processes" in case.name else 3]):
        *resumed, is_counted = resumed_at(step, case, directory, tmp_path / str(number))
        assert_goes_on(resumed, whole, step, case)
        # Between epochs there is nothing to read over.
        assert is_counted == (case.resume_warns and number < 2)


# Readers that are no readers of ours.


def yields(num_batches=5):
    for number in range(num_batches):
        yield {"x": np.full((2, 1), number / NUM_SAMPLES, np.float32)}


PLAIN = {"function": yields, "list": list(yields()), "tuple": tuple(yields())}


@pytest.mark.quick("function")
@pytest.mark.parametrize("reader", PLAIN.values(), ids=PLAIN)
def test_reader_without_a_state_is_read_over_with_a_warning(reader, tmp_path, caplog):
    config = ps.CheckpointConfig(directory=tmp_path / "all", save_interval_steps=7)
    state, seen = trained(reader, config)
    assert not compile_warnings(caplog)
    left = as_killed_at(tmp_path / "all", 7, tmp_path / "left")
    resumed_state, resumed = trained(reader, ps.CheckpointConfig(directory=left))
    _, warning = compile_warnings(caplog)
    kind = type(reader).__name__
    assert warning == (
        f"the reader ({kind}) cannot tell its position: 2 batches were read over to resume. That "
        "is exact if it yields the same batches in every run. readers.arrays and its like keep "
        "their position."
    )
    assert resumed == {k: numbers for k, numbers in seen.items() if k >= 7}
    assert_same_bits(resumed_state, state)


@pytest.mark.slow
def test_reader_that_became_shorter_is_refused(tmp_path):
    trained(yields, every_step(tmp_path / "all"))
    left = as_killed_at(tmp_path / "all", 4, tmp_path / "left")
    with pytest.raises(ps.ReaderError) as caught:
        trained(lambda: yields(3), ps.CheckpointConfig(directory=left))
    assert str(caught.value) == (
        "the reader ended after 3 batches, expected at least the 4 before the checkpoint. It must "
        "yield the same in every run."
    )


def test_reader_of_another_kind_is_refused(tmp_path):
    data = {"x": np.arange(10, dtype=np.float32)[:, None] / NUM_SAMPLES}
    first = readers.arrays(data, 2)
    trained(first, every_step(tmp_path / "all"))
    left = as_killed_at(tmp_path / "all", 4, tmp_path / "left")
    with pytest.raises(readers.ReaderStateError, match="got a state of 'arrays', expected"):
        trained(readers.buffered(first, 2), ps.CheckpointConfig(directory=left))


@pytest.mark.quick("iter_dataset")
@pytest.mark.parametrize("make", ["map_dataset", "iter_dataset"])
def test_grains_own_iterators_go_on_at_their_own_state(make, tmp_path, caplog):
    import grain

    source = grain.MapDataset.source(list(yields())).shuffle(seed=2)
    reader = source if make == "map_dataset" else source.to_iter_dataset()
    config = ps.CheckpointConfig(directory=tmp_path / "all", save_interval_steps=7)
    state, seen = trained(reader, config)
    left = as_killed_at(tmp_path / "all", 7, tmp_path / "left")
    resumed_state, resumed = trained(reader, ps.CheckpointConfig(directory=left))
    assert len(compile_warnings(caplog)) == 1
    assert resumed == {k: numbers for k, numbers in seen.items() if k >= 7}
    assert_same_bits(resumed_state, state)


# What an iterator may say of its position.


def test_state_that_json_cannot_hold_is_refused_with_its_reason():
    with pytest.raises(TypeError, match=r"get_state\(\) got dict that JSON cannot hold"):
        gather_states(Group(), {"position": np.int64(3)})


@pytest.mark.parametrize("state", [None, {"position": 3, "files": ["a", "b"]}, b"\x00grain"])
def test_states_of_readers_come_back_as_they_were(state):
    assert pick_state(Group(), gather_states(Group(), state)) == state
