"""What every reader from disk can do: processes, memory, skipping, the same on each of them."""

import multiprocessing
import os
import re
import typing
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from penstock import readers
from penstock.readers import BlobConf, FixedLenFeature, RawCodec, RecordError
from penstock.readers._read_options import ReadKeywords
from tests.readers.published import write_examples, write_records

NUM_SAMPLES = 8
BROKEN = 5
SPEC = {"label": FixedLenFeature((), "int32")}
BLOBS = {"label": BlobConf("label", (), "int32", RawCodec())}


def write_tfrecord(folder: Path) -> None:
    for part in range(2):
        labels = range(4 * part, 4 * part + 4)
        write_examples(folder / f"{part}.tfrecord", [{"label": label} for label in labels])


def write_ofrecord(folder: Path) -> None:
    for part in range(2):
        labels = range(4 * part, 4 * part + 4)
        payloads = [readers.build_ofrecord({"label": label}) for label in labels]
        write_records(folder / f"part-{part}", payloads, framing=readers.OFRECORD)


def write_images(folder: Path) -> None:
    for number in range(NUM_SAMPLES):
        (folder / f"{number}").mkdir()
        image = np.full((4, 4, 3), number, np.uint8)
        (folder / f"{number}" / "it.png").write_bytes(readers.records.encode_png(image))


def read_records_by_name(folder: Path, **options):
    @readers.register_dataset("of-records", splits=["train"])
    def load(request):
        return readers.RecordSet(paths=sorted(folder.glob("*.tfrecord")), features=SPEC)

    return readers.dataset("of-records", **options)


def read_images_by_name(folder: Path, **options):
    @readers.register_dataset("of-images", splits=["train"])
    def load(request):
        return readers.ImageFolder(folder)

    return readers.dataset("of-images", **options)


def read_tfrecord(folder: Path, **options):
    return readers.tfrecord(folder / "*.tfrecord", SPEC, **options)


def read_ofrecord(folder: Path, **options):
    return readers.ofrecord(folder, BLOBS, **options)


def read_images(folder: Path, **options):
    return readers.image_folder(folder, **options)


READERS = {
    "tfrecord": (write_tfrecord, read_tfrecord),
    "ofrecord": (write_ofrecord, read_ofrecord),
    "image_folder": (write_images, read_images),
    "dataset-of-records": (write_tfrecord, read_records_by_name),
    "dataset-of-images": (write_images, read_images_by_name),
}


@pytest.fixture(params=READERS)
def make(request, tmp_path):
    """Return a function of options that makes a shuffled reader of `tmp_path`."""
    write, read = READERS[request.param]
    write(tmp_path)
    return lambda **options: read(tmp_path, **{"batch_size": 3, "shuffle": True, **options})


def test_keywords_are_the_options_with_their_types():
    options, keywords = (
        typing.get_type_hints(cls) for cls in (readers.records.ReadOptions, ReadKeywords)
    )
    assert options.keys() - keywords.keys() == {"name", "batch_size"}
    for name, hint in keywords.items():
        assert hint == (options[name] | None if name in ("shard", "pad") else options[name])


@pytest.mark.parametrize("name", ["tfrecord", "ofrecord", "image_folder", "tfds", "indexed"])
def test_misspelt_option_is_refused_with_the_nearest(name):
    what = f"{name} got an unexpected keyword argument 'shufle', expected one .* mean 'shuffle'?"
    with pytest.raises(TypeError, match=what):
        getattr(readers, name)("", None, shufle=True)


def add_draw(sample, random):
    return {**sample, "draw": random.random()}


def passes(reader, num_epochs: int = 2) -> list[list[dict[str, list]]]:
    return [
        [{key: value.tolist() for key, value in batch.items()} for batch in reader]
        for _ in range(num_epochs)
    ]


def add_numbers(sample):
    return {"label": sample["label"], "numbers": np.arange(sample["label"])}


def test_entries_of_different_lengths_are_padded_by_every_reader(make):
    options = {"batch_size": NUM_SAMPLES, "shuffle": False, "decode": add_numbers}
    (batch,) = make(pad={"numbers": readers.Padding(value=-1)}, **options)
    assert batch["numbers"].shape == (NUM_SAMPLES, NUM_SAMPLES - 1)
    assert batch["numbers_length"].tolist() == batch["label"].tolist() == [*range(NUM_SAMPLES)]


