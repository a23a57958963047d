"""The server as an ASGI application: routes, limits, who may ask, and models that are reloaded."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

from penstock._errors import FeedError, listed, nearest
from penstock._version import __version__
from penstock.serving._metrics import Metrics
from penstock.serving._page import PAGE, POLICY
from penstock.serving._queue import Batcher, Limits
from penstock.serving._tensors import (
    RequestError,
    describe_example,
    describe_model,
    dump,
    load_object,
    read_request,
    refuse,
    write_answer,
)

if TYPE_CHECKING:
    from penstock.inference_model import HostModel

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_EXTENSIONS = ["binary_tensor_data", "classification", "model_repository"]
_LENGTH_HEADER = "inference-header-content-length"
_JSON = {"content-type": "application/json"}
_LOGGER = logging.getLogger("penstock.serving")
_T = TypeVar("_T")


@dataclasses.dataclass
class _Exchange:
    """A request, and what is known of its answer; metrics and the log have it from here."""

    scope: Scope
    receive: Receive
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    model: str = ""
    rows: int = 0
    status: int = 200
    body: bytes = b""
    answer_headers: dict[str, str] = dataclasses.field(default_factory=lambda: dict(_JSON))


@dataclasses.dataclass(frozen=True)
class _Route:
    method: str
    path: str
    about: str
    answer: Callable[[_Exchange], Awaitable[object]]
    is_open: bool = False

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))


class _ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class App:
    """An ASGI application that serves models by the V2 Open Inference Protocol.

    `penstock serve` runs it; any other ASGI server can.

    Arguments:
      models: by the name that requests have for them.
      load: returns the model of a name as it is now, for a reload; None where there is none.
      token: what requests have to bring as `Authorization: Bearer TOKEN`; all but the health checks
        and the page, which says nothing of the models.
      log: is called with a line of JSON for each request.

    >>> App({}).is_draining
    False
    """

    def __init__(
        self,
        models: Mapping[str, HostModel],
        *,
        load: Callable[[str], HostModel] | None = None,
        token: str | None = None,
        limits: Limits | None = None,
        log: Callable[[str], object] | None = None,
    ) -> None:
        for name, model in models.items():
            if re.fullmatch(r"[\w.-]{1,128}", name, re.ASCII) is None:
                raise ValueError(f"a model got the name {name!r}, expected letters, digits, _ . -.")
            _check_inputs(name, model)
        self.models = dict(models)
        self.is_draining = False
        self._load, self.limits, self._log = load, limits or Limits(), log
        self._token = None if token is None else f"Bearer {token}".encode()
        self._metrics = Metrics(list(models))
        self._batchers: dict[str, Batcher] = {}
        self._num_bytes = 0
        self._loading: dict[str, asyncio.Lock] = {}
        self._routes = self._list_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or follow the life of the server that this runs in."""
        if scope["type"] == "lifespan":
            while (await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            await self.close()
            await send({"type": "lifespan.shutdown.complete"})
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def close(self) -> None:
        """Answer what is queued, and end the threads."""
        for batcher in self._batchers.values():
            await batcher.close()

    async def reload(self, name: str) -> None:
        """Load a model again, and let it take the place of the one that is served.

        Requests that were read before are answered by the model that they were read for.

        Raises:
          RequestError: it cannot be loaded; the one before is served on.
        """
        if self._load is None:
            raise RequestError("a reload got no files, expected models that come from files.")
        async with self._loading.setdefault(name, asyncio.Lock()):
            try:
                model = await asyncio.to_thread(self._load, name)
                _check_inputs(name, model)
                self.models[name] = model
            except (OSError, ValueError) as error:
                raise RequestError(f"model {name!r} cannot be loaded: {error}") from error

    def _list_routes(self) -> list[_Route]:
        of_model = [
            _Route(method, f"/v2/models/{{name}}{version}{suffix}", about, answer)
            for method, suffix, about, answer in (
                ("POST", "/infer", "Ask a model", self._infer),
                ("GET", "", "Inputs and outputs of a model", self._describe),
                ("GET", "/ready", "Whether a model can be asked", self._tell_model_ready),
            )
            for version in ("", "/versions/{version}")
        ]
        index, load = "/v2/repository/index", "/v2/repository/models/{name}/load"
        return [
            *of_model,
            _Route("GET", "/v2/health/live", "Whether the server runs", self._tell_live, True),
            _Route("GET", "/v2/health/ready", "Whether to send requests", self._tell_ready, True),
            _Route("GET", "/v2", "The server", self._describe_server),
            _Route("POST", index, "The models of the server", self._list_models),
            _Route("POST", load, "Load a model's file again", self._load_again),
            _Route("GET", "/metrics", "Metrics for Prometheus", self._show_metrics),
            _Route("GET", "/openapi.json", "This description", self._describe_api),
            _Route("GET", "/", "A page to try the models on", self._show_page, True),
        ]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, exchange = time.perf_counter(), _Exchange(scope, receive)
        try:
            answer = await self._answer(exchange)
            exchange.body = answer if isinstance(answer, bytes) else dump(answer)
        except _ClientGoneError:
            exchange.status = 499
        except (RequestError, FeedError) as error:
            exchange.status = getattr(error, "status", 400)
            exchange.body = dump({"error": str(error)})
        except Exception:
            _LOGGER.exception("%s %s failed", scope["method"], scope["path"][:256])
            exchange.status = 500
            exchange.body = dump({"error": "the server failed. Its log says why."})
        self._metrics.models[exchange.model].codes[exchange.status] += 1
        if self._log is not None:
            self._log(_describe_exchange(exchange, time.perf_counter() - start))
        if exchange.status == 499:
            return
        headers = {"content-length": str(len(exchange.body)), "x-content-type-options": "nosniff"}
        headers |= exchange.answer_headers
        if exchange.status == 503:
            headers["retry-after"] = "1"
        # One that drains ends. Of a body that is too large the rest is read and dropped: a client
        # that is still sending would otherwise see a lost connection, and no answer.
        if self.is_draining or exchange.status in (408, 431):
            headers["connection"] = "close"
        pairs = [(key.encode(), value.encode("latin-1")) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": exchange.status, "headers": pairs})
        await send({"type": "http.response.body", "body": exchange.body})

    async def _answer(self, exchange: _Exchange) -> object:
        """Return what a request is answered with; raise `RequestError` where it cannot be."""
        scope, path, most = exchange.scope, exchange.scope["path"], self.limits.header_bytes
        size = len(path) + sum(len(key) + len(value) for key, value in scope["headers"])
        if size > most:
            raise refuse("the headers", f"{size} bytes", f"{most} at most", status=431)
        exchange.headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        matches = [(route, m) for route in self._routes if (m := route.pattern.fullmatch(path))]
        is_open = bool(matches) and matches[0][0].is_open
        authorization = exchange.headers.get("authorization", "").encode("latin-1")
        if self._token and not is_open and not hmac.compare_digest(authorization, self._token):
            exchange.answer_headers["www-authenticate"] = "Bearer"
            expected = "Bearer TOKEN with the token of this server"
            raise RequestError(f"Authorization got no or another token, expected {expected}.", 401)
        if not matches:
            raise refuse("the path", path, "one of those that /openapi.json lists", status=404)
        route, match = matches[0]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method != route.method:
            exchange.answer_headers["allow"] = route.method
            raise refuse(f"the method of {path[:128]}", method, route.method, status=405)
        name, version = map(match.groupdict().get, ("name", "version"))
        if name is not None:
            if name not in self.models:
                expected = f"one of {listed(self.models)}"
                raise refuse("the model", name, expected, nearest(name[:64], self.models), 404)
            exchange.model, own = name, self.models[name].version
            if version not in (None, own):
                raise refuse(f"the version of {name!r}", version, f"{own!r}, or none", status=404)
        return await route.answer(exchange)

    async def _infer(self, exchange: _Exchange) -> bytes:
        name, limits, model = exchange.model, self.limits, self.models[exchange.model]
        body = await self._read_body(exchange)
        try:
            length = exchange.headers.get(_LENGTH_HEADER)
            request = read_request(model, body, length, limits.batch_rows)
            exchange.rows = request.num_rows
            if name not in self._batchers:
                self._batchers[name] = Batcher(self._metrics.models[name], limits)
            columns = await _unless_gone(exchange, self._batchers[name].infer(model, request))
        finally:
            self._num_bytes -= len(body)
        answer, json_bytes = write_answer(model, name, request, columns)
        if json_bytes is not None:
            exchange.answer_headers["content-type"] = "application/octet-stream"
            exchange.answer_headers[_LENGTH_HEADER] = str(json_bytes)
        return answer

    async def _read_body(self, exchange: _Exchange) -> bytes:
        """Return the body of a request, whose bytes are in `_num_bytes` then."""
        most = self.limits.body_bytes
        encoding = exchange.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise refuse("content-encoding", encoding, "none. A body is not compressed", status=415)
        length = exchange.headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 18 or int(length) > most):
            raise refuse("the body", f"{length[:40]} bytes", f"{most} at most", status=413)
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.limits.receive_secs):
                while True:
                    message = await exchange.receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    self._num_bytes += len(chunks[-1])
                    if size > most:
                        raise refuse("the body", "more bytes", f"{most} at most", status=413)
                    if self._num_bytes > self.limits.all_bodies_bytes:
                        expected = f"less than {self.limits.all_bodies_bytes} bytes at a time"
                        raise refuse("the server", "too much to read", expected, status=503)
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except BaseException as error:
            self._num_bytes -= size
            if not isinstance(error, TimeoutError):
                raise
            received = f"{size} bytes in {self.limits.receive_secs:g} s"
            raise refuse("the body", received, "all of it", status=408) from error

    async def _describe(self, exchange: _Exchange) -> object:
        return describe_model(exchange.model, self.models[exchange.model], self.limits.batch_rows)

    async def _tell_model_ready(self, exchange: _Exchange) -> object:
        return {"name": exchange.model, **await self._tell_ready(exchange)}

    async def _tell_live(self, exchange: _Exchange) -> object:
        return {"live": True}

    async def _tell_ready(self, exchange: _Exchange) -> dict[str, bool]:
        exchange.status = 503 if self.is_draining else 200
        return {"ready": not self.is_draining}

    async def _describe_server(self, exchange: _Exchange) -> object:
        return {"name": "penstock", "version": __version__, "extensions": _EXTENSIONS}

    async def _list_models(self, exchange: _Exchange) -> object:
        return [
            {"name": name, "version": model.version, "state": "READY", "reason": ""}
            for name, model in self.models.items()
        ]

    async def _load_again(self, exchange: _Exchange) -> object:
        body = await self._read_body(exchange)
        self._num_bytes -= len(body)
        if body.strip() and load_object(body).get("parameters"):
            raise refuse("parameters", "some", "none. A model is loaded from its own file")
        await self.reload(exchange.model)
        return {}

    async def _show_metrics(self, exchange: _Exchange) -> bytes:
        exchange.answer_headers["content-type"] = "text/plain; version=0.0.4; charset=utf-8"
        return self._metrics.render().encode()

    async def _show_page(self, exchange: _Exchange) -> bytes:
        exchange.answer_headers |= {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": POLICY,
            "referrer-policy": "no-referrer",
        }
        return PAGE.encode()

    async def _describe_api(self, exchange: _Exchange) -> object:
        paths: dict[str, dict[str, Any]] = {}
        for route in self._routes:
            names = re.findall(r"\{(\w+)\}", route.path)
            operation: dict[str, Any] = {
                "summary": route.about,
                "parameters": [
                    {"name": name, "in": "path", "required": True, "schema": _STRING}
                    for name in names
                ],
                "responses": {
                    "200": {"description": "The answer."},
                    "4XX": {"description": 'What is wrong: {"error": "..."}.'},
                    "503": {"description": "Too much to do, or about to end: Retry-After."},
                },
                "security": [] if route.is_open or not self._token else [{"token": []}],
            }
            if route.path.endswith("/infer"):
                examples = {
                    name: {"value": {"inputs": [describe_example(model)]}}
                    for name, model in self.models.items()
                }
                content = {"application/json": {"schema": _REQUEST, "examples": examples}}
                operation["requestBody"] = {"required": True, "content": content}
            paths.setdefault(route.path, {})[route.method.lower()] = operation
        return {
            "openapi": "3.1.0",
            "info": {"title": "penstock serve", "version": __version__},
            "paths": paths,
            "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }


def _check_inputs(name: str, model: HostModel) -> None:
    if not model.inputs:
        raise ValueError(
            f"the model {name!r} got no inputs, expected one at least. A request of the protocol "
            "is made of tensors. Use InferenceModel.infer({}), or give the infer function an input."
        )


_STRING = {"type": "string"}
_SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": _STRING,
        "shape": _SHAPE,
        "datatype": _STRING,
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
}
_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": _STRING,
        "inputs": {"type": "array", "items": _TENSOR, "minItems": 1},
        "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    },
}


async def _unless_gone(exchange: _Exchange, answer: Coroutine[Any, Any, _T]) -> _T:
    task = asyncio.current_task()
    assert task is not None
    # The body has been read: what comes now is the end of the connection.
    watch = asyncio.ensure_future(exchange.receive())

    def leave(watch: asyncio.Future[Any]) -> None:
        task.cancel()

    watch.add_done_callback(leave)
    try:
        return await answer
    except asyncio.CancelledError:
        if not watch.done():
            raise
        task.uncancel()
        raise _ClientGoneError from None
    finally:
        watch.remove_done_callback(leave)
        watch.cancel()


def _describe_exchange(exchange: _Exchange, seconds: float) -> str:
    scope = exchange.scope
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "client": (scope.get("client") or [None])[0],
        "method": scope["method"],
        "path": scope["path"][:256],
        "status": exchange.status,
        "rows": exchange.rows,
        "ms": round(1000 * seconds, 3),
    }
    return json.dumps(line)
