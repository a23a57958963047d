"""Shards: the three rules, their errors and warnings, and the two meanings of a batch size."""

import json
import re
import time

import numpy as np
import pytest

from penstock import readers
from penstock.readers import PerDevice, ReaderStateError, Shard, ShardError

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
    with pytest.raises(ValueError, match=r"a source without files got rule=.*, expected 'records'"):
        readers.arrays({"x": np.arange(4)}, 2, shard=Shard(0, 2, rule="files_contiguous"))


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_index_out_of_range_is_refused(index, count):
    with pytest.raises(ShardError, match=f"Shard got index={index}, count={count}, expected 0 <="):
        Shard(index, count)


def test_unknown_rule_is_refused():
    with pytest.raises(ShardError, match="rule got 'hash', expected one of 'records'"):
        Shard(0, 1, rule="hash")


def test_batch_size_per_device_counts_every_device():
    size = PerDevice(batch_size=2, num_devices=4)
    chunk = next(readers.arrays({"x": np.arange(16)}, size, shard=Shard(1, 2))())
    assert chunk["x"].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("sizes", [(-2, -4), (0, 4), (True, 4)])
def test_sizes_per_device_that_are_no_positive_ints_are_refused(sizes):
    with pytest.raises(ValueError, match=re.escape(f"PerDevice(batch_size) got {sizes[0]}, ")):
        PerDevice(batch_size=sizes[0], num_devices=sizes[1])


def test_batch_size_may_be_an_integer_of_numpy():
    reader = readers.arrays({"x": np.arange(8)}, np.int64(3))
    assert [len(batch["x"]) for batch in reader] == [3, 3, 2]
    iterator = reader()
    next(iterator)
    json.dumps(iterator.get_state())


def test_batch_size_that_does_not_divide_over_processes_says_what_would():
    with pytest.raises(ShardError, match="got 10 over 4 processes, expected a multiple of 4"):
        readers.arrays({"x": np.arange(8)}, 10, shard=Shard(0, 4))
    with pytest.raises(ShardError, match="Pass 12 on any"):
        readers.batch(lambda: range(8), 10, shard=Shard(0, 4))


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_batch_size_that_is_no_positive_int_is_refused(size):
    with pytest.raises(
        ValueError, match=re.escape(f"batch_size got {size!r}, expected an integer of")
    ):
        readers.arrays({"x": np.arange(8)}, size)


def file_ruled(index, count, rule="files_contiguous", **options):
    shard = Shard(index, count, rule=rule)
    return readers.indexed(Files(), 6, shuffle=True, shard=shard, **options)


class Files:
    """Twelve records, their numbers, in six files."""

    file_names = tuple("abcdef")
    file_sizes = (2,) * 6

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        ((0, 2, "files_round_robin"), (0, 3, "files_round_robin")),
        ((0, 2, "files_round_robin"), (0, 2, "files_contiguous")),
        ((0, 2, "files_contiguous"), (0, 2, "records")),
        ((0, 2, "records"), (0, 1, "files_contiguous")),
    ],
)
def test_state_divided_otherwise_is_refused_with_both_divisions(saved, restored):
    iterator = file_ruled(*saved)()
    next(iterator)
    text = (
        r"got a state of .*'rule': '{}'.*, expected one of .*'rule': '{}'.*of rule='records' move"
    )
    with pytest.raises(ReaderStateError, match=text.format(saved[2], restored[2])):
        file_ruled(*restored)().set_state(iterator.get_state())


@pytest.fixture
def joined(monkeypatch):
    """Return how this process becomes one of several, as far as readers ask."""
    from jax._src.distributed import global_state

    def join(index, count):
        monkeypatch.setattr(global_state, "client", object())
        monkeypatch.setattr(global_state, "process_id", index)
        monkeypatch.setattr(global_state, "num_processes", count)

    return join


def read_digits(**options):
    reader = readers.dataset("digits", "train", **options)
    return [batch["label"].tolist() for batch in readers.firstn(reader, 3)]


def read_files(**options):
    return [batch.tolist() for batch in readers.indexed(Files(), num_workers=0, **options)]


def read_rows(**options):
    return [batch["x"].tolist() for batch in readers.arrays({"x": np.arange(12)}, **options)]


@pytest.mark.parametrize("read", [read_digits, read_files, read_rows])
def test_joined_processes_read_their_parts_by_themselves(joined, read):
    whole = read(batch_size=6, shuffle=True, shard=Shard())
    assert read(batch_size=6, shuffle=True) == whole
    parts = []
    for index in range(2):
        joined(index, 2)
        assert read(batch_size=6, shuffle=True, shard=Shard()) == whole
        parts.append(read(batch_size=6, shuffle=True))
        assert parts[-1] == read(batch_size=6, shuffle=True, shard=Shard(index, 2))
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_reader_keeps_the_part_that_it_was_made_with(joined):
    options = readers.records.ReadOptions(batch_size=6)
    before = readers.arrays({"x": np.arange(12)}, 6)
    joined(1, 2)
    assert len(next(before())["x"]) == options.order(12).epoch(0).rows(0).stop == 6


