"""Batches without a timer: what came while the last batches ran is the next one."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from penstock._errors import FeedError
from penstock.serving._metrics import ModelMetrics
from penstock.serving._tensors import Feed, Request, RequestError, check_lengths

if TYPE_CHECKING:
    from penstock.inference_model import HostModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server takes.

    Arguments:
      batch_rows: of a batch, and so of a request.
      batches: that run at a time. With one, a request waits for all of the batch before: p99 at
        half load is 4.3 times the function's own time instead of 2.4 (MobileNet v1:
        `python -m benchmarks serving --network=mobilenet_v1_050 --split_cores`).
      sequence_words: of a sequence; each longer one would make the model's memory grow with it.
      queue_requests: requests that wait for a model; one more is answered with 503.
      queue_secs: seconds in the queue, after which a request is answered with 504.
      body_bytes: of a request; a larger one is answered with 413.
      all_bodies_bytes: of all requests at a time; one more is answered with 503.
      receive_secs: seconds for the body to arrive, after which a request is answered with 408.
      header_bytes: of the headers of a request; more are answered with 431.

    >>> Limits(body_bytes=1 << 20).queue_requests
    256
    """

    batch_rows: int = 64
    batches: int = 2
    sequence_words: int = 4096
    queue_requests: int = 256
    queue_secs: float = 30.0
    body_bytes: int = 32 << 20
    all_bodies_bytes: int = 256 << 20
    receive_secs: float = 30.0
    header_bytes: int = 16 << 10


@dataclasses.dataclass(eq=False)
class _Job:
    """Rows that wait for a model.

    Arguments:
      model: the one that they were read for: it answers, also where another has taken its place.
      answer: the outputs `[B, ...]` by name; cancelled where nobody waits for them.
    """

    model: HostModel
    feed: Feed
    answer: asyncio.Future[Mapping[str, np.ndarray]]
    since: float = dataclasses.field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.rows = len(next(iter(self.feed.values())))
        # Jobs that are alike in this can be one batch; sequences of any lengths are.
        self.form = [
            (name, (x.dtype, x.shape[1:]) if isinstance(x, np.ndarray) else None)
            for name, x in self.feed.items()
        ]

    def is_like(self, other: _Job) -> bool:
        """Whether both can be one batch."""
        return self is other or (
            self.model is other.model
            and self.form == other.form
            and self.model.manifest.takes_padding
        )