def overwrite_with_zeros(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.quick("tfrecord-options0", "tfrecord-options1", "image_folder-options1")
@pytest.mark.parametrize("options", [{"num_workers": 0}, {}, {"workers": "process"}])
def test_cached_records_give_what_the_files_gave_with_every_kind_of_worker(make, options, tmp_path):
    expected = passes(make(augment=add_draw, num_workers=1))
    assert sorted(n for batch in expected[0] for n in batch["label"]) == list(range(NUM_SAMPLES))
    assert expected[0] != expected[1]
    reader = make(augment=add_draw, cache_records=True, **{"num_workers": 1, **options})
    first = passes(reader, 1)
    overwrite_with_zeros(tmp_path)
    assert first + passes(reader, 1) == expected


def test_orders_and_draws_are_the_same_on_every_machine(make):
    whole = make(batch_size=8, augment=draw_below_100)
    assert [next(whole())["label"].tolist() for _ in range(2)] == [
        [2, 4, 3, 6, 5, 0, 1, 7],
        [1, 3, 7, 6, 0, 4, 2, 5],
    ]
    in_order = make(batch_size=8, shuffle=False, augment=draw_below_100)
    draws = [next(in_order())["draw"].tolist()[:3] for _ in range(2)]
    assert draws == [[85, 88, 22], [52, 67, 55]]
    assert next(make(batch_size=8, seed=7)())["label"].tolist() == [0, 6, 7, 2, 4, 5, 1, 3]


@pytest.mark.parametrize("rule", ["files_round_robin", "files_contiguous"])
def test_orders_by_file_are_the_same_on_every_machine(rule, tmp_path):
    write_tfrecord(tmp_path)
    parts = [
        read_tfrecord(
            tmp_path, batch_size=4, shuffle=True, shard=readers.Shard(index, 2, rule=rule)
        )
        for index in range(2)
    ]
    assert [[batch["label"].tolist() for batch in part] for part in parts] == [
        [[2, 0], [1, 3]],
        [[7, 5], [6, 4]],
    ]


def draw_below_100(sample, random):
    return {**sample, "draw": random.integers(100)}


def damage(folder: Path) -> str:
    """Damage the record of sample `BROKEN`; return what the error says of the place."""
    path = next(
        p
        for p in sorted(folder.rglob("*"))
        if p.name in {"1.tfrecord", "part-1"}
        or (p.name == "it.png" and p.parent.name == str(BROKEN))
    )
    content = bytearray(path.read_bytes())
    at = 1 if path.suffix == ".png" else len(content) // 4 + 14  # a magic number, a payload's byte
    content[at] ^= 0x7F
    path.write_bytes(bytes(content))
    return path.name


@pytest.mark.parametrize("workers", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_damaged_record_is_raised_or_left_out_and_counted(make, workers, tmp_path, caplog):
    name = damage(tmp_path)
    options = {"workers": workers, "num_workers": 1, "shuffle": False}
    with pytest.raises(RecordError) as caught:
        list(make(**options))
    assert name in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    iterator = make(**options, on_error="skip")()
    labels = [batch["label"].tolist() for batch in iterator]
    assert labels == [[0, 1, 2], [3, 4], [6, 7]]
    assert iterator.num_skipped == 1
    (line,) = caplog.messages
    assert re.search(r"epoch 0 skipped 1 of 8 records. The first: .*" + re.escape(name), line)


def test_records_skipped_before_a_restored_position_are_reported_and_those_after_it_are_not(caplog):
    def refuse_zero(sample):
        if sample["x"] == 0:
            raise RecordError("it is 0")
        return sample

    source = [{"x": number} for number in range(6)]
    reader = readers.indexed(source, 2, decode=refuse_zero, on_error="skip")
    iterator = reader.iterate(0)
    start = iterator.get_state()
    next(iterator)
    resumed = reader.iterate(0)
    resumed.set_state(iterator.get_state())
    iterator.set_state(start)
    assert [len(list(batches)) for batches in (resumed, iterator)] == [2, 3]
    first, second = caplog.messages
    assert first == "indexed: epoch 0 skipped 1 of 6 records."
    assert second == "indexed: epoch 0 skipped 1 of 6 records. The first: it is 0"


def test_part_without_a_record_raises_what_the_others_raise():
    def refuse(sample):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(readers.indexed([1], 2, decode=refuse, shard=readers.Shard(1, 2)))


def test_function_that_cannot_travel_to_processes_is_refused_by_its_name(make):
    for option in ("decode", "augment"):
        expected = rf"\(workers='process'\) got {option}=<function .*<lambda>.*, expected something"
        with pytest.raises(TypeError, match=expected):
            make(workers="process", **{option: lambda *sample: sample[0]})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_error": "ignore"}, "(on_error) got 'ignore', expected one of 'raise', 'skip'."),
        ({"num_workers": -1}, "(num_workers) got -1, expected an integer of 0 or more."),
        ({"look_ahead": -1}, "(look_ahead) got -1, expected an integer of 0 or more."),
        ({"workers": "gpu"}, "(workers) got 'gpu', expected one of 'thread', 'process'."),
    ],
)
def test_option_out_of_range_is_refused_with_the_readers_name(make, options, text):
    with pytest.raises(ValueError, match=r"^\w+(\('of-\w+'\))?" + re.escape(text)):
        make(**options)


