"""The reader contract, checked on every case of `cases.ALL`, on one to three shards."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest

from penstock import readers
from penstock.readers import Reader, ReaderIterator, ReaderStateError, Shard
from tests.held import open_files
from tests.readers.case import is_missing
from tests.readers.cases import ALL, Case
from tests.readers.samples import BROKEN, NUM_SAMPLES, ids
from tests.source_tree import ROOT

SHARDS = [Shard(index, count) for count in (1, 2, 3) for index in range(count)]
COSTLY_SHARD = Shard(1, 2)  # shards are told apart before any worker is, in processes or threads
CASES = [case for case in ALL if case.needs is None or not is_missing(case.needs)]


def cases(chosen: Callable[[Case], Any], quick: Callable[[Case], bool] | None = None) -> Any:
    """Parametrize a test with the cases chosen; those that are not quick are slow tests."""
    params = [
        pytest.param(
            case,
            id=case.name,
            marks=[*case.marks, pytest.mark.slow] if quick and not quick(case) else case.marks,
        )
        for case in ALL
        if chosen(case)
    ]
    return pytest.mark.parametrize("case", params)


def is_cheap(case: Case) -> bool:
    return not case.is_costly


def on_shards(costly: Sequence[Shard]) -> Any:
    """Parametrize a test with every case on every shard, and in slow tests costly ones on some."""
    slow = pytest.mark.slow
    params = [
        pytest.param(
            case,
            shard,
            id=f"{shard.index}of{shard.count}-{case.name}",
            marks=[*case.marks, slow] if case.is_costly else case.marks,
        )
        for shard in SHARDS
        for case in ALL
        if is_cheap(case) or shard in costly
    ]
    return pytest.mark.parametrize(("case", "shard"), params)


every_case = cases(is_cheap)
every_case_on_every_shard = on_shards(costly=())
every_count = pytest.mark.parametrize("count", [1, 2, 3])


def read(iterator: Any) -> list[list[int]]:
    """Return the numbers of the samples in each item."""
    return [ids(item) for item in iterator]


def flat(items: list[list[int]]) -> list[int]:
    return [number for item in items for number in item]


def restore(case: Case, iterator: Any, state: Any) -> None:
    """Restore a state; a warning is expected where positions are counted."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator.set_state(state)
    assert bool(caught) == (case.resume_warns and state["position"] > 0)


@every_case
def test_reader_satisfies_the_protocols(case):
    reader = case.make(Shard())
    assert isinstance(reader, Reader)
    with reader() as iterator:
        assert isinstance(iterator, ReaderIterator)
        assert iter(iterator) is iterator
        assert reader


@pytest.mark.quick("0of1", "1of2")
@every_case_on_every_shard
def test_reader_can_be_read_again_and_two_readers_agree_in_every_epoch(case, shard):
    first, second = case.make(shard), case.make(shard)
    for _ in range(3):
        one, other = read(first()), read(iter(second))
        if not case.is_ordered:
            one, other = sorted(one), sorted(other)
        assert one == other
        assert one


@pytest.mark.quick("3")
@every_case
@every_count
def test_shards_are_disjoint_and_together_complete(case, count):
    parts = [case.make(Shard(index, count)) for index in range(count)]
    for _ in range(2):
        items = [read(part) for part in parts]
        seen = Counter(flat([flat(one) for one in items]))
        assert set(seen.values()) == {1}
        if case.is_complete:
            assert sorted(seen) == list(range(NUM_SAMPLES))
        if case.is_lockstep:
            assert len({len(one) for one in items}) == 1


@pytest.mark.quick("0of1", "1of2")
@every_case_on_every_shard
def test_length_is_the_number_of_items_or_unknown(case, shard):
    reader = case.make(shard)
    try:
        length = len(reader)
    except TypeError:
        assert not case.has_length
    else:
        assert length == len(read(reader()))


