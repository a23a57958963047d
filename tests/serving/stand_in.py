"""A model that does what an `InferenceModel` does, and shows what it was asked; and a client."""

import asyncio
import json
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from penstock import FeedError, _model_file


def make_field(
    name: str, shape: tuple[int, ...], dtype: str = "float32", kind: str = "array", rows: int = 1
) -> _model_file.Field:
    return _model_file.Field(name=name, shape=shape, dtype=dtype, kind=kind, rows=rows)


class Doubler:
    """Answers with twice its input, and its rows' mean; an input with nan is refused.

    `gate` is open unless a test closes it: then the model waits for it.
    """

    name = "doubler"
    class_names: tuple[str, ...] | None = ("cat", "dog", "cow")

    def __init__(self, *, version: str = "1", factor: float = 2.0, kind: str = "array") -> None:
        self.version, self.factor = version, factor
        self.manifest = SimpleNamespace(takes_padding=True)
        self.inputs = (make_field("x", (3,), kind=kind),)
        self.outputs = (make_field("y", (3,)), make_field("mean", ()))
        self.batch_secs: dict[int, float] = {}
        self.batches: list[int] = []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def infer_columns(self, feed: Any) -> dict[str, np.ndarray]:
        x = feed["x"]
        self.entered.set()
        assert self.gate.wait(30)
        if x.dtype != np.float32 or x.shape[1:] != (3,) or np.isnan(x).any():
            raise FeedError("x got nan, expected numbers.")
        self.batches.append(len(x))
        return {"y": self.factor * x, "mean": x.mean(axis=1)}

    def prepare(self, examples: Sequence[bytes | str]) -> dict[str, np.ndarray]:
        kind = bytes if self.inputs[0].kind == "image" else str
        assert all(isinstance(example, kind) for example in examples)
        if any(len(example) != 3 for example in examples):
            raise FeedError("x got an example of another length, expected 3.")
        encoded = [value if isinstance(value, bytes) else value.encode() for value in examples]
        return {"x": np.array([[*row[:3]] for row in encoded], np.float32)}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        (only,) = self.json.items()
        assert only[0] == "error"
        return only[1]


async def ask(
    app: Any,
    method: str,
    path: str,
    body: Any = b"",
    *,
    gone: asyncio.Event | None = None,
    chunks: Sequence[bytes] | None = None,
    **headers: str,
) -> Answer:
    """Send a request to an ASGI application; `gone` is set when its client goes away."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    waiting = [body] if chunks is None else list(chunks)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if waiting:
            chunk = waiting.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(waiting)}
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [(k.replace("_", "-").encode(), v.encode("latin-1")) for k, v in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": pairs, "client": None}
    await app(scope, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    start, end = sent
    own = {k.decode(): v.decode() for k, v in start["headers"]}
    assert int(own["content-length"]) == len(end["body"])
    return Answer(start["status"], own, end["body"])


def tensor(array: Any, datatype: str = "FP32", name: str = "x") -> dict[str, Any]:
    array = np.asarray(array)
    data = array.ravel().tolist()
    return {"name": name, "shape": [*array.shape], "datatype": datatype, "data": data}


def binary_request(*arrays: tuple[str, str, Sequence[int], bytes], **more: Any) -> dict[str, Any]:
    """Return the arguments of a request with tensors behind its JSON."""
    inputs = [
        {"name": n, "datatype": d, "shape": [*s], "parameters": {"binary_data_size": len(b)}}
        for n, d, s, b in arrays
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    body = head + b"".join(b for *_, b in arrays)
    return {"body": body, "inference_header_content_length": str(len(head))}
