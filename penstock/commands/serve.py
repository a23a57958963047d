"""`penstock serve`: answer requests over HTTP with trained models."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import logging
import os
import re
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from penstock._errors import check_installed
from penstock.commands._argument_parser import option, parse, positional
from penstock.commands._failures import UsageError, check_numbers, command, nearest_path
from penstock.serving import App, Limits

_EPILOG = """The protocol is the V2 Open Inference Protocol, which Triton and KServe speak too.
The page at / asks the models, /openapi.json describes the API, /metrics is for
Prometheus. Only the health checks and the page need no token.

SIGTERM ends it: /v2/health/ready says 503, for --linger seconds requests are
still taken, what is queued is answered, and the exit status is 0. SIGHUP loads
the files that changed, as POST /v2/repository/models/NAME/load does for one;
no request is lost meanwhile.

environment: PENSTOCK_SERVE_TOKEN, the token, where --token_file is not given.

examples:
  penstock serve photos.penstock
  penstock serve cats=photos.penstock reviews.penstock --host=0.0.0.0 --token_file=token
  curl localhost:8000/v2/models/cats"""
_LOGGER = logging.getLogger("penstock.serving")
_MAX_CONNECTIONS = 1000
# Of a process: the next is prepared while one runs.
_BATCHES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """Answer requests over HTTP with trained models, in one process or with several behind it.

    Requests that come while a batch runs are the next batch.

    Arguments:
      files: the files of models, which Trainer.save_inference_model and penstock export write; the
        name of a model is that of its file, or NAME in NAME=FILE.
      host: the address to listen at; by default only this machine can ask.
      port: the port to listen at; 0 is any that is free, which is printed.
      workers: processes that run the models, each with a GPU of its own where there are any; with
        one the server runs them itself.
      place: where the models run; by default on GPUs if there are any.
      max_batch_size: rows of a batch, and so of a request; more are answered with 400.
      token_file: a file with the token that requests have to bring, as Authorization: Bearer TOKEN.
      queue: requests that may wait for a model; one more is answered with 503.
      queue_secs: seconds that a request may wait, after which it is answered with 504.
      max_words: words of a sequence; more are answered with 400.
      max_body: MiB of a request; a larger one is answered with 413.
      request_log: print a line of JSON for each request.
      linger: seconds after SIGTERM in which new requests are still taken.
      grace: seconds after them in which requests are answered, before connections are cut.
    """

    files: tuple[str, ...] = positional("FILE", "+")
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    place: Literal["cpu", "gpu"] | None = None
    max_batch_size: int = 64
    token_file: str | None = option("FILE", None)
    queue: int = 256
    queue_secs: float = 30.0
    max_words: int = 4096
    max_body: float = 32.0
    request_log: bool = False
    linger: float = 2.0
    grace: float = 30.0

    def __post_init__(self) -> None:
        counts = "workers>=1 max_batch_size>=1 queue>=1 max_words>=1"
        check_numbers(self, f"{counts} linger>=0 grace>=0 queue_secs>0 max_body>0 port>=0<=65535")


@command()
def run(argv: list[str]) -> int:
    """Run `penstock serve` with the arguments after the command's name."""
    flags, _ = parse(ServeFlags, argv, epilog=_EPILOG)
    files, token = _find_files(flags.files), _read_token(flags.token_file)
    for package in ("uvicorn", "httptools"):
        check_installed(package, "serve", "penstock serve")
    failed = threading.Event()
    with _bind(flags.host, flags.port) as listener, _make_loader(files, flags, failed) as load:
        models = {name: load(name) for name in files}
        listener.listen(2048)
        host, port = listener.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {', '.join(files)} at {where}", flush=True)
        app = App(
            models,
            load=load,
            token=token,
            limits=Limits(
                batch_rows=flags.max_batch_size,
                batches=_BATCHES * flags.workers,
                sequence_words=flags.max_words,
                queue_requests=flags.queue,
                queue_secs=flags.queue_secs,
                body_bytes=int(flags.max_body * 2**20),
                all_bodies_bytes=int(flags.max_body * 2**20) * 8,
            ),
            log=(lambda line: print(line, flush=True)) if flags.request_log else None,
        )
        _run_server(flags, app, listener)
    return int(failed.is_set())


