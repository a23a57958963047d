"""The metrics of a server in Prometheus's text format, summed over its processes."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

CODES = (200, 400, 401, 404, 405, 408, 413, 415, 431, 499, 500, 503, 504)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "batch_rows": ("Rows of a batch; the sum is that of all rows.", [2**n for n in range(11)]),
    "queue_seconds": ("Seconds that a request waited for its batch.", _SECONDS),
    "compute_seconds": ("Seconds that the model took for a batch.", _SECONDS),
}
_NUM_SLOTS = len(CODES) + 1 + sum(len(bounds) + 2 for _, bounds in _HISTOGRAMS.values())


class _Histogram:
    """How many values are up to each bound and above all, and their sum, in a row of slots."""

    def __init__(self, slots: np.ndarray, bounds: Sequence[float]) -> None:
        self.slots, self.bounds = slots, bounds

    def note(self, value: float) -> None:
        """Count a value."""
        self.slots[bisect.bisect_left(self.bounds, value)] += 1
        self.slots[-1] += value

    def render(self, name: str, labels: str) -> Iterator[str]:
        """Yield the lines of Prometheus, whose buckets hold what is in those before too."""
        counts = np.cumsum(self.slots[:-1])
        for bound, count in zip([*self.bounds, "+Inf"], counts, strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count:.0f}'
        yield f"{name}_sum{{{labels}}} {self.slots[-1]:.9g}"
        yield f"{name}_count{{{labels}}} {counts[-1]:.0f}"


class ModelMetrics:
    """What is counted of a model, in a row of slots; only one thread writes."""

    def __init__(self, slots: np.ndarray) -> None:
        self._codes = slots[: len(CODES)]
        self.queue_length = slots[len(CODES) : len(CODES) + 1]
        self.histograms: dict[str, _Histogram] = {}
        start = len(CODES) + 1
        for name, (_, bounds) in _HISTOGRAMS.items():
            end = start + len(bounds) + 2
            self.histograms[name] = _Histogram(slots[start:end], bounds)
            start = end

    def note_request(self, code: int) -> None:
        """Count an answer."""
        self._codes[CODES.index(code)] += 1

    def count_requests(self) -> Iterator[tuple[int, float]]:
        """Yield each code that was answered, and how often."""
        return ((code, count) for code, count in zip(CODES, self._codes, strict=True) if count)


class Metrics:
    """The metrics of a server, by model; those of no model are the server's own, `""`.

    Arguments:
      names: of the models.
      path: a file for the numbers of this process, in a folder of its own that the files of the
        server's other processes are in. A process that takes another's place counts on in its file.
    """

    def __init__(self, names: Sequence[str], path: Path | None = None) -> None:
        self._names, self._path = ("", *names), path
        shape = len(self._names), _NUM_SLOTS
        if path is None:
            self._slots = np.zeros(shape)
        else:
            mode = "r+" if path.exists() else "w+"
            self._slots = np.memmap(path, np.float64, mode, shape=shape)
        self.models = dict(zip(self._names, map(ModelMetrics, self._slots), strict=True))
        for model in self.models.values():
            model.queue_length[0] = 0

    def render(self) -> str:
        """Return them all in Prometheus's text format."""
        slots = self._slots
        if self._path is not None:
            files = [np.fromfile(each) for each in self._path.parent.iterdir()]
            # A process may be making its own right now.
            slots = np.sum([x for x in files if x.size == slots.size], 0).reshape(slots.shape)
        models = dict(zip(self._names, map(ModelMetrics, slots), strict=True))
        lines = list(
            _head("requests_total", "counter", "Answers by HTTP status; 499: gone before.")
        )
        for name, model in models.items():
            lines += [
                f'penstock_requests_total{{model="{name}",code="{code}"}} {count:.0f}'
                for code, count in model.count_requests()
            ]
        del models[""]
        lines += _head("queue_length", "gauge", "Requests that wait for their batch.")
        lines += [
            f'penstock_queue_length{{model="{name}"}} {model.queue_length[0]:.0f}'
            for name, model in models.items()
        ]
        for kind, (text, _) in _HISTOGRAMS.items():
            lines += _head(kind, "histogram", text)
            for name, model in models.items():
                lines += model.histograms[kind].render(f"penstock_{kind}", f'model="{name}"')
        return "\n".join([*lines, ""])


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP penstock_{name} {text}"
    yield f"# TYPE penstock_{name} {kind}"