def test_batch_size_that_joined_processes_cannot_share_is_refused(joined):
    joined(1, 4)
    for make in (readers.arrays, readers.indexed):
        with pytest.raises(ShardError, match=r"got 6 over 4 processes, .*Pass 8 on"):
            make({"x": np.arange(12)} if make is readers.arrays else range(12), 6)
    with pytest.raises(ShardError, match="got 6 over 4 processes"):
        readers.batch(readers.arrays({"x": np.arange(12)}, None), 6)


def samples(**options):
    return readers.arrays(np.arange(12), None, **options)


def double(sample):
    return 2 * sample


def make_words(sample):
    return {"words": [sample]}


@pytest.mark.parametrize(
    "decorate",
    [
        lambda: samples(),
        lambda: readers.indexed(range(12), None),
        lambda: readers.shuffle(samples(), 5, seed=1),
        lambda: readers.firstn(readers.buffered(samples(), 3), 8),
        lambda: readers.chain(samples(), samples()),
        lambda: readers.map_readers(double, samples()),
        # In any order, which then would be another one in each process.
        lambda: readers.xmap_readers(double, samples(), 3, 2),
        lambda: readers.cache(samples()),
        lambda: readers.map_readers(
            lambda row: row["words"][0],
            readers.pack(readers.map_readers(make_words, samples()), field="words", length=1),
        ),
    ],
)
def test_samples_are_everybodys_and_batch_divides_them(joined, decorate):
    numbers = [int(sample) for sample in decorate()]
    if len(set(numbers)) == 12 and max(numbers) > 11:
        numbers.sort()  # of xmap_readers
    parts = []
    for index in range(2):
        joined(index, 2)
        reader = decorate()
        parts.append([list(map(int, part)) for part in readers.batch(reader, 4)])
    both = [left + right for left, right in zip(*parts, strict=True)]
    assert both == [numbers[at : at + 4] for at in range(0, len(numbers), 4)]


def test_xmap_keeps_the_order_of_others_samples_that_batch_divides_by_a_shard(joined):
    def map_slowly(sample):
        time.sleep(0.02 * (sample % 3 == 0))
        return sample

    parts = []
    for index in range(2):
        joined(index, 2)
        mapped = readers.xmap_readers(map_slowly, lambda: range(24), 3, 6)
        parts.append(list(readers.batch(mapped, 4, shard=Shard(index, 2))))
    both = [left + right for left, right in zip(*parts, strict=True)]
    assert both == [list(range(at, at + 4)) for at in range(0, 24, 4)]


def test_batch_of_samples_that_may_be_divided_already_takes_them_all(joined):
    joined(1, 2)
    own = readers.batch(samples(shard=Shard(1, 2)), 2)
    assert [list(map(int, part)) for part in own] == [[1, 3], [5, 7], [9, 11]]
    for reader in (samples(shard=Shard()), lambda: iter(range(12))):
        assert [len(part) for part in readers.batch(reader, 6)] == [6, 6]
        assert [len(part) for part in readers.batch(reader, 6, shard=Shard(1, 2))] == [3, 3]
    mixed = readers.chain(samples(), lambda: iter(range(12)))
    assert [len(part) for part in readers.batch(mixed, 12)] == [12, 12]


def test_data_set_whose_loader_reads_another_is_divided_once(joined):
    @readers.register_dataset("first_digits", splits=["train"])
    def load(request):
        return next(iter(readers.dataset("digits", request.split, 100)))

    whole = [batch["label"].tolist() for batch in readers.dataset("first_digits", "train", 50)]
    joined(1, 2)
    part = [batch["label"].tolist() for batch in readers.dataset("first_digits", "train", 50)]
    assert part == [batch[25:] for batch in whole]


@pytest.mark.parametrize("make", [readers.arrays, readers.indexed])
def test_pass_that_goes_on_with_another_batch_size_drops_its_remainder_too(make):
    rows = [{"x": number} for number in range(10)]
    data = {"x": np.arange(10)} if make is readers.arrays else rows
    iterator = make(data, 3, drop_remainder=True)()
    next(iterator)
    resumed = make(data, 4, drop_remainder=True)()
    for _ in range(2):
        resumed.set_state(iterator.get_state())
        assert [batch["x"].tolist() for batch in resumed] == [[3, 4, 5, 6]]
        assert resumed.get_state()["position"] == 7


@pytest.mark.parametrize("batch_size", [8, None])
def test_position_goes_to_any_number_of_processes(batch_size):
    before = readers.arrays(np.arange(24), 6, shard=Shard(0, 3))()
    next(before)
    read = []
    for index in range(4):
        after = readers.arrays(np.arange(24), batch_size, shard=Shard(index, 4))()
        after.set_state(before.get_state())
        read += [row for part in after for row in np.atleast_1d(part).tolist()]
    assert sorted(read) == list(range(6, 24))