def _find_files(words: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of models by the name that requests have for them."""
    files: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or Path(word).exists():
            name, path = Path(word).stem, word
        if re.fullmatch(r"[\w.-]{1,128}", name, re.ASCII) is None:
            expected = "letters, digits, _, . and -. Addresses have it. Write NAME=FILE"
            raise UsageError(f"got the name {name!r}, expected {expected}.")
        if name in files:
            expected = "a name for each model: NAME=FILE"
            raise UsageError(f"got the name {name!r} twice, expected {expected}.")
        if Path(path).is_dir():
            export = f"Of a run, `penstock export {shlex.quote(path)}` makes one"
            raise UsageError(f"got the folder {path!r}, expected the file of a model. {export}.")
        if not Path(path).is_file():
            hint = nearest_path(Path(path))
            expected = "that of a model, as Trainer.save_inference_model writes it"
            raise UsageError(f"got no file {path!r}, expected {expected}.{hint}")
        files[name] = Path(path)
    return files


def _read_token(path: str | None) -> str | None:
    if path is None:
        return os.environ.get("PENSTOCK_SERVE_TOKEN") or None
    token = Path(path).read_text(encoding="utf-8").strip()
    if not token or not token.isascii() or not token.isprintable():
        expected = "a token in one line of ASCII"
        raise UsageError(f"--token_file got {path!r}, expected {expected}. Requests bring it.")
    return token


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket at an address, which does not listen yet."""
    listener = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, number, _, address = addresses[0]
        listener = socket.socket(family, kind, number)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        expected = f"an address that can be listened at: {error.strerror or error}"
        raise UsageError(f"--host and --port got {host}:{port}, expected {expected}.") from error
    return listener


@contextlib.contextmanager
def _make_loader(
    files: Mapping[str, Path], flags: ServeFlags, failed: threading.Event
) -> Iterator[Callable[[str], Any]]:
    """Yield a function that loads the model of a name, if its file is another than before.

    Arguments:
      failed: is set, and the server told to end, where workers cannot be kept running.
    """
    from penstock import InferenceModel
    from penstock.distributed.local_launch import assign_devices
    from penstock.serving.workers import Workers, warm

    loaded: dict[str, tuple[object, Any]] = {}
    workers: Workers | None = None

    def end() -> None:
        failed.set()
        os.kill(os.getpid(), signal.SIGTERM)

    if flags.workers > 1:
        variables = assign_devices(flags.workers, flags.place)
        workers = Workers(variables, lanes=_BATCHES, place=flags.place, on_failure=end)

    def load(name: str) -> Any:
        facts = files[name].stat()
        stamp = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if name not in loaded or loaded[name][0] != stamp:
            if workers is not None:
                model = workers.load(files[name], flags.max_batch_size)
            else:
                model = InferenceModel.load(files[name], place=flags.place)
                warm(model, flags.max_batch_size)
            loaded[name] = stamp, model
        return loaded[name][1]

    try:
        yield load
    finally:
        if workers is not None:
            workers.close()


def _run_server(flags: ServeFlags, app: App, listener: socket.socket) -> None:
    """Answer requests until a signal says to end."""
    uvicorn: Any = importlib.import_module("uvicorn")
    config = uvicorn.Config(
        app,
        http=_make_protocol(app.limits),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=int(flags.grace),
    )
    server = uvicorn.Server(config)
    # Its own would end the process by the signal, and not by 0.
    server.capture_signals = contextlib.nullcontext

    async def serve() -> None:
        loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def end(linger_secs: float) -> None:
            server.force_exit = app.is_draining and not linger_secs
            app.is_draining = True
            loop.call_later(linger_secs, setattr, server, "should_exit", True)

        def reload() -> None:
            reloads.add(task := loop.create_task(_reload(app)))
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGTERM, end, flags.linger)
        loop.add_signal_handler(signal.SIGINT, end, 0.0)
        loop.add_signal_handler(signal.SIGHUP, reload)
        await server.serve([listener])

    # uvloop's, where it is installed.
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve())


async def _reload(app: App) -> None:
    for name in list(app.models):
        try:
            await app.reload(name)
        except ValueError as error:
            _LOGGER.error("%s The one before is served on.", error)


def _make_protocol(limits: Limits) -> Any:
    """Return uvicorn's HTTP on a connection, with limits on what comes before a body."""
    module: Any = importlib.import_module("uvicorn.protocols.http.httptools_impl")

    class Protocol(module.HttpToolsProtocol):
        """Close connections whose headers are too long, or which are too long in coming."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.num_head_bytes = 0
            self.patience: Any = None
            self.wait()

        def wait(self) -> None:
            self.stop_waiting()
            self.patience = self.loop.call_later(limits.receive_secs, self.transport.close)

        def stop_waiting(self) -> None:
            self.num_head_bytes = 0
            if self.patience is not None:
                self.patience.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self.num_head_bytes += len(data)
            super().data_received(data)
            # Headers and trailers are kept by the parser until they end.
            if self.num_head_bytes > 4 * limits.header_bytes and not self.transport.is_closing():
                self.send_400_response("Headers too long.")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.wait()

        def on_headers_complete(self) -> None:
            self.stop_waiting()
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            # What is still sent is dropped, but not for ever.
            if self.cycle.response_complete and self.cycle.more_body:
                self.wait()

        def on_message_complete(self) -> None:
            self.stop_waiting()
            super().on_message_complete()

        def on_body(self, body: bytes) -> None:
            self.num_head_bytes = 0
            super().on_body(body)

    return Protocol
