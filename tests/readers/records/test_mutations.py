"""100,000 damaged files, a slice of them in `make test`: right records or an error of ours."""

import os
from pathlib import Path

import pytest

from penstock.readers.records import RecordError, build_example, parse_example
from tests.readers.records.mutated_files import (
    BLOBS,
    EXAMPLES,
    FIRST_LABEL,
    NUM_RECORDS,
    OFRECORDS,
    SAMPLES,
    SPEC,
    Damaged,
    check_samples,
    damaged,
    encoded_image,
    run_cases,
)
from tests.readers.records.mutations import run_in_a_child

NUM_CASES = 100_000
NUM_PARTS = 10
SLICE = 250
# Decoding may take this much: a damaged header may claim 2**26 pixels, three bytes each.
MAX_GROWTH_BYTES = 256 << 20
on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc")


def growth_of_cases(cases: range, folder: Path) -> int:
    return grow(f"print(files.grow({cases!r}, Path(sys.argv[1])))", folder)


def grow(program: str, folder: Path) -> int:
    (growth_bytes,) = run_in_a_child(program, "tests.readers.records.mutated_files", folder)
    return growth_bytes


def test_undamaged_records_give_the_samples():
    sample = SAMPLES["TFRecord"][3]
    assert sample["image"].shape == (8, 8, 3)
    assert (int(sample["label"]), sample["ids"].tolist()) == (FIRST_LABEL + 3, [3, -3])
    assert SAMPLES["TFRecord"][2]["image"].reshape(-1).tolist() == list(range(20, 212))
    blobs = SAMPLES["OFRecord"][2]
    assert blobs["image"][0, 0].tolist() == [22.0, 21.0, 20.0]  # BGR
    assert blobs["pixels"].tolist() == [255, 97, 98, 99, 0, 0]
    assert blobs["words"].tolist() == [[97, 98, 0, 0], [99, 0, 0, 0]]
    assert (int(blobs["label"]), list(blobs)) == (FIRST_LABEL + 2, list(BLOBS))


@on_linux
def test_mutated_files_give_right_records_in_order_or_our_error(tmp_path: Path):
    assert growth_of_cases(range(SLICE), tmp_path) < MAX_GROWTH_BYTES


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_mutated_files_give_right_records_in_order_or_our_error_in_bulk(part: int, tmp_path: Path):
    size = NUM_CASES // NUM_PARTS
    assert growth_of_cases(range(part * size, (part + 1) * size), tmp_path) < MAX_GROWTH_BYTES


@on_linux
@pytest.mark.slow
def test_memory_that_is_taken_and_not_touched_is_seen(tmp_path: Path):
    program = (
        "before = files.peak_bytes(); files.np.empty(1 << 30, 'u1'); "
        "print(files.peak_bytes() - before)"
    )
    assert grow(program, tmp_path) > MAX_GROWTH_BYTES


@pytest.mark.parametrize(
    "numbers",
    [[1, 0], [0, 0, 1], [1, 2], [0], []],
    ids=["swapped", "twice", "first-missing", "second-missing", "all-missing"],
)
def test_records_out_of_order_twice_or_missing_are_seen(numbers: list[int]):
    file = Damaged(kind=EXAMPLES, data=b"", sure=(0, 1))
    samples = SAMPLES["TFRecord"]
    check_samples(file, [samples[0], samples[1], samples[3]])
    with pytest.raises(AssertionError):
        check_samples(file, [samples[number] for number in numbers])


def test_sample_of_damaged_bytes_is_seen():
    file = Damaged(kind=EXAMPLES, data=b"", sure=(0,))
    samples = SAMPLES["TFRecord"]
    other = {**samples[1], "weights": samples[1]["weights"] + 1}
    with pytest.raises(AssertionError):
        check_samples(file, [samples[0], other])


@pytest.mark.parametrize("numbers", [[0, 1, 3, 4], [0, 1, 2, 3, 4], [0, 1, 3, 4, 5, 5]])
def test_record_lost_beside_the_damaged_one_is_seen(numbers: list[int]):
    file = Damaged(kind=OFRECORDS, data=b"", sure=(0, 1), broken=2)
    samples = SAMPLES["OFRecord"]
    check_samples(file, [samples[number] for number in (0, 1, 3, 4, 5)])
    with pytest.raises(AssertionError):
        check_samples(file, [samples[number] for number in numbers])


def test_damaged_files_are_of_every_sort():
    files = [damaged(case) for case in range(400)]
    sorts = {(file.kind.framing.name, file.broken is None, len(file.sure)) for file in files}
    assert len(sorts) == 4 * NUM_RECORDS  # damage in the first record to the last, of each sort
    assert len({file.data for file in files}) > 390


def test_hostile_image_header_is_refused_before_anything_is_allocated():
    png = encoded_image(0)
    claims = png[:16] + (60_000).to_bytes(4, "big") * 2 + png[24:]
    payload = build_example({"image/encoded": claims, "image/class/label": 1})
    with pytest.raises(RecordError, match="60000 x 60000 pixels, expected a JPEG, PNG,"):
        parse_example(payload, SPEC)


def test_no_file_stays_open(tmp_path: Path):
    before = len(os.listdir("/proc/self/fd"))
    run_cases(range(60), tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
