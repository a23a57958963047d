"""Batches, limits, reloads, tokens, metrics and the log of a server, in one process."""

import asyncio
import base64
import hashlib
import json
import logging
import re
import sys
import threading
from unittest import mock

import numpy as np
import pytest

from penstock import FeedError, serving
from penstock.serving import _tensors
from tests.held import threads
from tests.serving.stand_in import Doubler, ask, binary_request, tensor

INFER = "/v2/models/m/infer"
TEXT = {"inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["abc"]}]}


def row(*numbers) -> dict:
    return {"inputs": [tensor([numbers])]}


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Blocked:
    """A server whose model is at work on a first request, until `release`."""

    def __init__(self, model=None, **options) -> None:
        self.model = model or Doubler()
        options = {"limits": serving.Limits(batch_rows=8, batches=1), **options}
        self.app = serving.App({"m": self.model}, **options)
        self.tasks: list[asyncio.Task] = []

    async def __aenter__(self):
        self.model.gate.clear()
        # On a busy machine a short limit ends a request before it is taken out of the queue.
        while not self.model.entered.is_set():
            first = self.send(row(0, 0, 0))
            await until(lambda: self.model.entered.is_set() or first.done())  # noqa: B023
        return self

    def send(self, body, path=INFER, **options) -> asyncio.Task:
        """Send a request that waits; return what will be its answer."""
        self.tasks.append(asyncio.ensure_future(ask(self.app, "POST", path, body, **options)))
        return self.tasks[-1]

    async def queued(self, count) -> None:
        await until(lambda: len(self.app._batchers["m"]._jobs) == count)

    async def __aexit__(self, *_):
        self.model.gate.set()
        await asyncio.gather(*self.tasks)
        await self.app.close()


def run(test):
    def in_loop():
        async def limited():
            async with asyncio.timeout(60):
                await test()

        asyncio.run(limited())

    in_loop.__name__ = test.__name__
    return in_loop


@run
async def test_requests_that_came_while_a_batch_ran_are_the_next():
    async with Blocked() as server:
        answers = [server.send(row(n, n, n)) for n in range(1, 11)]
        await server.queued(10)
    for n, answer in enumerate(answers, 1):
        assert answer.result().json["outputs"][0]["data"] == [2 * n] * 3
    # Eight rows are the most that it takes.
    assert server.model.batches == [1, 8, 2]


@run
async def test_each_request_gets_its_own_rows():
    sizes = (3, 1, 4, 2)
    async with Blocked() as server:
        arrays = [np.random.default_rng(n).normal(size=(n, 3)).astype("f") for n in sizes]
        answers = [
            server.send(**binary_request(("x", "FP32", x.shape, x.tobytes()))) for x in arrays
        ]
        await server.queued(4)
    for x, answer in zip(arrays, answers, strict=True):
        y, mean = answer.result().json["outputs"]
        assert np.array(y["data"], "f").tobytes() == (2 * x).tobytes()
        assert np.array(mean["data"], "f").tobytes() == x.mean(axis=1).tobytes()
    # The oldest first, and with it what fits beside it.
    assert server.model.batches == [1, 8, 2]


@pytest.mark.parametrize(
    ("seconds", "batches"),
    [
        ({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, [1, 7]),  # padding costs nothing
        (
            {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0},
            [1, 4, 2, 1],
        ),  # a row of padding costs as much as another
        ({1: 3.0, 2: 4.0, 4: 20.0, 8: 40.0}, [1, 2, 2, 2, 1]),  # large batches are slow
        ({1: 1.0, 2: 1.9, 4: 4.0, 8: 7.1}, [1, 7]),  # no more than noise
    ],
)
def test_batch_is_as_large_as_is_fastest(seconds, batches):
    @run
    async def test():
        model = Doubler()
        model.batch_secs.update(seconds)
        async with Blocked(model) as server:
            for n in range(7):
                server.send(row(n, n, n))
            await server.queued(7)
        assert model.batches == batches

    test()


@run
async def test_model_whose_rows_depend_on_each_other_gets_one_request_at_a_time():
    model = Doubler()
    model.manifest.takes_padding = False
    async with Blocked(model) as server:
        for n in range(3):
            server.send(row(n, n, n))
        await server.queued(3)
    assert model.batches == [1, 1, 1, 1]


@run
async def test_two_batches_run_at_a_time():
    model, barrier = Doubler(), threading.Barrier(2)
    infer = model.infer_columns

    def wait_for_another(feed):
        barrier.wait(60)  # broken where no other comes
        return infer(feed)

    model.infer_columns = wait_for_another
    app = serving.App({"m": model}, limits=serving.Limits(batch_rows=1))
    answers = await asyncio.gather(*[ask(app, "POST", INFER, row(n, n, n)) for n in range(2)])
    assert [answer.status for answer in answers] == [200, 200]
    await app.close()


@run
async def test_only_the_request_at_fault_is_refused():
    async with Blocked() as server:
        good = [server.send(row(n, n, n)) for n in range(3)]
        text = json.dumps(row(7, 7, 7)).replace("7", "NaN", 1).encode()
        bad = server.send(text)
        await server.queued(4)
    assert [task.result().status for task in good] == [200] * 3
    assert (bad.result().status, bad.result().error) == (400, "x got nan, expected numbers.")


@run
async def test_failure_of_a_model_is_logged_and_the_next_request_is_answered():
    model = Doubler()
    infer, model.infer_columns = model.infer_columns, lambda feed: 1 // 0
    app = serving.App({"m": model})
    logger, raised = logging.getLogger("penstock.serving"), []
    note = {"side_effect": lambda *_: raised.append(sys.exception())}
    with mock.patch.object(logger, "exception", **note):
        answer = await ask(app, "POST", INFER, row(1, 2, 3))
    assert (answer.status, answer.error) == (500, "the server failed. Its log says why.")
    assert isinstance(raised[0], ZeroDivisionError)
    model.infer_columns = infer
    assert (await ask(app, "POST", INFER, row(1, 2, 3))).status == 200
    await app.close()


@run
async def test_full_queue_is_said_at_once():
    limits = serving.Limits(queue_requests=2, batches=1)
    async with Blocked(limits=limits) as server:
        waiting = [server.send(row(n, n, n)) for n in range(2)]
        await server.queued(2)
        refused = await ask(server.app, "POST", INFER, row(1, 2, 3))
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "too many requests, expected fewer than 2 in the queue" in refused.error
    assert [task.result().status for task in waiting] == [200, 200]


@run
async def test_request_that_waits_too_long_is_given_up_and_leaves_the_queue():
    async with Blocked(limits=serving.Limits(queue_secs=0.001, batches=1)) as server:
        late = await server.send(row(1, 2, 3))
        assert late.status == 504
        assert "the queue got 0.001 s" in late.error
        await server.queued(0)
    assert server.model.batches == [1]
    # What runs is answered, however long it takes.
    assert server.tasks[-2].result().status == 200


@run
async def test_client_that_went_away_is_left_out():
    gone = asyncio.Event()
    async with Blocked() as server:
        left, stayed = server.send(row(1, 1, 1), gone=gone), server.send(row(2, 2, 2))
        await server.queued(2)
        gone.set()
        assert (await left).status == 0
        await server.queued(1)
    assert stayed.result().status == 200
    assert server.model.batches == [1, 1]
    assert 'penstock_requests_total{model="m",code="499"} 1' in server.app._metrics.render()


@run
async def test_bodies_are_limited_alone_and_together():
    limits = serving.Limits(body_bytes=1000, all_bodies_bytes=1500, batches=1)
    async with Blocked(limits=limits) as server:
        app = server.app
        answer = await ask(app, "POST", INFER, b"", content_length="1001")
        assert answer.status == 413
        assert "connection" not in answer.headers  # it would cut off one that is still sending
        assert answer.error == "the body got '1001 bytes', expected 1000 at most."
        assert (await ask(app, "POST", INFER, chunks=[b" " * 600] * 2)).status == 413
        full = json.dumps(row(1, 2, 3)).encode().ljust(900)
        waiting = server.send(full)
        await server.queued(1)
        assert (await ask(app, "POST", INFER, full)).status == 503
        server.model.gate.set()
        assert (await waiting).status == 200
        assert app._num_bytes == 0
        assert (await ask(app, "POST", INFER, full)).status == 200


@run
async def test_body_that_never_comes_is_given_up():
    app = serving.App({"m": Doubler()}, limits=serving.Limits(receive_secs=0.001))
    answer = await ask(app, "POST", INFER, chunks=[])
    assert answer.status == 408
    assert "got '0 bytes in 0.001 s', expected all of it" in answer.error


@run
async def test_headers_and_encodings_are_limited():
    app = serving.App({"m": Doubler()})
    assert (await ask(app, "GET", "/v2", cookie="a" * 20_000)).status == 431
    answer = await ask(app, "POST", INFER, row(1, 2, 3), content_encoding="gzip")
    assert answer.status == 415


@run
async def test_requests_are_answered_by_the_model_that_they_were_read_for():
    new = Doubler(version="2", factor=3.0)
    async with Blocked(load=lambda name: new) as server:
        before = server.send(row(1, 1, 1))
        await server.queued(1)
        loaded = await ask(server.app, "POST", "/v2/repository/models/m/load", b"{}")
        assert (loaded.status, loaded.json) == (200, {})
        after = server.send(row(1, 1, 1))
        gone = server.send(row(1, 1, 1), path="/v2/models/m/versions/1/infer")
        await until(gone.done)
    answers = [task.result().json for task in (before, after)]
    assert [answer["model_version"] for answer in answers] == ["1", "2"]
    assert [answer["outputs"][0]["data"] for answer in answers] == [[2.0] * 3, [3.0] * 3]
    assert gone.result().status == 404


@run
async def test_model_that_cannot_be_loaded_leaves_the_one_before():
    def load(name):
        raise FeedError(f"{name} is damaged")

    app = serving.App({"m": Doubler()}, load=load)
    reply = await ask(app, "POST", "/v2/repository/models/m/load")
    assert (reply.status, reply.error) == (400, "model 'm' cannot be loaded: m is damaged")
    assert (await ask(app, "POST", INFER, row(1, 2, 3))).json["model_version"] == "1"
    reply = await ask(app, "POST", "/v2/repository/models/m/load", {"parameters": {"config": "{}"}})
    assert "A model is loaded from its own file" in reply.error or reply.status == 400
    await app.close()


@run
async def test_token_is_asked_for_everywhere_but_at_health_checks_and_the_page():
    app = serving.App({"m": Doubler()}, token="secret")
    paths = {"/v2/health/live", "/v2/health/ready", "/"}
    closed = {"/v2", "/v2/models/m", "/v2/models/m/ready", "/metrics", "/openapi.json", "/x"}
    for path in paths | closed:
        for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "secrét"}):
            answer = await ask(app, "GET", path, **headers)
            assert answer.status == (200 if path in paths else 401), path
    assert answer.headers.get("www-authenticate", "Bearer") == "Bearer"
    for path in closed - {"/x"}:
        assert (await ask(app, "GET", path, authorization="Bearer secret")).status == 200
    for path in (INFER, "/v2/repository/index", "/v2/repository/models/m/load"):
        assert (await ask(app, "POST", path, row(1, 2, 3))).status == 401


