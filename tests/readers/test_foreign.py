"""Others' readers as they are: callables, iterables, generators, Grain, tensors."""

import json
import multiprocessing
import warnings

import numpy as np
import pytest

from penstock import readers
from penstock._reader_items import open_pass
from penstock.readers import ReaderExhaustedError


class Tensor:
    """What torch and TensorFlow tensors share: a shape and `numpy()`."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def numpy(self):
        return self.array


def test_reader_of_ours_is_returned_as_it_is():
    reader = readers.arrays((np.arange(3),), 1)
    assert readers.of(reader) is reader


def test_generator_can_be_read_once_and_then_says_so():
    reader = readers.of(number for number in range(3))
    assert list(reader) == [0, 1, 2]
    with pytest.raises(ReaderExhaustedError, match="got a second pass, expected something that"):
        list(reader)


def test_tensors_become_numpy_arrays_in_every_structure():
    batch = next(readers.of([{"x": (Tensor(np.arange(3)), 1)}])())
    assert type(batch["x"][0]) is np.ndarray
    assert batch["x"][1] == 1


def test_tensor_that_numpy_does_not_take_names_the_reader_and_the_item():
    class WithGradient(Tensor):
        def numpy(self):
            raise RuntimeError("Use tensor.detach()")

    with pytest.raises(RuntimeError, match="detach") as caught:
        next(readers.of([WithGradient(np.zeros(1))])())
    assert caught.value.__notes__ == ["while reading item 0 of epoch 0 from reader of type list"]


def test_what_reads_itself_as_numpy_is_read_that_way():
    class Dataset:
        def __iter__(self):
            raise AssertionError("as_numpy_iterator is the way to read it")

        def as_numpy_iterator(self):
            return iter([np.arange(2)])

    assert next(readers.of(Dataset())()).tolist() == [0, 1]


def test_source_that_became_shorter_is_reported_when_resuming():
    fresh = readers.of([10])()
    state = {"kind": "foreign", "epoch": 0, "position": 3}
    with (
        pytest.warns(UserWarning, match="cannot restore .*reading and dropping 3 items"),
        pytest.raises(ValueError, match="got 1 items, expected at least the 3 of the saved"),
    ):
        fresh.set_state(state)


def test_function_that_raises_when_called_is_named():
    def broken_reader():
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk") as caught:
        next(readers.of(broken_reader)())
    assert "while opening reader" in caught.value.__notes__[0]
    assert "broken_reader" in caught.value.__notes__[0]


@pytest.mark.parametrize("source", [3, None, "digits", {"x": [1]}, list])
def test_what_cannot_be_read_is_refused(source):
    with pytest.raises(TypeError, match="expected an iterable, or a zero-argument callable"):
        readers.of(source)


def test_closing_closes_a_generator():
    closed = []

    def source():
        try:
            yield from range(5)
        finally:
            closed.append(True)

    iterator = readers.of(source)()
    next(iterator)
    iterator.close()
    assert closed == [True]


class Numbered:
    """Four numbers, others in each pass; it has no `__iter__`."""

    def iterate(self, epoch):
        return iter(range(10 * epoch, 10 * epoch + 4))


@pytest.mark.filterwarnings("ignore:reader of type Numbered cannot restore its position")
def test_decorated_source_that_numbers_its_passes_is_told_which_one_it_is():
    reader = readers.batch(Numbered(), 2)
    assert [list(reader.iterate(epoch)) for epoch in (2, 0)] == [
        [[20, 21], [22, 23]],
        [[0, 1], [2, 3]],
    ]
    iterator = reader.iterate(2)
    next(iterator)
    resumed = reader()
    resumed.set_state(iterator.get_state())
    assert list(resumed) == [[22, 23]]


def test_reader_that_a_function_returns_is_told_which_pass_it_is():
    ours = readers.arrays(np.arange(6), None, shuffle=True)
    reader = readers.batch(lambda: ours, 6)
    for epoch in (2, 0):
        assert list(reader.iterate(epoch)) == [list(ours.iterate(epoch))]
    assert ours.next_epoch == 0


class StateOfBytes:
    """Five numbers, with a position in bytes as Grain's `DataLoader` has it."""

    def __init__(self):
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == 5:
            raise StopIteration
        self.position += 1
        return self.position

    def get_state(self):
        return bytes([self.position])

    def set_state(self, state):
        (self.position,) = state


@pytest.mark.parametrize("key", ["__base64__", "base64"])  # as it was written at first
def test_state_of_bytes_is_restored_from_both_forms(key):
    iterator = readers.of(lambda: StateOfBytes())()
    assert next(iterator) == 1
    state = json.loads(json.dumps(iterator.get_state()))
    assert state["source"] == {"__base64__": "AQ=="}
    fresh = readers.of(lambda: StateOfBytes())()
    fresh.set_state({**state, "source": {key: "AQ=="}})
    assert list(fresh) == [2, 3, 4, 5]


class LoaderWithWorkers(list):
    """Has what a torch `DataLoader` says of its workers."""

    def __init__(self, num_workers, multiprocessing_context):
        super().__init__([1, 2])
        self.num_workers, self.multiprocessing_context = num_workers, multiprocessing_context


def test_workers_that_are_forked_get_advice(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "fork")
    with pytest.warns(UserWarning, match="multiprocessing_context='spawn'"):
        assert list(readers.of(LoaderWithWorkers(2, None))()) == [1, 2]
    with pytest.warns(UserWarning, match="got 2 workers that are forked, expected spawned ones"):
        assert list(open_pass(LoaderWithWorkers(2, None), 0)) == [1, 2]


@pytest.mark.parametrize(
    ("num_workers", "context"), [(0, None), (2, multiprocessing.get_context("spawn"))]
)
def test_workers_that_are_not_forked_get_no_advice(monkeypatch, num_workers, context):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "fork")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(readers.of(LoaderWithWorkers(num_workers, context))()) == [1, 2]


def test_iterator_of_one_pass_does_not_go_back_and_goes_on_where_it_is():
    iterator = readers.of(iter([1, 2, 3]))()
    start = iterator.get_state()
    assert next(iterator) == 1
    with pytest.raises(ReaderExhaustedError, match="got a second pass"):
        iterator.set_state(start)
    assert list(iterator) == [2, 3]


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, ValueError])
def test_stream_whose_length_raises_has_none(error):
    class Stream(list):
        def __len__(self):
            raise error

    batches = readers.batch(Stream(), 2)
    assert batches.last_batch_size is None
    with pytest.raises(TypeError, match="the length is unknown"):
        len(batches)
