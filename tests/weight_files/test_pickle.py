"""Pickles that would run code, take memory or never end: nothing of it happens."""

import argparse
import builtins
import io
import os
import pickle
import struct
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest

from penstock._errors import ParameterError
from penstock._weight_files import _pickle, read_weights
from penstock._weight_files._file import WeightFileError
from penstock._weight_files._numpy import PickledDtype
from penstock._weight_files._torch import GLOBALS
from tests.weight_files.torch_files import (
    called,
    floats,
    group,
    mapping,
    name,
    number,
    pickled,
    tar_entries,
    text,
    write_legacy,
    write_tar,
    write_zip,
)

DICT = name("collections", "OrderedDict")


class Runs:
    """Is pickled as a call, which an unpickler makes."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def load(instructions: bytes):
    return _pickle.load(io.BytesIO(instructions), GLOBALS)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("entry", ["state_dict", "nested"])
def test_pickle_that_would_run_a_command_runs_nothing_and_names_it(tmp_path, protocol, entry):
    ran = tmp_path / "ran"
    value = {entry: OrderedDict(weight=Runs(os.system, f"touch {ran}")), "more": [1.5]}
    payload = pickle.dumps(value, protocol)
    for path in (
        write_zip(tmp_path / "hostile.pth", payload, {"0": floats(1, 2)}),
        write_legacy(tmp_path / "hostile.pt", payload, {"0": floats(1, 2)}, 4),
        write_tar(tmp_path / "hostile.tar", payload, tar_entries()),
    ):
        with pytest.raises(ParameterError, match=r"got the (global|pickle instruction) "):
            read_weights(path)
        assert not ran.exists()
    pickle.loads(payload)  # what would have happened
    assert ran.exists()


@pytest.mark.parametrize("value", [
    Runs(builtins.eval, "1 + 1"),
    Runs(builtins.getattr, {}, "clear"),
    Runs(OrderedDict.fromkeys, "ab"),
    os.system,
    Path("file"),
    struct.Struct,
    argparse.Namespace(lr=0.1, output=Path("runs")),
    defaultdict(dict, {"a": {}}),
    {"a"},
    np.float64(0.5),
    np.dtype("float32"),
])  # fmt: skip
@pytest.mark.parametrize("protocol", [2, 4])
def test_global_that_is_not_listed_becomes_a_stand_in(value, protocol):
    if isinstance(value, set) and protocol == 4:
        pytest.skip("sets have instructions of their own there, which no weights need")
    loaded = load(pickle.dumps({"before": 1, "weight": value, "after": 2}, protocol))
    assert (loaded["before"], loaded["after"]) == (1, 2)
    assert type(loaded["weight"]) in (_pickle.StandIn, PickledDtype, dict)


@pytest.mark.parametrize(
    ("module", "attribute"),
    [
        ("torch._utils", "_rebuild_qtensor"),
        ("torch._utils", "_rebuild_tensor_v3"),
        ("torch", "load"),
        ("torch.nn.parameter", "Parameter.__new__"),
        ("collections", "OrderedDict.__reduce__"),
        ("collections", "Counter"),
        ("collections.OrderedDict", ""),
        ("numpy.core.multiarray", "scalar"),
        ("penstock._weight_files._torch", "GLOBALS"),
        ("antigravity", "webbrowser"),
    ],
)
def test_neighbour_of_a_listed_global_is_never_imported(module, attribute):
    direct = pickled(called(name(module, attribute), text("a")) + b"}b")
    on_stack = b"\x80\x04" + text(module) + text(attribute) + b"\x93."
    for instructions in (direct, on_stack):
        value = load(instructions)
        assert type(value) is _pickle.StandIn
        assert value.name == f"{module}.{attribute}"
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "instructions",
    [
        b"(S'touch ran'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch ran'\no.",  # OBJ
        b"\x82\x01.",  # EXT1: a global by number
        b"\x84\x01\x00\x00\x00.",  # EXT4
        b"\x80\x04" + DICT + b")}\x92.",  # NEWOBJ_EX
        b"Pname\n.",  # PERSID
        b"\x80\x05\x97.",  # NEXT_BUFFER
        b"}2.",  # DUP
        b"\x80\x04\x8f.",  # EMPTY_SET
        b"\x80\x05\x96" + (2**62).to_bytes(8, "little") + b".",  # BYTEARRAY8
        b"}0.",  # POP
        b"I1\n.",  # protocol 0
    ],
)
def test_instruction_that_plain_data_does_not_need_is_refused(instructions):
    with pytest.raises(
        WeightFileError, match=r"got the pickle instruction|got a damaged pickle|os.system"
    ):
        load(instructions)


def test_state_never_becomes_an_attribute_or_a_method():
    # `__setstate__` first as a state, then called with the next one: the trick on an object.
    trick = mapping({"__setstate__": DICT, "__class__": DICT})
    value = load(pickled(called(DICT) + trick + b"b" + trick + b"b"))
    assert type(value) is dict
    assert value == {}
    for target in (DICT, name("torch", "FloatStorage"), b"]", group(), text("a"), number(1)):
        with pytest.raises(WeightFileError, match="a state for what has none"):
            load(pickled(target + trick + b"b"))


@pytest.mark.parametrize(
    "instructions",
    [
        called(text("os.system"), text("touch ran")),
        called(name("torch", "FloatStorage"), text("a")),
        DICT + b"]R",
        called(DICT, number(1), number(2)),
        called(DICT, text("ab")),
        called(name("torch", "Size"), number(10**12)),
        called(name("torch._utils", "_rebuild_tensor_v2"), text("ab")),
        called(name("torch._utils", "_rebuild_parameter"), text("ab")),
        group(text("storage"), name("collections", "OrderedDict")) + b"Q",
        text("a") + text("b") + b"a",
        b"}" + text("a") + b"a",
        b"]" + text("a") + text("b") + b"s",
        b"}(" + text("a") + b"u",
        b"t",
        b"h\x05",
        b"ctorch",
        b"\xff",
        b"R",
        b"b",
        b"",
    ],
)
def test_pickle_that_no_pickler_writes_is_refused(instructions):
    with pytest.raises(WeightFileError, match=r"got (a damaged pickle|\S+ with unknown arguments)"):
        load(pickled(instructions))


def test_dict_key_that_takes_ages_to_hash_is_refused():
    nested = b"K\x01" + b"q\x00h\x00\x86" * 60  # a pair of the pair before, sixty times
    with pytest.raises(WeightFileError, match="keys are not strings or numbers"):
        load(pickled(b"}" + nested + text("value") + b"s"))


def test_lengths_and_places_beyond_the_file_take_no_memory():
    assert load(pickled(text("a") + b"r\xff\xff\xff\xff")) == "a"  # stored as number 2**32 - 1
    huge = (2**62).to_bytes(8, "little")
    for instructions in (b"\x8d" + huge, b"\x8e" + huge, b"\x95" + huge, b"\x8b\xff\xff\xff\x7f"):
        with pytest.raises(
            WeightFileError, match=r"got (a damaged pickle|the pickle instruction BINB)"
        ):
            load(b"\x80\x04" + instructions + b".")


def test_plain_data_of_every_kind_is_what_the_unpickler_makes_of_it():
    shared = ["a"]
    value = {
        "numbers": (0, 255, 65535, -1, 2**31, 2**80, 1.5, True, False, None),
        "texts": ["", "ä", "a" * 300],
        "nested": OrderedDict({"x": {}, "y": [[], ()]}),
        "shared": [shared, shared],
        "pairs": {1: (1,), 2.5: (1, 2), False: (1, 2, 3, 4)},
    }
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        loaded = load(pickle.dumps(value, protocol))
        assert loaded == value
        assert loaded["shared"][0] is loaded["shared"][1]


@pytest.mark.parametrize(
    ("constructor", "arguments"),
    [
        (name("builtins", "tuple"), b"](" + b"N" * 10_000 + b"e\x85"),
        (name("torch", "Size"), b"](" + b"N" * 10_000 + b"e\x85"),
        (name("_codecs", "encode"), text("a" * 10_000) + text("latin1") + b"\x86"),
    ],
)
def test_value_that_is_copied_again_and_again_is_refused(constructor, arguments):
    """Each call takes five bytes of the file, and would take ten thousand of the memory."""
    instructions = b"\x80\x02" + constructor + b"q\x00" + arguments + b"q\x01"
    assert load(instructions + b"h\x00h\x01R.")
    with pytest.raises(WeightFileError, match="the same values used again and again"):
        load(instructions + b"(" + b"h\x00h\x01R" * 10 + b"t.")


def test_array_whose_text_is_copied_again_and_again_is_refused():
    """As Python 2 wrote them, the bytes of an array are text, which is encoded for each."""
    make = name("numpy.core.multiarray", "_reconstruct") + b"q\x00)R"
    kind = name("numpy", "dtype") + text("u1") + b"\x85R"
    state = b"(K\x01M\x10\x27\x85" + kind + b"\x89" + text("a" * 10_000) + b"tq\x01"
    assert load(b"\x80\x02" + make + state + b"b.").array.shape == (10_000,)
    again = b"h\x00)Rh\x01b"
    with pytest.raises(WeightFileError, match="the same values used again and again"):
        load(b"\x80\x02(" + make + state + b"b" + again * 10 + b"t.")


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_every_protocol_are_read(protocol, tmp_path):
    """Protocol 2 has no bytes: an array's are text, which is encoded and then its state."""
    arrays = {"zeros": np.zeros([100, 10], "f4"), "bytes": np.arange(256, dtype="u1")}
    path = tmp_path / "a.pdparams"
    path.write_bytes(pickle.dumps(arrays, protocol))
    read = read_weights(path).arrays
    assert all((read[key] == array).all() for key, array in arrays.items())
