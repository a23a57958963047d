"""Fluid's decorators: their meaning, and none of their hangs."""

import gc
import json
import os
import random
import re
import threading
import time
import weakref
from concurrent.futures.process import BrokenProcessPool

import numpy as np
import pytest

from penstock import readers
from penstock.readers import ComposeNotAligned, _read_ahead
from tests.held import threads


def test_buffered_yields_everything_for_every_size():
    for size in range(20):
        assert list(readers.buffered(lambda: range(10), size)) == list(range(10))


def test_buffered_reads_no_further_ahead_than_its_size():
    taken = []

    def source():
        for number in range(100):
            taken.append(number)
            yield number

    with readers.buffered(source, 3)() as iterator:
        assert next(iterator) == 0
        time.sleep(0.05)
        # One given out, three waiting, one in the producer's hand.
        assert len(taken) <= 5


# A buffer of 8 holds single samples, one of 100 chunks of six.
@pytest.mark.parametrize("buffer_size", [8, 100])
@pytest.mark.parametrize("order", [False, True])
def test_xmap_is_the_same_over_three_passes_and_from_every_position(order, buffer_size):
    reader = readers.xmap_readers(
        lambda x: x + 1, readers.arrays(np.arange(50), None), 4, buffer_size, order
    )
    for _ in range(3):
        assert sorted(reader()) == list(range(1, 51))
    for num_seen in (0, 1, 5, 12, 37, 50):
        with reader() as iterator:
            seen = [next(iterator) for _ in range(num_seen)]
            state = json.loads(json.dumps(iterator.get_state()))
        with reader() as restored:
            restored.set_state(state)
            assert sorted([*seen, *restored]) == list(range(1, 51))


def test_xmap_gives_what_comes_in_a_chunk_before_the_sample_at_which_the_mapper_raises():
    iterator = readers.xmap_readers(lambda x: 6 // (5 - x), lambda: range(50), 2, 100, order=True)()
    assert [next(iterator) for _ in range(5)] == [1, 1, 2, 3, 6]
    with pytest.raises(ZeroDivisionError) as caught:
        next(iterator)
    assert caught.value.__notes__[0].endswith("<lambda>), sample 5 of epoch 0")


@pytest.mark.parametrize(("buffer_size", "num_seen"), [(4, 1), (4, 9), (100, 1), (100, 60)])
def test_xmap_takes_no_more_samples_than_its_buffer_and_one_a_worker(buffer_size, num_seen):
    taken = []
    source = lambda: (taken.append(number) or number for number in range(1000))  # noqa: E731
    with readers.xmap_readers(abs, source, 2, buffer_size, order=True)() as iterator:
        for number in range(num_seen):
            assert next(iterator) == number
            # The one that was returned made room, and is not replaced before the next.
            assert len(taken) - number <= 2 + buffer_size


def test_closing_ends_a_thread_that_waits_and_what_has_not_begun():
    is_working, release, received, begun = threading.Event(), threading.Event(), [], []

    def work(number):
        begun.append(number)
        is_working.set()
        release.wait(60)
        return number

    before = threads("penstock-reader")
    iterator = readers.xmap_readers(work, lambda: range(100), 1, 50, order=True)()
    waiting = threading.Thread(target=lambda: received.extend(iterator))
    waiting.start()
    assert is_working.wait(60)
    threading.Timer(0.05, release.set).start()
    iterator.close()
    iterator.close()
    waiting.join(60)
    assert not waiting.is_alive()
    assert (received, begun) == ([], [0])
    assert threads("penstock-reader") <= before


def test_xmap_as_ready_does_not_wait_for_a_slow_sample():
    release = threading.Event()

    def mapper(number):
        if number == 0:
            release.wait(60)
        return number

    with readers.xmap_readers(mapper, lambda: range(6), 2, 4)() as iterator:
        first = [next(iterator) for _ in range(5)]
        release.set()
        assert [*first, *iterator] == [1, 2, 3, 4, 5, 0]


def test_xmap_as_ready_restores_without_loss_or_repeat_around_a_slow_sample():
    release = threading.Event()

    def mapper(number):
        if number == 2:
            release.wait(60)
        return number

    reader = readers.xmap_readers(mapper, readers.of(list(range(10))), 2, 4)
    with reader() as iterator:
        seen = [next(iterator) for _ in range(5)]
        state = iterator.get_state()
        release.set()
    assert state["first"] == 2
    fresh = readers.xmap_readers(mapper, readers.of(list(range(10))), 2, 4)()
    with pytest.warns(UserWarning, match="cannot restore its position"):
        fresh.set_state(state)
    assert sorted([*seen, *fresh]) == list(range(10))


def test_xmap_in_processes_maps_in_order_and_raises_what_the_mapper_raised():
    reader = readers.xmap_readers(abs, lambda: [-1, -2, "x"], 2, 1, True, workers="process")
    iterator = reader()
    assert [next(iterator), next(iterator)] == [1, 2]
    with pytest.raises(TypeError, match="bad operand type") as caught:
        next(iterator)
    assert "in xmap_readers(abs), sample 2 of epoch 0" in caught.value.__notes__


def test_xmap_says_so_when_a_process_dies():
    iterator = readers.xmap_readers(os._exit, lambda: [3], 1, 1, workers="process")()
    with pytest.raises(BrokenProcessPool) as caught:
        next(iterator)
    assert "in xmap_readers(_exit), sample 0 of epoch 0" in caught.value.__notes__


def test_xmap_in_processes_refuses_what_cannot_be_sent_there():
    with pytest.raises(TypeError, match=re.escape("expected something that can be pickled")):
        readers.xmap_readers(lambda x: x, lambda: [1], 2, 2, workers="process")


@pytest.mark.parametrize("buffer_size", [8, 100])
def test_xmap_source_that_raises_gives_the_samples_before_it_first(buffer_size):
    def source():
        yield from range(3)
        raise OSError("no disk")

    iterator = readers.xmap_readers(lambda x: x, source, 2, buffer_size, order=True)()
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no disk"):
        next(iterator)


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        (readers.compose([(1, 2)], [3], [(4,)]), [(1, 2, 3, 4)]),
        (readers.compose([{"a": 1}], [{"b": 2}]), [{"a": 1, "b": 2}]),
        (readers.compose([None, 1], [2, 3]), [(None, 2), (1, 3)]),
        (readers.compose([1, 2, 3], [4, 5], check_alignment=False), [(1, 4), (2, 5)]),
        (readers.shuffle([1, 2, 3], 0), [1, 2, 3]),
        (readers.shuffle([1, 2, 3], 1), [1, 2, 3]),
        (readers.batch([1, 2, 3, 4, 5], 2, drop_last=True), [[1, 2], [3, 4]]),
    ],
)
def test_items_and_their_number_are_those_of_fluid(reader, expected):
    assert list(reader) == expected
    assert "compose" in repr(reader) or len(reader) == len(expected)


