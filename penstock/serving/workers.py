"""Processes that run models, on a device each: one that is lost loses no request."""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from penstock import _model_file
from penstock._errors import FeedError, ModelFileError
from penstock.inference_model import HostModel, InferenceModel, choose_cache

# A request that this many processes were lost with is not tried again, nor is a start.
_MAX_LOST = 3
_LOAD_SECS = 900.0
_SMALL_BYTES = 1 << 16
_LOGGER = logging.getLogger("penstock.serving")


class RemoteModel(HostModel):
    """A model that runs in the processes of `Workers`; what the host does before runs here."""

    __slots__ = ("_key", "_workers")

    def __init__(self, manifest: _model_file.Manifest, workers: Workers, key: int) -> None:
        super().__init__(manifest)
        self._workers, self._key = workers, key

    def infer_columns(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs by name, see `InferenceModel.infer_columns`."""
        return self._workers.infer(self._key, feed)


def warm(model: InferenceModel, max_rows: int) -> None:
    """Compile for the batches that may come: the first of a size would wait for it."""
    most = max_rows if model.manifest.takes_padding else 1
    model.warm([2**n for n in range((most - 1).bit_length() + 1)])


class Workers:
    """Processes that each hold all models.

    A call goes to a process that has nothing to do. Where a process is lost, its calls go to
    another, and a thread starts it again; it gets the models as they were loaded, whatever their
    files are by now.

    Arguments:
      variables: those of each process's environment.
      lanes: calls of a process at a time.
      place: where models run, see `InferenceModel.load`.
      on_failure: is called where a process is lost before it has its models, again and again.
    """

    def __init__(
        self,
        variables: Sequence[Mapping[str, str]],
        *,
        lanes: int,
        place: str | None,
        on_failure: Callable[[], object],
    ) -> None:
        self._place, self._num_lanes, self._on_failure = place, lanes, on_failure
        # Held where models are loaded, so that a process that starts meanwhile misses none.
        self._lock = threading.Lock()
        self._keys = itertools.count()  # none comes again: a process may still have what failed
        self._models: dict[int, tuple[Any, ...]] = {}
        self._dropped: list[int] = []
        self._processes: dict[int, _Process] = {}
        self._free = queue.SimpleQueue[Connection | None]()
        self._is_closed, self._num_kept = False, len(variables)
        for number, own in enumerate(variables):
            self._start(number, own)
        self._threads = [
            threading.Thread(target=self._keep, args=pair, daemon=True)
            for pair in enumerate(variables)
        ]
        for thread in self._threads:
            thread.start()

    def load(self, path: Path, max_rows: int) -> RemoteModel:
        """Load a model's file in all processes, and `warm` it there.

        Raises:
          FileNotFoundError, ModelFileError: see `InferenceModel.load`.
        """
        read = _model_file.read(path)
        with self._lock:
            while self._dropped:
                del self._models[self._dropped.pop()]
            key = next(self._keys)
            self._models[key] = (*read, path, max_rows)
            try:
                with ThreadPoolExecutor(len(self._processes)) as threads:
                    list(threads.map(self._try_to_update, self._processes.values()))
                held = [
                    process.models[key]
                    for process in self._processes.values()
                    if key in process.models
                ]
                if not held:
                    raise ModelFileError(
                        f"{path} got processes that were lost while they loaded it, expected them "
                        "to live. It may need more memory than there is, or be hostile."
                    )
            except BaseException:
                del self._models[key]
                raise
        model = RemoteModel(read[0], self, key)
        model.batch_secs.update(held[0])
        # What is queued for a model holds it, so that it is dropped when the last is answered.
        weakref.finalize(model, self._dropped.append, key)
        return model

    def infer(self, key: int, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return what a model answers.

        Raises:
          FeedError: the model refuses the feed.
          RuntimeError: it failed, or its process was lost again and again.
        """
        num_lost = 0
        # A lane that is lost is not put back: those of the next process take its place. Some may
        # be of a process that was lost before.
        for _ in range(_MAX_LOST + self._num_lanes * len(self._processes)):
            if num_lost == _MAX_LOST:
                break
            if (lane := self._free.get()) is None:
                self._free.put(None)  # for the next who asks
                break
            try:
                _send(lane, (key, feed))
            except OSError:
                continue
            try:
                answer = _receive(lane)
            except (EOFError, OSError):
                num_lost += 1
                continue
            self._free.put(lane)
            return _show(answer)
        raise RuntimeError(
            "a batch got processes that were lost, expected an answer. Memory may have run out."
        )

    def close(self) -> None:
        """End the processes, also one that is just starting."""
        self._is_closed = True
        for process in list(self._processes.values()):
            process.process.kill()
        for thread in self._threads:
            thread.join()

    def _start(self, number: int, variables: Mapping[str, str]) -> None:
        self._processes[number] = process = _Process(variables, self._num_lanes, self._place)
        if self._is_closed:  # `close` may have looked before
            process.process.kill()
        try:
            self._update(process)
        except BaseException:
            process.process.kill()
            raise
        for lane in process.lanes:
            self._free.put(lane)

    def _update(self, process: _Process) -> None:
        """Give a process the models that it lacks, and take those that nobody needs."""
        for key in [*self._models.keys() - process.models.keys()]:
            _send(process.control, (key, self._models[key]))
            if not process.control.poll(_LOAD_SECS):
                process.process.kill()  # a hostile program may be read for ever
            process.models[key] = _show(_receive(process.control))
        for key in process.models.keys() - self._models.keys():
            _send(process.control, (key, None))
            _show(_receive(process.control))
            del process.models[key]

    def _try_to_update(self, process: _Process) -> None:
        with contextlib.suppress(EOFError, OSError):  # the next one gets them when it starts
            self._update(process)

    def _keep(self, number: int, variables: Mapping[str, str]) -> None:
        """Start a process again when it is lost, unless it never gets to its first call."""
        num_lost = 0
        while num_lost < _MAX_LOST:
            process = self._processes[number].process
            process.join()
            with self._lock:
                if self._is_closed:
                    return
                _LOGGER.error("worker %d was lost (exit status %s)", number, process.exitcode)
                try:
                    self._start(number, variables)
                    num_lost = 0
                # Its memory may not do for the models, or what runs beside it took the device.
                except Exception as error:
                    num_lost += 1
                    _LOGGER.error("worker %d did not get its models: %r", number, error)
        with self._lock:
            self._num_kept -= 1
        if not self._num_kept:  # until then the others answer what is asked
            self._free.put(None)
        self._on_failure()


class _Process:
    """A process, and the connections to it: one to load models, the others to call them."""

    def __init__(self, variables: Mapping[str, str], num_lanes: int, place: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(1 + num_lanes)]
        self.control, *self.lanes = [here for here, _ in pipes]
        self.models: dict[int, dict[int, float]] = {}  # by key, how long their batches take
        theirs = [there for _, there in pipes]
        self.process = context.Process(target=_work, args=(variables, place, theirs), daemon=True)
        self.process.start()
        # Where only the process has them, they end with it.
        for there in theirs:
            there.close()


def _work(
    variables: Mapping[str, str], place: str | None, connections: Sequence[Connection]
) -> None:
    """Load models and answer calls, until the server is gone."""
    # Devices are looked for when the first model is loaded; the platforms JAX has read already.
    os.environ.update(variables)
    if "JAX_PLATFORMS" in variables:
        jax.config.update("jax_platforms", variables["JAX_PLATFORMS"])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    models: dict[int, InferenceModel] = {}

    def load(key: int, parts: tuple[Any, ...] | None) -> dict[int, float] | None:
        if parts is None:
            del models[key]
            return None
        manifest, weights, programs, path, max_rows = parts
        model = InferenceModel(
            *(manifest, weights, programs), place=place, source=str(path), cache=choose_cache(path)
        )
        warm(model, max_rows)
        models[key] = model
        return model.batch_secs

    def infer(key: int, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return models[key].infer_columns(feed)

    control, *lanes = connections
    for lane in lanes:
        threading.Thread(target=_answer, args=(lane, infer), daemon=True).start()
    _answer(control, load)
    os._exit(0)  # an answer that nobody waits for may still be computed


def _answer(connection: Connection, function: Callable[..., object]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            arguments = _receive(connection)
            try:
                answer = function(*arguments)
            except (FeedError, ModelFileError) as error:
                answer = error.with_traceback(None)
            except Exception:
                answer = RuntimeError(f"in the process of the model: {traceback.format_exc()}")
            _send(connection, answer)


def _show(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def _send(connection: Connection, message: object) -> None:
    buffers: list[pickle.PickleBuffer] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        is_so = buffer.raw().nbytes < _SMALL_BYTES
        if not is_so:
            buffers.append(buffer)
        return is_so

    head = pickle.dumps(message, protocol=5, buffer_callback=is_small)
    # Large arrays go as they lie in memory, after their number.
    connection.send((head, len(buffers)))
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def _receive(connection: Connection) -> Any:
    head, num_buffers = connection.recv()
    return pickle.loads(head, buffers=[connection.recv_bytes() for _ in range(num_buffers)])
