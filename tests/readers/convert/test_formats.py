import numpy as np
import pytest

from penstock.readers import convert
from penstock.readers.ofrecord_files import find_parts, ofrecord
from penstock.readers.records import (
    OFRECORD,
    BlobConf,
    FeatureError,
    ImageCodec,
    RawCodec,
    RecordError,
    build_sequence_example,
    encode_png,
)
from penstock.readers.records.messages import parse_ofrecord_features
from tests.readers.published import read_records, write_examples, write_records


@pytest.fixture
def source(tmp_path):
    def make(number):
        return {
            "image/encoded": encode_png(np.full((2, 2, 3), number, np.uint8)),
            "image/class/label": number,
            "big": 2**40 + number,
            "scores": [0.5, number],
            "empty": [],
            "names": [b"a", b"\0"],
        }

    parts = {"a.tfrecord": range(4), "b.tfrecord": range(4, 8)}
    return [write_examples(tmp_path / name, map(make, part)) for name, part in parts.items()]


def test_there_and_back_gives_the_same_bytes(source, tmp_path):
    parts = convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=3)
    assert [part.name for part in parts] == ["part-00000", "part-00001", "part-00002"]
    back = convert.ofrecord_to_tfrecord(
        find_parts(tmp_path / "of", suffix_length=5), [tmp_path / "c.tfrecord"]
    )
    assert read_records(back) == read_records(source)


def test_converted_records_are_read_with_oneflows_blobs(source, tmp_path):
    convert.tfrecord_to_ofrecord(
        source,
        tmp_path / "of",
        num_parts=2,
        part_name_suffix_length=-1,
        rename=convert.SLIM_TO_ONEFLOW,
    )
    blobs = (
        BlobConf("class/label", shape=(), dtype="int32", codec=RawCodec()),
        BlobConf("encoded", shape=(2, 2, 3), dtype="uint8", codec=ImageCodec()),
    )
    ((labels, images),) = ofrecord(tmp_path / "of", blobs, batch_size=8)
    assert labels.tolist() == list(range(8))
    assert images[:, 0, 0, 0].tolist() == list(range(8))
    part = read_records([tmp_path / "of" / "part-0"], framing=OFRECORD, compression="")
    features = parse_ofrecord_features(part[0])
    kinds = {name: features[name].WhichOneof("kind") for name in features}
    assert kinds["class/label"] == "int32_list"
    assert kinds["big"] == "int64_list"
    assert kinds["scores"] == "float_list"


def test_damaged_record_stops_the_conversion(source, tmp_path):
    data = bytearray(source[1].read_bytes())
    data[20] ^= 1
    source[1].write_bytes(data)
    with pytest.raises(RecordError, match=r"b\.tfrecord', record 0 at byte 0: TFRecord payload"):
        convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=1)
    assert list((tmp_path / "of").iterdir()) == []


def test_record_that_is_no_example_is_named(tmp_path):
    path = write_records(tmp_path / "a.tfrecord", [b"\xff"])
    with pytest.raises(FeatureError, match=r"a\.tfrecord', record 0 at byte 0: Example payload"):
        convert.tfrecord_to_ofrecord([path], tmp_path / "of", num_parts=1)


@pytest.mark.parametrize(
    ("num_parts", "suffix_length", "expected"),
    [
        (0, 5, "num_parts got 0, expected an integer of 1 or more"),
        (11, 1, "part_name_suffix_length got 1, expected -1, or 2 to 200"),
        (1, 0, "part_name_suffix_length got 0, expected -1, or 1 to 200"),
        (1, -2, "part_name_suffix_length got -2, expected -1"),
        (1, 10**9, "part_name_suffix_length got 1000000000, expected -1"),
    ],
)
def test_part_names_that_no_reader_takes_are_an_error(
    num_parts, suffix_length, expected, source, tmp_path
):
    with pytest.raises(convert.ArgumentError, match=expected):
        convert.tfrecord_to_ofrecord(
            source, tmp_path / "of", num_parts=num_parts, part_name_suffix_length=suffix_length
        )
    assert not (tmp_path / "of").exists()


def test_targets_that_are_none_or_named_twice_are_an_error(source, tmp_path):
    parts = convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=1)
    for paths, expected in [
        ([], "targets got none, expected files, each named once"),
        ([tmp_path / "a", tmp_path / "b", tmp_path / "a"], "targets got '.*/a' 2 times"),
        ([tmp_path], "targets got the folder"),
    ]:
        with pytest.raises(convert.ArgumentError, match=expected):
            convert.ofrecord_to_tfrecord(parts, paths)