def test_compose_misaligned_yields_the_common_part_then_says_who_ended():
    iterator = readers.compose(lambda: [1, 2, 3], lambda: [4, 5])()
    assert [next(iterator), next(iterator)] == [(1, 4), (2, 5)]
    with pytest.raises(ComposeNotAligned, match="of 2, number 1 ended after 2 samples") as caught:
        next(iterator)
    assert isinstance(caught.value, ValueError)


def test_compose_of_dicts_with_one_key_twice_is_refused():
    with pytest.raises(ValueError, match="compose got the key 'a' twice"):
        list(readers.compose(lambda: [{"a": 1}], lambda: [{"a": 2}]))


@pytest.mark.parametrize(
    "decorate",
    [
        lambda source: readers.buffered(source, 2),
        lambda source: readers.cache(source),
        lambda source: readers.map_readers(abs, source),
        lambda source: readers.shuffle(source, 2),
        lambda source: readers.xmap_readers(abs, source, 1, 2),
    ],
)
def test_reader_that_is_dropped_lets_go_of_its_source_at_once(decorate):
    source = readers.arrays((np.arange(4),), None)
    reader, dropped = decorate(source), weakref.ref(source)
    gc.disable()
    try:
        del reader, source
        assert dropped() is None
    finally:
        gc.enable()


def test_shuffle_stays_within_its_buffer():
    shuffled = list(readers.shuffle(lambda: range(20), 5))
    assert shuffled != list(range(20))
    assert [sorted(shuffled[i : i + 5]) for i in range(0, 20, 5)] == [
        list(range(i, i + 5)) for i in range(0, 20, 5)
    ]


def test_shuffle_leaves_pythons_and_numpys_global_generators_alone():
    before = random.getstate(), np.random.get_state()[1].tolist()
    list(readers.shuffle(lambda: range(20), 5))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_shuffle_with_another_seed_has_another_order():
    one, other = (list(readers.shuffle(lambda: range(20), 20, seed=seed)) for seed in (0, 1))
    assert one != other
    assert sorted(one) == sorted(other)


