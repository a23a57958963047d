"""Thousands of requests that are almost right: each is answered, and none is a failure of ours."""

import asyncio
import json
import logging
import random
import resource
import struct
from typing import Any

import numpy as np

from penstock import serving
from tests.serving.stand_in import Answer, Doubler, ask, binary_request

KINDS = ("array", "image", "text", "sequence")
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3.5, 2**31, 2**63, 10**40, float("nan"), float("inf")),
    *("", "x", "y", "FP32", "BYTES", "UINT8", "BF16", "abc", "YWJj", "\ud800", "\0", "a" * 300),
    *([], {}, [[]], [None], ["abc"], [1, 2, 3], {"name": "x"}, {"binary_data_size": 4}),
    *([[1, 2, 3]], [[1], [2, 3]], [2**70], [[[[[1]]]]], {"a": {"b": []}}),
]
HEADERS = ("inference_header_content_length", "content_length", "content_encoding", "authorization")
WORDS = [
    *("v2", "models", "array", "image", "text", "sequence", "infer", "ready", "versions", "1"),
    *("repository", "index", "load", "health", "live", "metrics", "..", "%00", "\0", "é", ""),
    "a" * 200,
]
METHODS = ("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "", "get")


def make_request(kind: str, random: random.Random) -> dict[str, Any]:
    """Return a request that is right, with its tensor in JSON or behind it."""
    if kind in ("image", "text"):
        if random.random() < 0.5:
            return binary_request(("x", "BYTES", [1], struct.pack("<I", 3) + b"abc"))
        data = ["YWJj" if kind == "image" else "abc"]
        body = {"name": "x", "shape": [1], "datatype": "BYTES", "data": data}
        return {"body": {"inputs": [body]}}
    shape = (1, 3) if kind == "array" else (1, 2, 3)
    size = 3 if kind == "array" else 6
    if random.random() < 0.5:
        return binary_request(("x", "FP32", shape, bytes(4 * size)))
    outputs = [{"name": "y", "parameters": {"binary_data": True, "classification": 2}}]
    body = {"name": "x", "shape": shape, "datatype": "FP32", "data": [0.5] * size}
    return {"body": {"id": "a", "parameters": {}, "inputs": [body], "outputs": outputs}}


def list_places(value: Any, path: tuple = ()) -> list[tuple]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    inner = value.items() if isinstance(value, dict) else ()
    return [path, *(place for key, item in inner for place in list_places(item, (*path, key)))]


def put(value: Any, path: tuple, other: Any) -> Any:
    if not path:
        return other
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = put(value[path[0]], path[1:], other)
    return made


def mutate(request: dict[str, Any], random: random.Random) -> dict[str, Any]:
    """Return a request with something else in its JSON, its bytes or its headers."""
    made, way = dict(request), random.randrange(4)
    if way == 0 and not isinstance(made["body"], bytes):
        for _ in range(random.choice((1, 1, 2, 4))):
            made["body"] = put(
                made["body"], random.choice(list_places(made["body"])), random.choice(ODD)
            )
    elif way < 3:
        body = made["body"]
        body = bytearray(body if isinstance(body, bytes) else json.dumps(body).encode())
        for _ in range(random.choice((1, 2, 8))):
            where = random.randrange(len(body) + 1)
            body[where : where + random.randrange(4)] = random.randbytes(random.randrange(4))
        made["body"] = bytes(body)
    else:
        numbers = ("-1", "0", "1", "50", "99999", "9" * 30, "²", "a", "")
        made[random.choice(HEADERS)] = random.choice(numbers)
    return made


def check(answer: Answer, request: object) -> None:
    assert answer.status == 200 or 400 <= answer.status < 500, (answer, request)
    if answer.status >= 400:
        assert len(answer.error) < 2000, request
    elif "inference-header-content-length" in answer.headers:
        json.loads(answer.body[: int(answer.headers["inference-header-content-length"])])


def make_app() -> serving.App:
    models: dict[str, Any] = {kind: Doubler(kind=kind) for kind in KINDS}
    models["sequence"].infer_columns = lambda feed: Doubler().infer_columns(
        {"x": sum_words(feed["x"])}
    )
    return serving.App(models, limits=serving.Limits(body_bytes=10_000, receive_secs=5))


def sum_words(sequences):
    return np.array([sequence.sum(axis=0) for sequence in sequences], np.float32)


async def send_many(app: serving.App, count: int, seed: int) -> dict[int, int]:
    """Send requests that are almost right; return how often each status was the answer."""
    chance, counts = random.Random(seed), {}
    for _ in range(count):
        kind = chance.choice(KINDS)
        request = mutate(make_request(kind, chance), chance)
        path, method = f"/v2/models/{kind}/infer", "POST"
        if chance.random() < 0.1:
            path = "/".join(["", *chance.choices(WORDS, k=chance.randrange(6))])
            method = chance.choice(METHODS)
        answer = await ask(app, method, path, **request)
        if method == "HEAD" or path in ("/", "/metrics"):
            assert answer.status < 500
        else:
            check(answer, (method, path, request))
        counts[answer.status] = counts.get(answer.status, 0) + 1
    return counts


def test_models_answer_what_the_mutations_start_from():
    async def run():
        app, chance = make_app(), random.Random(0)
        for kind in KINDS:
            for _ in range(8):
                answer = await ask(
                    app, "POST", f"/v2/models/{kind}/infer", **make_request(kind, chance)
                )
                assert answer.status == 200, answer
        await app.close()

    asyncio.run(run())


def test_requests_that_are_almost_right_never_fail_and_leave_nothing(caplog):
    count = 4_000

    async def run():
        app = make_app()
        counts = await send_many(app, count // 4, seed=1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for seed in (2, 3, 4):
            for status, n in (await send_many(app, count // 4, seed)).items():
                counts[status] = counts.get(status, 0) + n
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert app._num_bytes == 0
        # In KiB. The size of a few batches, however many requests there were.
        assert after - before < 20_000
        await app.close()
        return counts

    with caplog.at_level(logging.ERROR, "penstock.serving"):
        counts = asyncio.run(run())
    assert not caplog.records
    # They reach what they are for: some are right after all, and the paths are tried.
    assert counts[200] > count / 50
    assert counts[400] > count / 4
    assert counts[404] > count / 100