class Batcher:
    """The queue of a model, and the threads that run it.

    Everything but the threads themselves is called in the event loop.
    """

    def __init__(self, metrics: ModelMetrics, limits: Limits) -> None:
        self._metrics, self._limits = metrics, limits
        self._loop = asyncio.get_running_loop()
        self._jobs, self._num_preparing = deque[_Job](), 0
        # A picture takes memory, and decoding a core.
        self._preparing = ThreadPoolExecutor(os.cpu_count(), "penstock-prepare")
        self._wake = threading.Condition()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, name="penstock-serve", daemon=True)
            for _ in range(limits.batches)
        ]
        for thread in self._threads:
            thread.start()

    async def infer(self, model: HostModel, request: Request) -> Mapping[str, np.ndarray]:
        """Return what a model answers to a request.

        Raises:
          RequestError: the queue is full, or the request was in it for too long.
          FeedError: the model refuses the feed.
        """
        most = self._limits.queue_requests
        if self._is_closed or len(self._jobs) + self._num_preparing >= most:
            expected = f"fewer than {most} in the queue"
            raise RequestError(f"the server got too many requests, expected {expected}.", 503)
        is_prepared, feed = bool(request.examples), request.feed
        deadline = self._loop.time() + self._limits.queue_secs
        self._num_preparing += is_prepared
        try:
            if is_prepared:
                prepare = partial(model.prepare, request.examples)
                async with asyncio.timeout_at(deadline):
                    feed = await self._loop.run_in_executor(self._preparing, prepare)
            check_lengths(feed, self._limits.sequence_words)
            job = _Job(model, feed, self._loop.create_future())
            timer = self._loop.call_at(deadline, self._expire, job)
            with self._wake:
                self._jobs.append(job)
                self._metrics.queue_length = len(self._jobs)
        except TimeoutError as error:
            raise self._refuse_late() from error
        finally:
            with self._wake:
                self._num_preparing -= is_prepared
                self._wake.notify_all()
        try:
            return await job.answer
        finally:
            timer.cancel()
            if job.answer.cancelled():  # its client has gone
                self._remove(job)

    def _remove(self, job: _Job) -> bool:
        """Take a job out of the queue, where it still is in it."""
        with self._wake:
            if job not in self._jobs:
                return False
            self._jobs.remove(job)
            self._metrics.queue_length = len(self._jobs)
            return True

    def _expire(self, job: _Job) -> None:
        # What runs is answered.
        if self._remove(job) and not job.answer.done():
            job.answer.set_exception(self._refuse_late())

    def _refuse_late(self) -> RequestError:
        text = f"the queue got {self._limits.queue_secs:g} s, expected less until it is the turn."
        return RequestError(text, 504)

    async def close(self) -> None:
        """Answer what is queued and end the thread."""
        with self._wake:
            self._is_closed = True
            self._wake.notify_all()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._preparing.shutdown(wait=False)

    def _run(self) -> None:
        while True:
            with self._wake:
                # What is being prepared when the queue is closed is answered too.
                self._wake.wait_for(
                    lambda: self._jobs or (self._is_closed and not self._num_preparing)
                )
                if not self._jobs:
                    return
                batch = self._take()
            start = time.perf_counter()
            answers = _compute(batch)
            seconds = time.perf_counter() - start
            self._loop.call_soon_threadsafe(self._hand_out, batch, answers, start, seconds)
            # An idle thread would hold the last batch, and the model that it was for.
            del batch, answers

    def _take(self) -> list[_Job]:
        """Take the jobs of the next batch out of the queue: those that are like the oldest."""
        first = self._jobs[0]
        alike = [job for job in self._jobs if job.is_like(first)]
        waiting = min(sum(job.rows for job in alike), self._limits.batch_rows)
        rows, most = 0, max(_choose_rows(first.model, waiting), first.rows)
        batch: list[_Job] = []
        for job in alike:
            if rows + job.rows <= most:
                batch.append(job)
                rows += job.rows
        # None waits for ever: the oldest of the others begins the next batch.
        taken = set(map(id, batch))
        self._jobs = deque(job for job in self._jobs if id(job) not in taken)
        self._metrics.queue_length = len(self._jobs)
        return batch

    def _hand_out(
        self,
        batch: Sequence[_Job],
        answers: Sequence[Mapping[str, np.ndarray] | Exception],
        start: float,
        seconds: float,
    ) -> None:
        histograms = self._metrics.histograms
        histograms["batch_rows"].note(sum(job.rows for job in batch))
        histograms["compute_seconds"].note(seconds)
        for job, answer in zip(batch, answers, strict=True):
            histograms["queue_seconds"].note(start - job.since)
            if job.answer.done():
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)


def _choose_rows(model: HostModel, waiting: int) -> int:
    """Return how many of the rows that wait are the next batch: the most at a good rate.

    A batch is padded to a power of two, and on CPUs a large one may take longer than its halves.
    """

    def rate(rows: int) -> float:
        return rows / model.batch_secs.get(1 << (rows - 1).bit_length(), math.inf)

    sizes = [waiting, *sorted((n for n in model.batch_secs if n < waiting), reverse=True)]
    best = max(map(rate, sizes))
    # Measurements are no better than that.
    return next(rows for rows in sizes if rate(rows) >= 0.9 * best)


def _compute(batch: Sequence[_Job]) -> list[Mapping[str, np.ndarray] | Exception]:
    """Return what a model answers to each job of a batch."""
    model = batch[0].model
    try:
        if len(batch) == 1:
            return [model.infer_columns(batch[0].feed)]
        columns = model.infer_columns(_join(batch))
    # Whatever it is, the loop goes on.
    except Exception as error:
        # One of them may be at fault.
        if len(batch) > 1:
            return [answer for job in batch for answer in _compute([job])]
        if not isinstance(error, FeedError):
            logging.getLogger("penstock.serving").exception("the model %r failed", model.name)
        return [error]
    ends = np.cumsum([job.rows for job in batch])
    rows = {field.name: field.rows for field in model.outputs}
    return [
        {name: x[(end - job.rows) * rows[name] : end * rows[name]] for name, x in columns.items()}
        for job, end in zip(batch, ends, strict=True)
    ]


def _join(batch: Sequence[_Job]) -> Feed:
    """Return the feed of a batch: that of its jobs, one after the other."""
    columns = {name: [job.feed[name] for job in batch] for name in batch[0].feed}
    return {
        name: np.concatenate(parts) if isinstance(parts[0], np.ndarray) else list(chain(*parts))
        for name, parts in columns.items()
    }
