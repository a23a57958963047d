"""100,000 damaged files, a slice of them in `make test`: right records or an error of ours."""

from pathlib import Path

import pytest

from penstock.readers.records import RecordError, build_example, parse_example
from tests.readers.records.mutated_files import SPEC, encoded_image
from tests.readers.records.mutations import run_in_a_child

NUM_CASES = 100_000
NUM_PARTS = 10
SLICE = 250
# Decoding may take this much: a damaged header may claim 2**26 pixels, three bytes each.
MAX_GROWTH_BYTES = 256 << 20
on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc")


def growth_of_cases(cases: range, folder: Path) -> int:
    program = f"print(files.grow({cases!r}, Path(sys.argv[1])))"
    (growth_bytes,) = run_in_a_child(program, "tests.readers.records.mutated_files", folder)
    return growth_bytes


@on_linux
def test_mutated_files_give_right_records_in_order_or_our_error(tmp_path: Path):
    assert growth_of_cases(range(SLICE), tmp_path) < MAX_GROWTH_BYTES


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_mutated_files_give_right_records_in_order_or_our_error_in_bulk(part: int, tmp_path: Path):
    size = NUM_CASES // NUM_PARTS
    assert growth_of_cases(range(part * size, (part + 1) * size), tmp_path) < MAX_GROWTH_BYTES


def test_hostile_image_header_is_refused_before_anything_is_allocated():
    png = encoded_image(0)
    claims = png[:16] + (60_000).to_bytes(4, "big") * 2 + png[24:]
    payload = build_example({"image/encoded": claims, "image/class/label": 1})
    with pytest.raises(RecordError, match="60000 x 60000 pixels, expected a JPEG, PNG,"):
        parse_example(payload, SPEC)
