"""Requests and answers of the V2 Open Inference Protocol: JSON, and tensors as bytes behind it.

https://github.com/kserve/open-inference-protocol, with binary tensors and classification as Triton
has them.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._errors import listed, nearest

if TYPE_CHECKING:
    from penstock._model_file import Field
    from penstock.inference_model import HostModel

_INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DATATYPES = {"bool": "BOOL", **{name: name.upper() for name in sorted(_INTEGERS)}}
_DATATYPES |= {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}
_DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}
# The numbers of JSON that arrays of a kind are made of. A V is a bfloat16.
_NUMBERS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "V": "iuf"}
# Of these the host makes arrays itself.
_PREPARED = ("image", "text")
Feed = Mapping[str, np.ndarray | list[Any]]


class RequestError(ValueError):
    """A request that is answered with a status and with what is wrong."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


def refuse(
    thing: str, got: object, expected: str, why: str = "", status: int = 400
) -> RequestError:
    """Return the error of a request that has `got` where `expected` should be."""
    return RequestError(f"{thing} got {_shorten(got)}, expected {expected}.{why}", status)


def _shorten(value: object) -> str:
    if isinstance(value, bytes):
        value = value[:64].decode("utf-8", "replace")
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    # A number of 5,000 digits has no text.
    if isinstance(value, int) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    text = "nothing" if value is None else repr(value[:64] if isinstance(value, str) else value)
    return text if len(text) < 100 else f"{text[:97]}..."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a client asks of a model; `examples` are images or strings in place of a feed."""

    id: str | None
    feed: Feed
    examples: Sequence[bytes | str]
    outputs: Mapping[str, Mapping[str, Any]]

    @property
    def num_rows(self) -> int:
        return len(self.examples) or len(next(iter(self.feed.values())))


class _Literal(float):
    """NaN or Infinity in JSON, which is meant; 1e400 becomes infinity because no float holds it."""


def load_object(text: bytes) -> dict[str, Any]:
    """Return the object that a text of JSON is; raise `RequestError` where it is none."""
    try:
        document = json.loads(text, parse_constant=_Literal)
    # RecursionError: a million brackets.
    except (ValueError, RecursionError) as error:
        raise refuse("the request", text, "JSON", f" {error}.") from error
    if not isinstance(document, dict):
        raise refuse("the request", document, "an object of JSON")
    return document


def read_request(
    model: HostModel, body: bytes, header_length: str | None, max_rows: int
) -> Request:
    """Return what a body asks of a model; `header_length` of its bytes are JSON."""
    length = len(body)
    if header_length is not None:
        is_number = re.fullmatch("[0-9]{1,15}", header_length) is not None
        if not is_number or int(header_length) > length:
            expected = f"a number up to {length}, the bytes of the body"
            raise refuse("Inference-Header-Content-Length", header_length, expected)
        length = int(header_length)
    document = load_object(body[:length])
    identity, inputs = document.get("id"), document.get("inputs")
    if identity is not None and not isinstance(identity, str):
        raise refuse("id", identity, "a string")
    if not isinstance(inputs, list) or not inputs:
        raise refuse("inputs", inputs, f"a list of tensors: {json.dumps(describe_example(model))}")
    outputs = _read_outputs(model, document)
    binary, feed, examples = memoryview(body)[length:], dict[str, Any](), []
    for tensor in inputs:
        field, shape, datatype, data = _read_head(model, tensor)
        if field.name in feed:
            raise refuse("inputs", field.name, "one tensor for each input")
        if data is None:
            size = _read_parameters(tensor, f"input {field.name!r}").get("binary_data_size")
            if type(size) is not int or not 0 <= size <= len(binary):
                why = " A tensor has data, or bytes behind the JSON."
                expected = f"at most the {len(binary)} bytes that are there"
                raise refuse(f"binary_data_size of {field.name!r}", size, expected, why)
            data, binary = binary[:size], binary[size:]
        if datatype == "BYTES":
            examples, feed[field.name] = _read_examples(field, shape, data), np.empty(0)
        else:
            feed[field.name] = _fit(field, _read_array(field, shape, datatype, data))
    if len(binary):
        raise refuse("the body", len(binary), "no more bytes than binary_data_size says")
    if examples and len(feed) > 1:
        raise refuse("inputs", listed(feed), "the one of BYTES alone")
    _check_rows(model, feed, examples, max_rows)
    return Request(id=identity, feed={} if examples else feed, examples=examples, outputs=outputs)


def _read_parameters(owner: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = owner.get("parameters", {})
    if not isinstance(parameters, dict):
        raise refuse(f"the parameters of {what}", parameters, "an object")
    return parameters


def _read_outputs(model: HostModel, document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of each output that is wanted: all of them where none is named."""
    is_binary = _read_parameters(document, "the request").get("binary_data_output", False)
    fields = {field.name: field for field in model.outputs}
    wanted = document.get("outputs") or [{"name": name} for name in fields]
    if not isinstance(wanted, list) or not all(isinstance(entry, dict) for entry in wanted):
        raise refuse("outputs", wanted, "a list of objects that have a name")
    outputs = {}
    for entry in wanted:
        name = _find_name("outputs", entry.get("name"), fields)
        outputs[name] = {"binary_data": is_binary, **_read_parameters(entry, f"output {name!r}")}
        count = outputs[name].get("classification", 0)
        field = fields[name]
        has_scores = field.rows and len(field.shape) == 1 and not field.lod_level
        if type(count) is not int or count < 0 or (count and not has_scores):
            raise refuse("classification", count, "a number of classes, of an output with scores")
    return outputs


