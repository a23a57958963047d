"""`penstock.readers` offers the same names to a type checker, to `dir` and to a program."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import readers

TREE = ast.parse(Path(readers.__file__).read_text(encoding="utf-8"))


def names_under_type_checking() -> set[str]:
    """Return what `if TYPE_CHECKING:` imports."""
    (block,) = (node for node in TREE.body if isinstance(node, ast.If))
    return {alias.asname for node in block.body for alias in node.names}


def test_names_loaded_on_first_use_load_and_are_those_a_type_checker_sees():
    assert names_under_type_checking() == set(readers._MODULE_OF) <= set(dir(readers))
    for name in readers._MODULE_OF:
        assert getattr(readers, name) is vars(readers)[name]


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'penstock\.readers' has no attribute 'tfrecords'"):
        _ = readers.tfrecords


def test_importing_the_package_leaves_what_is_loaded_on_first_use_alone():
    program = "import sys, penstock.readers; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    unwanted = {"google_crc32c", "google.protobuf", "tarfile", "cv2", "sklearn", "jax"}
    assert not loaded & unwanted
    assert not loaded & {f"penstock.readers.{module}" for module in readers._MODULES}
