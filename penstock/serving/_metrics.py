"""The metrics of a server in Prometheus's text format."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate

CODES: tuple[int, ...] = (200, 400, 401, 404, 405, 408, 413, 415, 431, 499, 500, 503, 504)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "batch_rows": ("Rows of a batch; the sum is that of all rows.", [2**n for n in range(11)]),
    "queue_seconds": ("Seconds that a request waited for its batch.", _SECONDS),
    "compute_seconds": ("Seconds that the model took for a batch.", _SECONDS),
}


class _Histogram:
    """How many values are up to each bound and above all, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def note(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def render(self, name: str, labels: str) -> Iterator[str]:
        """Yield the lines of Prometheus, whose buckets hold what is in those before too."""
        for bound, count in zip([*self.bounds, "+Inf"], accumulate(self.counts), strict=True):
            yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
        yield f"{name}_sum{{{labels}}} {self.sum:.9g}"
        yield f"{name}_count{{{labels}}} {sum(self.counts)}"


class ModelMetrics:
    """What is counted of a model; only the event loop writes."""

    def __init__(self) -> None:
        self.codes = dict.fromkeys(CODES, 0)
        self.queue_length = 0
        self.histograms = {name: _Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}


class Metrics:
    """The metrics of a server, by model; those of no model are the server's own, `""`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.models = {name: ModelMetrics() for name in ("", *names)}

    def render(self) -> str:
        models = dict(self.models)
        lines = list(
            _head("requests_total", "counter", "Answers by HTTP status; 499: gone before.")
        )
        for name, model in models.items():
            lines += [
                f'penstock_requests_total{{model="{name}",code="{code}"}} {count}'
                for code, count in model.codes.items()
                if count
            ]
        del models[""]
        lines += _head("queue_length", "gauge", "Requests that wait for their batch.")
        lines += [
            f'penstock_queue_length{{model="{name}"}} {model.queue_length}'
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