def _find_name(what: str, name: object, fields: Mapping[str, object]) -> str:
    if not isinstance(name, str) or name not in fields:
        hint = nearest(str(name)[:64], fields)
        raise refuse(f"{what}: name", name, f"one of {listed(fields)}", hint)
    return name


def _read_head(model: HostModel, tensor: Any) -> tuple[Field, tuple[int, ...], str, Any]:
    """Return input, shape, datatype and data of a tensor; None where these are behind the JSON."""
    if not isinstance(tensor, dict):
        raise refuse("inputs", tensor, "objects")
    fields = {field.name: field for field in model.inputs}
    field = fields[_find_name("inputs", tensor.get("name"), fields)]
    what, shape, data = f"input {field.name!r}", tensor.get("shape"), tensor.get("data")
    # What numpy holds: 64 axes, and of a size that would fit without those of 0.
    if (
        not isinstance(shape, list)
        or len(shape) > 64
        or not all(type(n) is int and n >= 0 for n in shape)
        or math.prod(n or 1 for n in shape) >= 2**40
    ):
        raise refuse(f"shape of {what}", shape, "a list of sizes, the batch's first")
    datatype, own = tensor.get("datatype"), _DATATYPES[field.dtype]
    expected = f"{own} or BYTES" if field.kind in _PREPARED else own
    if not isinstance(datatype, str) or datatype not in (*_DTYPES, "BYTES"):
        raise refuse(f"datatype of {what}", datatype, expected)
    if datatype == "BYTES" and field.kind not in _PREPARED:
        raise refuse(f"datatype of {what}", datatype, own, " It is no image and no text.")
    if data is not None and not isinstance(data, list):
        raise refuse(f"data of {what}", data, "a list")
    return field, tuple(shape), datatype, data