@pytest.mark.quick("0of1", "1of2")
@on_shards(costly=[COSTLY_SHARD])
def test_state_restored_in_mid_epoch_continues_with_the_next_sample(case, shard):
    reader = case.make(shard)
    read(reader())  # so that the state is one of epoch 1
    whole = read(case_at_epoch(case, shard, 1)())
    num_before = len(whole) // 2
    with reader() as iterator:
        before = [ids(next(iterator)) for _ in range(num_before)]
        state = json.loads(json.dumps(iterator.get_state()))
        after = read(iterator)
    fresh = case.make(shard)
    with fresh() as restored:
        next(restored)
        restore(case, restored, state)
        resumed = read(restored)
    assert sorted(flat(before) + flat(resumed)) == sorted(flat(whole))
    if case.is_ordered:
        assert before + resumed == whole
        assert resumed == after
        assert read(fresh()) == read(case_at_epoch(case, shard, 2)())


def case_at_epoch(case: Case, shard: Shard, epoch: int) -> Any:
    reader = case.make(shard)
    reader.next_epoch = epoch
    return reader


@every_case
def test_state_after_the_last_item_restores_to_the_end(case):
    iterator = case.make(Shard())()
    read(iterator)
    state = iterator.get_state()
    fresh = case.make(Shard())()
    restore(case, fresh, state)
    assert read(fresh) == []


@every_case
def test_state_before_the_first_item_restores_the_whole_epoch(case):
    iterator = case.make(Shard())()
    state = iterator.get_state()
    first = read(iterator)
    restored = case.make(Shard())()
    next(restored)
    restore(case, restored, state)
    assert sorted(read(restored)) == sorted(first)


LAST = Shard(1, 2)


def resume_all(states: dict[str, Any]) -> dict[str, Any]:
    """Return what each case yields after its state; what the new process runs."""
    resumed = {}
    for case in CASES:
        if case.name in states:
            with case.make(LAST)() as iterator:
                restore(case, iterator, states[case.name])
                items = read(iterator)
                resumed[case.name] = items if case.is_ordered else sorted(items)
    return resumed