def die_in_a_worker(sample):
    if multiprocessing.parent_process() is not None and Path(sample["path"]).exists():
        os._exit(3)
    return sample["path"]


@pytest.mark.slow
def test_process_that_dies_says_what_ends_one_and_the_next_pass_begins_anew(tmp_path):
    flag = tmp_path / "die"
    flag.touch()
    source = [{"path": str(flag)}]
    reader = readers.indexed(source, 1, decode=die_in_a_worker, num_workers=1, workers="process")
    with pytest.raises(BrokenProcessPool) as caught:
        list(reader)
    assert caught.value.__notes__ == [
        "a worker process ended, and what it said is on stderr. It needs functions that it can "
        'import (none of a notebook), `if __name__ == "__main__":` in the script, and memory'
    ]
    flag.unlink()
    assert [batch.tolist() for batch in reader] == [[str(flag)]]


class TwoPartError(Exception):
    """Raised with two arguments, it cannot be made again from its one."""

    def __init__(self, left, right):
        super().__init__(f"{left} and {right}")


def raise_two_parts(sample):
    raise TwoPartError("this", "that")


@pytest.mark.slow
def test_exception_that_cannot_travel_is_told_of():
    reader = readers.indexed([1], 1, decode=raise_two_parts, num_workers=1, workers="process")
    expected = "TwoPartError, which cannot be pickled: this and that"
    with pytest.raises(RuntimeError, match=expected) as caught:
        list(reader)
    origin, traceback = caught.value.__notes__
    assert origin == "in indexed, record 0"
    assert "raise_two_parts" in traceback
    mapped = readers.xmap_readers(raise_two_parts, lambda: [1], 1, 1, workers="process")
    with pytest.raises(RuntimeError, match=expected):
        list(mapped)


class Counted:
    """A source that keeps its records encoded, and counts how often each is read."""

    def __init__(self):
        self.num_reads = [0] * NUM_SAMPLES

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.decoded(index, self.encoded(index))

    def encoded(self, index):
        self.num_reads[index] += 1
        return bytes([index])

    def decoded(self, index, encoded):
        if index == BROKEN:
            raise RecordError("it got nothing, expected something")
        return encoded[0]


def test_source_of_ones_own_is_cached_encoded_and_may_have_damaged_records():
    source = Counted()
    reader = readers.indexed(source, 3, cache_records=True, on_error="skip", num_workers=2)
    assert [batch.tolist() for batch in reader] == [[0, 1, 2], [3, 4], [6, 7]]
    assert [batch.tolist() for batch in reader] == [[0, 1, 2], [3, 4], [6, 7]]
    assert source.num_reads == [1] * NUM_SAMPLES
    assert reader.cache == {index: (index, bytes([index])) for index in range(NUM_SAMPLES)}
    with pytest.raises(RecordError, match="it got nothing, expected something"):
        list(readers.indexed(source, 3))