def _read_array(field: Field, shape: tuple[int, ...], datatype: str, data: Any) -> np.ndarray:
    """Return the array that bytes or numbers of JSON are, flat or nested."""
    dtype, size = np.dtype(_DTYPES[datatype]), math.prod(shape)
    what, expected = f"data of input {field.name!r}", f"{size} of {datatype} for {[*shape]}"
    if isinstance(data, memoryview):
        if len(data) != size * dtype.itemsize:
            raise refuse(what, f"{len(data)} bytes", f"{size * dtype.itemsize}, {expected}")
        return np.frombuffer(data, dtype).reshape(shape)
    try:
        array = np.array(data)  # a ValueError where lists are ragged
        if array.size and array.dtype.kind not in _NUMBERS[dtype.kind]:
            raise ValueError(f"Some are of the type {array.dtype}")
        if array.size != size or (array.ndim > 1 and array.shape != shape):
            raise ValueError(f"They have the shape {[*array.shape]}")
        infinite = np.isinf(array)
        if infinite.any() and any(type(n) is float for n in np.array(data, object)[infinite]):
            raise ValueError("Some are too large")
        with np.errstate(over="raise"):
            made = array.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(made, array):
            raise ValueError("Some are too large")
    except (ValueError, TypeError, OverflowError, FloatingPointError, RecursionError) as error:
        raise refuse(what, data, expected, f" {str(error)[:200]}.") from error
    return made.reshape(shape)


def _read_examples(field: Field, shape: tuple[int, ...], data: Any) -> list[bytes | str]:
    """Return the encoded images or the strings that are the elements of a tensor."""
    what, is_image = f"data of input {field.name!r}", field.kind == "image"
    expected = f"{math.prod(shape)} {'images' if is_image else 'texts'} of the shape [B] or [B, 1]"
    examples = _split(data) if isinstance(data, memoryview) else data
    examples = [item[0] if isinstance(item, list) and len(item) == 1 else item for item in examples]
    if len(examples) != math.prod(shape) or shape[1:] not in ((), (1,)) or not shape:
        raise refuse(what, f"{len(examples)} elements for {[*shape]}", expected)
    try:
        return [_read_example(example, is_image) for example in examples]
    except (ValueError, TypeError, AttributeError) as error:
        form = "base64, or bytes behind the JSON" if is_image else "UTF-8"
        raise refuse(what, "other data", f"{expected}, as {form}", f" {error}.") from error


def _read_example(example: Any, is_image: bool) -> bytes | str:
    # Never a string for an image: the model would read a file of that name.
    if is_image:
        is_read = isinstance(example, bytes)
        return example if is_read else base64.b64decode(example, validate=True)
    text = example.decode() if isinstance(example, bytes) else example
    text.encode()  # JSON can hold halves of characters
    return text


def _split(data: memoryview) -> list[bytes]:
    """Return the elements of binary BYTES: each stands behind its length."""
    elements, start = [], 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        if end > len(data):
            expected = f"{end - start}, by the length before them"
            raise refuse("binary BYTES", f"{len(data) - start} bytes", expected)
        elements.append(bytes(data[start + 4 : end]))
        start = end
    return elements


def _list_sizes(field: Field) -> list[int]:
    # A value of the whole batch has no axis of it; sequences have one or two before a word's.
    return [-1] * (min(field.rows, 1) + field.lod_level) + [*field.shape]


def _fit(field: Field, array: np.ndarray) -> np.ndarray | list[Any]:
    """Return an array as a model takes it, where no number changes by that."""
    own = _list_sizes(field)
    sizes = zip(array.shape, own, strict=False)
    if array.ndim != len(own) or any(size != wanted >= 0 for size, wanted in sizes):
        raise refuse(f"shape of input {field.name!r}", str([*array.shape]), f"{own}, -1 any size")
    if not np.can_cast(array.dtype, np.dtype(field.dtype), "safe"):
        why = " Not every number of the one is a number of the other."
        array_type = _DATATYPES[array.dtype.name]
        raise refuse(f"datatype of input {field.name!r}", array_type, _DATATYPES[field.dtype], why)
    array = array.astype(np.dtype(field.dtype), copy=False)
    level = field.lod_level
    return array if not level else [*array] if level == 1 else [[*example] for example in array]


def _check_rows(model: HostModel, feed: Feed, examples: Sequence[object], most: int) -> None:
    missing = [field.name for field in model.inputs if field.name not in feed]
    if missing and not examples:
        raise refuse("inputs", listed(feed), f"{listed(missing)} too")
    rows = {len(array) for array in feed.values()} if not examples else {len(examples)}
    if len(rows) > 1 or not 1 <= max(rows) <= most:
        expected = f"one size for all inputs, 1 to {most}"
        raise refuse("the batch", ", ".join(map(str, sorted(rows))), expected)