@run
async def test_page_runs_its_own_script_and_no_other():
    answer = await ask(serving.App({}), "GET", "/")
    policy, text = answer.headers["content-security-policy"], answer.body.decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in text
    for tag in ("script", "style"):
        (inner,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.findall(r'\son\w+="|style="', text)


@run
async def test_metrics_count_answers_rows_and_seconds():
    async with Blocked() as server:
        metrics = (await ask(server.app, "GET", "/metrics")).body.decode()
        assert 'penstock_queue_length{model="m"} 0' in metrics  # one runs
        for n in range(3):
            server.send(row(n, n, n))
        await server.queued(3)
        metrics = (await ask(server.app, "GET", "/metrics")).body.decode()
        assert 'penstock_queue_length{model="m"} 3' in metrics
    await ask(server.app, "POST", INFER, b"{")
    await ask(server.app, "GET", "/v2/models/other")
    metrics = (await ask(server.app, "GET", "/metrics")).body.decode()
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert values['penstock_requests_total{model="m",code="200"}'] == "4"
    assert values['penstock_requests_total{model="m",code="400"}'] == "1"
    assert values['penstock_requests_total{model="",code="404"}'] == "1"
    assert values['penstock_batch_rows_sum{model="m"}'] == "4"
    buckets = [values[f'penstock_batch_rows_bucket{{model="m",le="{n}"}}'] for n in (1, 2, 4)]
    assert buckets == ["1", "1", "2"]
    for kind in ("queue", "compute"):
        name = f"penstock_{kind}_seconds"
        count = values[f'{name}_count{{model="m"}}']
        assert count == values[f'{name}_bucket{{model="m",le="+Inf"}}']
        assert count == {"queue": "4", "compute": "2"}[kind]
        assert float(values[f'{name}_sum{{model="m"}}']) > 0


@run
async def test_log_has_a_line_of_json_for_each_request():
    lines = []
    app = serving.App({"m": Doubler()}, log=lines.append)
    await ask(app, "POST", INFER, row(1, 2, 3))
    await ask(app, "GET", "/a\nb" + "c" * 1000)
    first, second = map(json.loads, lines)
    assert (first["method"], first["path"], first["status"], first["rows"]) == (
        "POST",
        INFER,
        200,
        1,
    )
    assert (second["status"], len(second["path"])) == (404, 256)
    assert not any("\n" in line for line in lines)
    await app.close()


@run
async def test_server_that_drains_is_not_ready_and_closes_connections():
    app = serving.App({"m": Doubler()})
    app.is_draining = True
    for path in ("/v2/health/ready", "/v2/models/m/ready"):
        answer = await ask(app, "GET", path)
        assert (answer.status, answer.json["ready"]) == (503, False)
    assert (await ask(app, "GET", "/v2/health/live")).status == 200
    answer = await ask(app, "POST", INFER, row(1, 2, 3))
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    await app.close()


@run
async def test_closing_answers_what_is_queued_and_ends_the_threads():
    before = threads("penstock-serve")
    async with Blocked() as server:
        waiting = server.send(row(1, 2, 3))
        await server.queued(1)
        closing = asyncio.ensure_future(server.app.close())
        await asyncio.sleep(0)
    await closing
    assert waiting.result().status == 200
    assert (await ask(server.app, "POST", INFER, row(1, 2, 3))).status == 503
    assert threads("penstock-serve") <= before


@run
async def test_request_that_is_prepared_too_long_is_given_up():
    model, gate = Doubler(kind="text"), threading.Event()
    model.prepare = lambda examples: gate.wait(30)
    app = serving.App({"m": model}, limits=serving.Limits(queue_secs=0.01))
    asking = asyncio.ensure_future(ask(app, "POST", INFER, TEXT))
    await asyncio.wait([asking], timeout=25)
    is_answered = asking.done()
    gate.set()
    late = await asking
    assert is_answered
    assert late.status == 504
    assert "the queue got 0.01 s" in late.error
    await app.close()


@run
async def test_closing_answers_what_is_being_prepared():
    model, entered, gate = Doubler(kind="text"), threading.Event(), threading.Event()
    prepare = model.prepare

    def wait_and_prepare(examples):
        entered.set()
        assert gate.wait(30)
        return prepare(examples)

    model.prepare = wait_and_prepare
    app = serving.App({"m": model}, limits=serving.Limits(queue_secs=60))
    waiting = asyncio.ensure_future(ask(app, "POST", INFER, TEXT))
    await asyncio.to_thread(entered.wait, 30)
    closing = asyncio.ensure_future(app.close())
    await asyncio.sleep(0.1)  # a thread that ends with the queue's closing has ended by then
    gate.set()
    assert (await waiting).status == 200
    await closing


@pytest.mark.parametrize("kind", ["sequence", "nested"])
def test_sequences_are_lists_to_a_model(kind):
    model = Doubler(kind=kind)
    shape = {"sequence": (2, 5, 3), "nested": (2, 4, 5, 3)}[kind]
    x = np.arange(np.prod(shape)).reshape(shape)
    read = _tensors.read_request(model, json.dumps({"inputs": [tensor(x)]}).encode(), None, 8)
    value = read.feed["x"]
    assert isinstance(value, list)
    assert isinstance(value[0], list if kind == "nested" else np.ndarray)
    assert np.array_equal(value, x)


@run
async def test_sequences_of_different_lengths_are_one_batch():
    model = Doubler(kind="sequence")
    seen = []

    def infer(feed):
        model.entered.set()
        assert model.gate.wait(30)
        seen.append([len(sequence) for sequence in feed["x"]])
        return {
            "y": np.array([sequence.sum(0) for sequence in feed["x"]]),
            "mean": np.zeros(len(feed["x"])),
        }

    model.infer_columns = infer
    server = Blocked(model)
    model.gate.clear()
    server.send({"inputs": [tensor(np.ones((1, 2, 3)))]})
    await until(model.entered.is_set)
    answers = [server.send({"inputs": [tensor(np.ones((1, n, 3)))]}) for n in (5, 1, 4)]
    await server.queued(3)
    await server.__aexit__()
    assert seen == [[2], [5, 1, 4]]
    assert [a.result().json["outputs"][0]["data"][0] for a in answers] == [5, 1, 4]


@run
async def test_sequences_are_no_longer_than_a_server_takes():
    model = Doubler(kind="nested")
    app = serving.App({"m": model}, limits=serving.Limits(sequence_words=4))
    for shape, words in (((1, 5, 2, 3), 5), ((1, 2, 6, 3), 6)):
        answer = await ask(app, "POST", INFER, {"inputs": [tensor(np.ones(shape))]})
        assert (answer.status, answer.error) == (
            400,
            f"input 'x' got '{words} words', expected 4 at most.",
        )
    await app.close()