@pytest.mark.slow
@pytest.mark.filterwarnings("default:::tensorflow_datasets")
def test_state_restored_in_a_new_process_continues_with_the_next_sample():
    states, expected = {}, {}
    for case in CASES:
        if is_cheap(case):
            with case.make(LAST)() as iterator:
                next(iterator)
                states[case.name] = iterator.get_state()
                rest = read(iterator)
                expected[case.name] = rest if case.is_ordered else sorted(rest)
    script = (
        "import json, sys; from tests.readers.test_contract import resume_all; "
        "print(json.dumps(resume_all(json.load(sys.stdin))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(states),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@every_case
def test_state_of_another_reader_is_refused(case):
    iterator = case.make(Shard())()
    with pytest.raises(ReaderStateError, match="got a state of 'other', expected one of"):
        iterator.set_state({"kind": "other", "epoch": 0})
    with pytest.raises(ReaderStateError, match="got a state of 'list'"):
        iterator.set_state([1])
    with pytest.raises(ReaderStateError, match="got a state of 'dict'"):
        iterator.set_state({"kind": iterator.kind})


@every_case
def test_state_is_not_restored_on_a_closed_iterator(case):
    iterator = case.make(Shard())()
    state = iterator.get_state()
    iterator.close()
    with pytest.raises(ReaderStateError, match="got a closed iterator, expected an open one"):
        iterator.set_state(state)


@cases(lambda case: case.with_workers)
def test_order_is_the_same_for_every_number_of_workers(case):
    made = [case.with_workers(n, "thread") for n in (0, 1, 2, 5) if n >= case.min_workers]
    orders = [[read(reader()) for _ in range(2)] for reader in made]
    assert all(order == orders[0] for order in orders)


@cases(lambda case: case.with_workers, quick=lambda case: case.name == "tfrecord")
def test_order_is_the_same_in_worker_processes_and_threads(case):
    made = [case.with_workers(2, "process"), case.with_workers(2, "thread")]
    orders = [[read(reader()) for _ in range(2)] for reader in made]
    assert orders[0] == orders[1]


@cases(lambda case: case.broken, quick=is_cheap)
def test_exception_arrives_with_its_type_and_the_origin_of_the_sample(case):
    warm_up(case)
    before = held()
    reader, origin = case.broken()
    iterator, seen = reader(), []
    with pytest.raises(FloatingPointError, match="no such luck") as caught:
        seen.extend(ids(item) for item in iterator)
    assert any(origin in line for line in caught.value.__notes__)
    assert BROKEN not in flat(seen)
    iterator.close()
    reader.close()
    del caught, iterator, reader  # a traceback keeps Grain's iterator, which has no `close`
    assert settled(before) == set()


def held() -> set[Any]:
    """Return the threads, processes and files this process holds."""
    return {*threading.enumerate(), *multiprocessing.active_children(), *open_files()}


def processes(things: set[Any]) -> set[Any]:
    return {thing for thing in things if isinstance(thing, BaseProcess)}


def settled(before: set[Any], only: Callable[[set[Any]], set[Any]] = set) -> set[Any]:
    """Return what is held beyond `before`; Grain's own threads end a moment after `close`."""
    start = time.monotonic()
    while only(held() - before) and time.monotonic() < start + 60:  # of a busy machine
        time.sleep(0.01)
        if time.monotonic() > start + 0.2:  # in a long session, 0.3 s of processor time each
            gc.collect()
    return only(held() - before)


@cache
def warm_up(case: Case) -> None:
    """Read a case, for what is started once and kept, as Grain's threads for shared memory."""
    with case.make(Shard())() as iterator:
        next(iterator)


# Dropped is the hardest, as nobody says that it is over: each kind of thread and file once.
@pytest.mark.quick(
    *(f"drop-{name}" for name in ("indexed-in-threads", "tfrecord-samples", "xmap", "buffered")),
    *(f"drop-{name}" for name in ("all-together", "pack", "of-grain-loader", "arrays-hdf5")),
    *("close-tfrecord-samples", "exhaust-tfrecord-samples"),
)
@every_case
@pytest.mark.parametrize("ending", ["close", "drop", "exhaust"])
def test_ending_a_pass_leaves_no_thread_process_or_file(case, ending):
    reader = case.make(Shard())
    read(reader())
    before = held()
    for _ in range(3):
        iterator = reader()
        next(iterator)
        if ending == "close":
            iterator.close()
            iterator.close()
            assert list(iterator) == []
        elif ending == "exhaust":
            read(iterator)
        # Others' iterators hold theirs until they are freed.
        if ending != "drop" and not case.name.startswith("of-"):
            assert settled(before) == set()
        del iterator
    assert settled(before) == set()


@cases(lambda case: case.is_costly, quick=lambda case: case.name == "indexed-in-processes")
@pytest.mark.parametrize("ending", [pytest.param("close", marks=pytest.mark.slow), "drop"])
def test_ending_a_reader_early_leaves_no_process_thread_or_file(case, ending):
    warm_up(case)
    before = held()
    reader = case.make(Shard())
    iterator = reader()
    next(iterator)
    assert len(processes(held() - before)) == 2
    if ending == "close":
        iterator.close()
        reader.close()
        assert not settled(before, processes)
    del iterator, reader
    assert settled(before) == set()


batches_of_shards = cases(
    lambda case: case.is_lockstep and is_cheap(case) and "files" not in case.name
)


@batches_of_shards
def test_batches_of_all_shards_are_the_global_batches(case):
    whole = read(case.make(Shard()))
    parts = [read(case.make(Shard(index, 3))) for index in range(3)]
    assert [flat(list(chunks)) for chunks in zip(*parts, strict=True)] == whole


@batches_of_shards
def test_state_moves_between_numbers_of_shards(case):
    with case.make(Shard())() as iterator:
        whole = read(iterator)
    with case.make(Shard(0, 2))() as iterator:
        next(iterator)
        state = iterator.get_state()
    parts = []
    for index in range(3):
        with case.make(Shard(index, 3))() as iterator:
            iterator.set_state(state)
            parts.append(read(iterator))
    assert [flat(list(chunks)) for chunks in zip(*parts, strict=True)] == whole[1:]


@pytest.mark.parametrize("num_workers", [None, 0, 2])
def test_empty_local_batch_keeps_structure_shape_and_dtype(num_workers):
    shard = Shard(2, 3)  # seven samples: the last batch of six holds one, and it is shard 0's
    x = np.zeros((7, 3), np.float32)
    if num_workers is None:
        reader = readers.arrays({"x": x}, 6, shard=shard)
    else:
        source = [{"x": row} for row in x]
        reader = readers.indexed(source, 6, num_workers=num_workers, shard=shard)
    first, last = reader
    assert first["x"].shape == (2, 3)
    assert last["x"].shape == (0, 3)
    assert last["x"].dtype == np.float32