@pytest.mark.parametrize("force", [False, True])
def test_source_is_never_replaced_nor_removed(force, source, tmp_path):
    folder = tmp_path / "spark"
    folder.mkdir()
    named = [path.rename(folder / f"part-{i:05d}") for i, path in enumerate(source)]
    before = [path.read_bytes() for path in named]
    for num_parts in (1, 2):
        with pytest.raises(convert.ArgumentError, match=r"'part-0000\d'.* to read and to replace"):
            convert.tfrecord_to_ofrecord(named, folder, num_parts=num_parts, force=force)
    assert [path.read_bytes() for path in named] == before


def test_conversion_to_fewer_parts_removes_the_other_parts_only_when_forced(source, tmp_path):
    folder = tmp_path / "of"
    old = convert.tfrecord_to_ofrecord(source, folder, num_parts=4)
    for name in ("part-00002.txt", "notes", "labels.txt", "part-x"):
        (folder / name).write_text("mine")
    (folder / "part-00009").mkdir()
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(
        convert.StaleFilesError,
        match=r"got 'part-00002', 'part-00003' \(2 in all\) of another conversion, expected none "
        r"beside 'part-00000' to 'part-00001'\. .*\(--overwrite\)",
    ):
        convert.tfrecord_to_ofrecord(source, folder, num_parts=2)
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    new = convert.tfrecord_to_ofrecord(source, folder, num_parts=2, force=True)
    assert new == old[:2]
    mine = ["labels.txt", "notes", "part-00002.txt", "part-00009", "part-x"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["part-00000", "part-00001", *mine]
    )
    (folder / "part-00009").rmdir()
    back = convert.ofrecord_to_tfrecord(
        find_parts(folder, suffix_length=5), [tmp_path / "back.tfrecord"]
    )
    assert read_records(back) == read_records(source)


def test_parts_of_another_suffix_length_are_of_the_same_set(source, tmp_path):
    convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2, part_name_suffix_length=-1)
    with pytest.raises(convert.StaleFilesError, match="'part-0', 'part-1'"):
        convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=3)
    parts = convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=3, force=True)
    assert [str(path) for path in parts] == find_parts(tmp_path / "of", suffix_length=5)


def test_failed_conversion_keeps_what_was_there(source, tmp_path):
    convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=3)
    before = {path: path.read_bytes() for path in (tmp_path / "of").iterdir()}

    def interrupt(name: str, num_bytes: int, total_bytes: int | None) -> None:
        assert (name, num_bytes) == ("of", total_bytes)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert.tfrecord_to_ofrecord(
            source, tmp_path / "of", num_parts=2, force=True, progress=interrupt
        )
    assert {path: path.read_bytes() for path in (tmp_path / "of").iterdir()} == before


def test_rename_to_one_name_is_an_error_and_an_unknown_name_is_named(source, tmp_path, caplog):
    with pytest.raises(
        convert.ArgumentError, match="rename got the name 'big' for 'big' and 'scores', expected"
    ):
        convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=1, rename={"scores": "big"})
    convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=1, rename={"score": "x"})
    assert caplog.messages == ["rename got 'score', which no record has. Did you mean 'scores'?"]


def test_files_that_are_there_stay_unless_forced(source, tmp_path, caplog):
    (tmp_path / "of").mkdir()
    parts = convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2)
    back = convert.ofrecord_to_tfrecord(parts, [tmp_path / "back"])
    whole = back[0].read_bytes()
    for path in (*parts, *back):
        path.write_bytes(b"")
    assert convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2) == parts
    assert convert.ofrecord_to_tfrecord(parts, back) == back
    assert [path.stat().st_size for path in (*parts, *back)] == [0, 0, 0]
    assert len(caplog.messages) == 2
    convert.tfrecord_to_ofrecord(source, tmp_path / "of", num_parts=2, force=True)
    convert.ofrecord_to_tfrecord(parts, back, force=True)
    assert back[0].read_bytes() == whole


def test_lists_of_features_are_refused_and_not_left_out(tmp_path):
    example = build_sequence_example({"label": 1}, {"words": ["two", "steps"]})
    write_records(tmp_path / "a.tfrecord", [example])
    with pytest.raises(RecordError, match=r"got the feature lists 'words', expected none") as info:
        convert.tfrecord_to_ofrecord([tmp_path / "a.tfrecord"], tmp_path / "of", num_parts=1)
    assert str(tmp_path / "a.tfrecord") in str(info.value)
    assert not list((tmp_path / "of").iterdir())
