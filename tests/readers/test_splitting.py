"""Parts of readers: every sample once, shares of classes, positions, and what is refused."""

import numpy as np
import pytest

from penstock import readers
from tests.readers.published import write_examples

LABELS = np.array([0] * 50 + [1] * 30 + [2] * 20)


class Source:
    """A source of dicts, some of whose labels are never read."""

    # Of its own: no label for each sample.
    labels = ("ant", "bee", "cat")

    def __len__(self):
        return len(LABELS)

    def __getitem__(self, index):
        """Return a sample."""
        return {"x": index, "label": LABELS[index]}


def in_memory(**options):
    return readers.arrays({"x": np.arange(100), "label": LABELS}, 7, **options)


def from_source(**options):
    return readers.indexed(Source(), 7, **options)


def read(reader, epoch=0):
    """Return the numbers of the samples of a pass."""
    return [int(x) for batch in reader.iterate(epoch) for x in batch["x"]]


MAKERS = pytest.mark.parametrize("make", [in_memory, from_source])


@MAKERS
@pytest.mark.parametrize("by", [None, "label", LABELS, list(LABELS)], ids=["", "name", "a", "l"])
def test_every_sample_is_in_one_part(make, by):
    parts = readers.split(make(), [0.5, 0.3, 0.2], seed=3, by=by)
    numbers = [read(part) for part in parts]
    assert [len(indices) for indices in numbers] == [50, 30, 20]
    assert sorted(np.concatenate(numbers)) == list(range(100))
    if by is not None:
        counts = [np.bincount(LABELS[indices]).tolist() for indices in numbers]
        assert counts == [[25, 15, 10], [15, 9, 6], [10, 6, 4]]


@MAKERS
def test_parts_are_those_of_the_seed_and_the_same_for_every_reader(make):
    first, second = (readers.split(make(), [0.5, 0.5], seed=seed) for seed in (1, 2))
    assert read(first[0]) != read(second[0])
    other = readers.split(in_memory(shuffle=True), [0.5, 0.5], seed=1)
    assert sorted(read(other[0])) == read(first[0])


@MAKERS
def test_folds_test_every_sample_once_and_train_on_the_others(make):
    tested = []
    for train, test in readers.folds(make(), 3, by="label"):
        assert sorted(read(train) + read(test)) == list(range(100))
        assert np.bincount(LABELS[read(test)]).min() >= 6
        tested += read(test)
    assert sorted(tested) == list(range(100))


@MAKERS
def test_parts_shuffle_divide_and_split_again_as_the_reader_does(make):
    part, _ = readers.split(make(shuffle=True), [0.5, 0.5])
    assert read(part, 0) != read(part, 1)
    assert sorted(read(part, 0)) == sorted(read(part, 1))
    inner, outer = readers.split(part, [0.5, 0.5], by="label")
    assert sorted(read(inner) + read(outer)) == sorted(read(part))
    shares = [
        readers.split(readers.arrays({"x": np.arange(100)}, 8, shard=readers.Shard(n, 2)), [1.0])[0]
        for n in range(2)
    ]
    assert sorted(read(shares[0]) + read(shares[1])) == list(range(100))


@MAKERS
def test_position_of_a_part_is_none_of_another(make):
    part, other = readers.split(make(shuffle=True), [0.5, 0.5])
    iterator = part.iterate(2)
    next(iterator)
    state, rest = iterator.get_state(), [batch["x"].tolist() for batch in iterator]
    resumed = part.iterate(0)
    resumed.set_state(state)
    assert [batch["x"].tolist() for batch in resumed] == rest
    for wrong in (other, make(shuffle=True)):
        with pytest.raises(readers.ReaderStateError):
            wrong.iterate(0).set_state(state)


def test_parts_of_record_files_and_of_worker_processes(tmp_path):
    write_examples(tmp_path / "a.tfrecord", [{"x": number} for number in range(20)])
    features = {"x": readers.FixedLenFeature((), "int32")}
    whole = readers.tfrecord(f"{tmp_path}/*.tfrecord", features, batch_size=4, num_workers=2)
    parts = readers.split(whole, [0.75, 0.25], by=np.arange(20) % 4)
    assert [len(part) for part in parts] == [4, 2]
    assert sorted(read(parts[0]) + read(parts[1])) == list(range(20))
    assert np.bincount(np.array(read(parts[1])) % 4).max() <= 2
    part, _ = readers.split(from_source(workers="process", num_workers=1), [0.5, 0.5])
    assert len(read(part)) == 50
    part.close()


# What is refused.


HALVES = [0.5, 0.5]
SHARES = "expected numbers above 0"
LABLE = "by='lable', expected one of 'x', 'label'. Or pass .* Did you mean 'label'"
VALUES = "expected one value for each of 100 samples"
REFUSED = [
    (f"{SHARES} w", lambda: readers.split(in_memory(), [0.8, 0.1])),
    (SHARES, lambda: readers.split(in_memory(), [1.5, -0.5])),
    (SHARES, lambda: readers.split(in_memory(), [0.5, np.nan])),
    ("at least one in each", lambda: readers.split(in_memory(), [0.999, 0.001])),
    (r"folds\(k\) got 1, expected an int", lambda: readers.folds(in_memory(), 1)),
    ("got 100 samples for 101 parts, 1 of", lambda: readers.folds(in_memory(), 101)),
    (LABLE, lambda: readers.split(in_memory(), HALVES, by="lable")),
    (LABLE, lambda: readers.split(from_source(), HALVES, by="lable")),
    (rf"shape \[3, 1\], {VALUES}", lambda: readers.split(in_memory(), HALVES, by=LABELS[:3])),
    (VALUES, lambda: readers.split(in_memory(), HALVES, by=1)),  # a field of tuples has no name
]


@pytest.mark.parametrize(("text", "call"), REFUSED)
def test_what_makes_no_parts_is_refused(text, call):
    with pytest.raises(ValueError, match=text):
        call()


def test_reader_that_has_no_numbers_for_its_samples_is_refused():
    with pytest.raises(TypeError, match="expected a reader of arrays, indexed"):
        readers.split(readers.batch(lambda: iter([1]), 1), [1.0])


def test_labels_of_an_image_folder_are_known_without_decoding(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for number in range(10):
            (tmp_path / name / f"{number}.png").write_bytes(b"no image")
    folder = readers.image_folder(tmp_path, 4)
    parts = readers.split(folder, [0.8, 0.2], by="label")
    assert [len(part.order.chosen) for part in parts] == [16, 4]
    assert (parts[1].order.chosen >= 10).sum() == 2