def check_lengths(feed: Feed, most: int) -> None:
    """Raise where a sequence of a feed has more words than a server takes."""
    for name, column in feed.items():
        # A nested one is a list of sequences itself.
        lengths = [
            max(len(example), *map(len, example)) if isinstance(example, list) else len(example)
            for example in (column if isinstance(column, list) else ())
        ]
        if max(lengths, default=0) > most:
            raise refuse(f"input {name!r}", f"{max(lengths)} words", f"{most} at most")


def describe_example(model: HostModel) -> dict[str, Any]:
    field = model.inputs[0]
    if field.kind in _PREPARED:
        data = ["base64 of a file" if field.kind == "image" else "a text"]
        return {"name": field.name, "shape": [1], "datatype": "BYTES", "data": data}
    shape = [max(size, 1) for size in _list_sizes(field)]
    head = {"name": field.name, "shape": shape, "datatype": _DATATYPES[field.dtype]}
    return {**head, "data": ["..."]}


def describe_model(name: str, model: HostModel, max_rows: int) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "versions": [model.version], "platform": "penstock"}
    described |= {
        side: [
            {
                "name": field.name,
                "datatype": _DATATYPES[field.dtype],
                "shape": _list_sizes(field),
                "parameters": {"kind": field.kind},
            }
            for field in fields
        ]
        for side, fields in (("inputs", model.inputs), ("outputs", model.outputs))
    }
    names = list(model.class_names or ())
    return {**described, "parameters": {"max_batch_size": max_rows, "class_names": names}}


def write_answer(
    model: HostModel, name: str, request: Request, columns: Mapping[str, np.ndarray]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and how many of its bytes are JSON where tensors follow it."""
    outputs, chunks = [], []
    for output, parameters in request.outputs.items():
        array, count = columns[output], parameters.get("classification", 0)
        if count:
            datatype, array = "BYTES", _classify(array, count, model.class_names)
        else:
            datatype = _DATATYPES[array.dtype.name]
        head: dict[str, Any] = {"name": output, "datatype": datatype, "shape": [*array.shape]}
        if parameters.get("binary_data"):
            if count:
                encoded = [text.encode() for text in array.ravel()]
                chunks.append(b"".join(len(e).to_bytes(4, "little") + e for e in encoded))
            else:
                chunks.append(np.ascontiguousarray(array).tobytes())
            head["parameters"] = {"binary_data_size": len(chunks[-1])}
        else:
            # A bfloat16 is no number to JSON.
            plain = array.astype(np.float32) if array.dtype.kind == "V" else array
            head["data"] = plain.ravel().tolist()
        outputs.append(head)
    answer = {"model_name": name, "model_version": model.version, "outputs": outputs}
    text = dump(answer if request.id is None else {**answer, "id": request.id})
    return b"".join([text, *chunks]), len(text) if chunks else None


def _classify(scores: np.ndarray, count: int, names: Sequence[str] | None) -> np.ndarray:
    """Return `score:index:class` of the best of `[B, C]` scores, as an array `[B, count]`.

    >>> _classify(np.array([[16777216, 16777217]], np.int32), 1, ["cat", "dog"]).tolist()
    [['16777217:1:dog']]
    """
    best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, :count]
    rows = [
        [f"{row[n]!s}:{n}{f':{names[n]}' if names and n < len(names) else ''}" for n in order]
        for row, order in zip(scores, best, strict=True)
    ]
    return np.array(rows, object).reshape(best.shape)


def dump(document: object) -> bytes:
    """Return a document as JSON; what is no number there, such as nan, is null."""
    try:
        return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        finite = json.loads(json.dumps(document), parse_constant=lambda _: None)
        return json.dumps(finite, separators=(",", ":")).encode()
