import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.readers.records import RecordError, RecordFiles, RecordFormat, files
from tests.held import open_files
from tests.readers.published import write_records


@pytest.fixture
def paths(tmp_path):
    """Five files, the third of them empty, of records that say where they are."""
    return [
        write_records(
            tmp_path / f"{number}.tfrecord",
            [f"{number}:{n}".encode() * (n * 30_000 + 1) for n in range(count)],
        )
        for number, count in enumerate([3, 4, 0, 5, 2])
    ]


def heads(payloads: list) -> list[str]:
    return [payload[:3].decode() for payload in payloads]


def test_records_are_numbered_over_all_files(paths):
    with_empty = RecordFiles(paths, RecordFormat())
    assert with_empty.sizes == (3, 4, 0, 5, 2)
    order = [13, 0, 6, 7, 2, 3, 4, 5]
    expected = ["4:1", "0:0", "1:3", "3:0", "0:2", "1:0", "1:1", "1:2"]
    assert heads(list(with_empty.read(order))) == expected
    assert with_empty.origin(7) == (str(paths[3]), 0, 0)
    with_empty.close()


def test_record_out_of_range_is_an_error(paths):
    with pytest.raises(IndexError, match="record got 14, expected 0 to 13"):
        RecordFiles(paths, RecordFormat()).origin(14)


def test_threads_read_at_once_with_few_open_files(paths, monkeypatch):
    before = open_files()
    monkeypatch.setattr(files, "_MAX_OPEN_FILES", 2)
    many = RecordFiles(paths, RecordFormat())
    expected = heads(list(many.read(range(14))))
    orders = [np.random.default_rng(seed).permutation(14) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda order: list(many.read(order.tolist())), orders))
    for order, result in zip(orders, results, strict=True):
        assert heads(result) == [expected[record] for record in order]
    assert len(open_files() - before) <= 2
    many.close()
    assert open_files() - before == set()


def test_copy_reads_after_the_original_is_closed_and_through_pickle(paths):
    original = RecordFiles(paths, RecordFormat())
    copies = [original.reopen(), pickle.loads(pickle.dumps(original))]
    original.close()
    for copy in copies:
        assert heads(list(copy.read([8]))) == ["3:1"]
        copy.close()


def test_file_rewritten_after_indexing_is_an_error_not_other_data(paths):
    indexed = RecordFiles(paths, RecordFormat())
    write_records(paths[1], [b"other"] * 9)
    for outcome in indexed.read([3, 4, 5, 6]):
        assert isinstance(outcome, RecordError)
        assert outcome.path == str(paths[1])
    indexed.close()
