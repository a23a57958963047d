"""100,000 damaged files, a slice of them in `make test`: right records or an error of ours."""

import pytest

from penstock.readers.records import RecordError, build_example, parse_example
from tests.readers.records.mutated_files import SPEC, encoded_image
from tests.readers.records.mutations import in_parts, on_linux, run_in_a_child

# Decoding may take this much: a damaged header may claim 2**26 pixels, three bytes each.
MAX_GROWTH_BYTES = 256 << 20


@on_linux
@in_parts(100_000, num_quick=250)
def test_mutated_files_give_right_records_in_order_or_our_error(cases, tmp_path):
    program = f"print(files.grow({cases!r}, Path(sys.argv[1])))"
    (growth_bytes,) = run_in_a_child(program, "tests.readers.records.mutated_files", tmp_path)
    assert growth_bytes < MAX_GROWTH_BYTES


def test_hostile_image_header_is_refused_before_anything_is_allocated():
    png = encoded_image(0)
    claims = png[:16] + (60_000).to_bytes(4, "big") * 2 + png[24:]
    payload = build_example({"image/encoded": claims, "image/class/label": 1})
    with pytest.raises(RecordError, match="60000 x 60000 pixels, expected a JPEG, PNG,"):
        parse_example(payload, SPEC)
