"""Shards: the three rules, their errors and warnings, and the two meanings of a batch size."""

import re

import numpy as np
import pytest

from penstock import readers
from penstock.readers import PerDevice, Shard, ShardError

PARTS = [f"part-{i}" for i in range(8)]


def test_rows_are_balanced_contiguous_and_complete_for_every_count():
    for length in range(12):
        for count in range(1, 5):
            parts = [range(*Shard(index, count).rows(0, length)) for index in range(count)]
            assert [row for part in parts for row in part] == list(range(length))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_contiguous_rule_gives_oneflows_ranges_in_the_order_given():
    shards = [Shard(index, 3, rule="files_contiguous").select(PARTS) for index in range(3)]
    assert shards == [PARTS[0:3], PARTS[3:6], PARTS[6:8]]


def test_round_robin_rule_sorts_the_names_and_takes_every_nth():
    names = ["b", "d", "a", "c"]
    shards = [Shard(index, 2, rule="files_round_robin").select(names) for index in range(2)]
    assert shards == [["a", "c"], ["b", "d"]]


def test_round_robin_rule_warns_when_files_do_not_divide_evenly():
    with pytest.warns(UserWarning, match="8 files do not divide evenly over 3 processes"):
        selected = Shard(2, 3, rule="files_round_robin").select(PARTS)
    assert selected == ["part-2", "part-5"]


@pytest.mark.parametrize("rule", ["files_round_robin", "files_contiguous"])
def test_file_rule_with_fewer_files_than_processes_names_both_counts(rule):
    expected = (
        f"Shard(rule='{rule}') got 2 files for 3 processes, expected at least one file a process. "
        "This rule gives whole files to processes. "
        "Split the data into more files, or use rule='records'."
    )
    with pytest.raises(ShardError, match=re.escape(expected)):
        Shard(0, 3, rule=rule).select(PARTS[:2])


def test_file_rule_on_a_reader_without_files_is_refused():
    with pytest.raises(ValueError, match="got a source without files, expected rule='records'"):
        readers.arrays({"x": np.arange(4)}, 2, shard=Shard(0, 2, rule="files_contiguous"))


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_index_out_of_range_is_refused(index, count):
    with pytest.raises(ShardError, match=f"Shard got index={index}, count={count}, expected 0 <="):
        Shard(index, count)


def test_unknown_rule_is_refused():
    with pytest.raises(ShardError, match="got rule='hash', expected one of 'records'"):
        Shard(0, 1, rule="hash")


def test_batch_size_is_the_global_batch_and_each_process_gets_its_chunk():
    data = {"x": np.arange(8)}
    chunks = [next(readers.arrays(data, 4, shard=Shard(i, 2))())["x"] for i in range(2)]
    assert [chunk.tolist() for chunk in chunks] == [[0, 1], [2, 3]]


def test_batch_size_per_device_counts_every_device():
    size = PerDevice(batch_size=2, num_devices=4)
    chunk = next(readers.arrays({"x": np.arange(16)}, size, shard=Shard(1, 2))())
    assert chunk["x"].tolist() == [4, 5, 6, 7]


def test_batch_size_that_does_not_divide_over_processes_says_what_would():
    with pytest.raises(ShardError, match="got 10 over 4 processes, expected a multiple of 4"):
        readers.arrays({"x": np.arange(8)}, 10, shard=Shard(0, 4))
    with pytest.raises(ShardError, match=r"Pass 12\."):
        readers.batch(lambda: range(8), 10, shard=Shard(0, 4))


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_batch_size_that_is_no_positive_int_is_refused(size):
    with pytest.raises(ValueError, match=re.escape(f"batch_size got {size!r}, expected an int >=")):
        readers.arrays({"x": np.arange(8)}, size)