def test_cache_reads_its_source_once():
    passes = []

    def source():
        passes.append(1)
        yield from range(3)

    reader = readers.cache(source)
    assert passes == []
    next(reader())  # not read to the end: nothing is kept
    assert list(reader) == list(reader) == list(reader) == [0, 1, 2]
    assert len(passes) == 2


def test_chain_opens_a_reader_when_its_turn_comes():
    opened = []

    def source(name):
        opened.append(name)
        yield name

    with readers.chain(lambda: source("a"), lambda: source("b"))() as iterator:
        assert next(iterator) == "a"
        assert opened == ["a"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: readers.firstn([1], -1), "firstn(n) got -1, expected an integer of 0 or more."),
        (
            lambda: readers.buffered([1], 1.5),
            "buffered(size) got 1.5, expected an integer of 0 or more.",
        ),
        (
            lambda: readers.shuffle([1], None),
            "shuffle(buf_size) got None, expected an integer of 0 or more.",
        ),
        (lambda: readers.xmap_readers(abs, [1], 0, 1), "xmap_readers(process_num) got 0"),
        (lambda: readers.xmap_readers(abs, [1], 1, 0), "xmap_readers(buffer_size) got 0"),
        (lambda: readers.batch([1], 0), "batch_size got 0, expected an integer of 1 or more."),
        (lambda: readers.chain(), "chain got no reader, expected one reader or more."),
        (lambda: readers.xmap_readers(abs, [1], 1, 1, workers="gpu"), "got 'gpu', expected one"),
    ],
)
def test_argument_out_of_range_is_refused_before_reading(make, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


def test_buffered_over_a_stalled_source_closes_and_says_so(monkeypatch, caplog):
    is_over = threading.Event()

    def source():
        yield 1
        is_over.wait(60)
        yield 2

    monkeypatch.setattr(_read_ahead, "STALL_SECS", 0.05)
    iterator = readers.buffered(source, 2)()
    assert next(iterator) == 1
    waiting = threading.Thread(target=list, args=(iterator,))
    waiting.start()
    time.sleep(0.05)
    iterator.close()
    waiting.join(60)  # closing lets it go, though its source does not
    assert not waiting.is_alive()
    is_over.set()
    assert "got no answer from its source" in caplog.text


def test_buffered_is_moved_when_its_thread_has_ended_however_slow_its_source(monkeypatch):
    def source():
        yield 0
        time.sleep(0.2)
        yield 1

    monkeypatch.setattr(_read_ahead, "STALL_SECS", 0.01)
    iterator = readers.buffered(source, 2)()
    start = iterator.get_state()
    assert next(iterator) == 0
    iterator.set_state(start)
    assert list(iterator) == [0, 1]


def test_cache_never_keeps_the_items_before_an_error_as_all_there_are():
    failures = [OSError("the disk is away")]

    def source():
        yield 0
        if failures:
            raise failures.pop()
        yield 1

    reader = readers.cache(source)
    iterator = reader()
    assert next(iterator) == 0
    with pytest.raises(OSError, match="the disk is away"):
        next(iterator)
    assert list(iterator) == [1]
    assert list(reader) == [0, 1]


def test_map_that_another_thread_closes_while_it_reads_an_item_ends():
    def items():
        yield 1
        closing = threading.Thread(target=mapped.close)
        closing.start()
        closing.join()
        yield 2

    mapped = _read_ahead.ParallelMap(abs, items(), num_workers=1, num_ahead=2)
    with pytest.raises(StopIteration):
        next(mapped)


def _stop_at_five(sample, *_):
    return sample if np.max(sample["x"]) < 5 else next(iter(()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: readers.map_readers(_stop_at_five, lambda: iter(_TEN)),
        lambda: readers.xmap_readers(_stop_at_five, lambda: iter(_TEN), 2, 4),
        lambda: readers.indexed(_TEN, 2, decode=_stop_at_five),
        lambda: readers.indexed(_TEN, 2, augment=_stop_at_five, num_workers=2),
        lambda: readers.indexed(_TEN, None, transform=_stop_at_five),
        lambda: readers.arrays({"x": np.arange(10)}, 2, transform=_stop_at_five),
    ],
)
def test_function_that_raises_stop_iteration_does_not_end_the_pass_unnoticed(make):
    with pytest.raises(RuntimeError, match="a function of a reader raised StopIteration") as caught:
        list(make())
    assert "5" in caught.value.__notes__[0]  # the sample, the record or the row


_TEN = [{"x": number} for number in range(10)]
