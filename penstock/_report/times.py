"""Where the time of a run goes, counted from its events."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from penstock.events import BeginEpoch, BeginTraining, EndEpoch, EndStep, EndTraining, Event

_COMPILATIONS = logging.getLogger("penstock.compilations")
_SECONDS: Sequence[str] = ("steps", "data_wait", "measure", "compile", "between")


class RunTimes:
    """Count seconds of `steps`, of `data_wait` and `measure` in them, `compile`, `between` epochs.

    What is measured are gradients and updates, see `Gradients`; between epochs are tests and
    saving. Call it with every event. A new run, whose
    `secs` should begin at 0, and one that goes on, are told apart by who calls it.

    >>> times = RunTimes()
    >>> times.secs = {"steps": 2.0}
    >>> times.secs
    {'steps': 2.0, 'data_wait': 0.0, 'measure': 0.0, 'compile': 0.0, 'between': 0.0}
    """

    def __init__(self) -> None:
        self._secs: dict[str, float] = dict.fromkeys(_SECONDS, 0.0)
        self._mark = self._measured = 0.0
        self._is_in_epoch = False
        self._compilations = _Compilations()

    @property
    def secs(self) -> dict[str, float]:
        """The seconds so far, by name; may be set, to go on from."""
        return {**self._secs}

    @secs.setter
    def secs(self, secs: Mapping[str, float]) -> None:
        self._secs = {name: float(secs.get(name, 0.0)) for name in _SECONDS}

    def __call__(self, event: Event) -> None:
        """Count the seconds since the last event that ends a part."""
        match event:
            case EndStep():
                self._measured += event.measure_secs
            case BeginTraining():
                self._compilations.start()
                self._mark, self._is_in_epoch = time.perf_counter(), False
                self._measured = 0.0
            case BeginEpoch():
                self._count(is_epoch=False)
                self._is_in_epoch = True
            case EndEpoch():
                self._count(is_epoch=True, data_wait=event.data_wait)
                self._is_in_epoch = False
            case EndTraining():
                self._count(is_epoch=self._is_in_epoch)
                self._compilations.stop()

    def _count(self, *, is_epoch: bool, data_wait: float | None = None) -> None:
        now, compiling = time.perf_counter(), self._compilations.take()
        measured, self._measured = self._measured, 0.0
        secs = max(now - self._mark - compiling - measured, 0.0)
        self._mark = now
        waited = secs * (data_wait or 0.0)
        self._secs["compile"] += compiling
        self._secs["data_wait"] += waited
        self._secs["measure"] += measured
        self._secs["steps" if is_epoch else "between"] += secs - waited


class _Compilations(logging.Handler):
    """Add up the seconds of compilations, which the builder logs."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._secs = 0.0
        self._before: tuple[int, bool] | None = None

    def start(self) -> None:
        # A training that ended before its `EndTraining` left things as they were then.
        self.stop()
        self._secs = 0.0
        _COMPILATIONS.addHandler(self)
        if not _COMPILATIONS.isEnabledFor(logging.INFO):
            self._before = _COMPILATIONS.level, _COMPILATIONS.propagate
            _COMPILATIONS.setLevel(logging.INFO)
            # Else a user's own logging would print what it left out until now.
            _COMPILATIONS.propagate = False

    def stop(self) -> None:
        _COMPILATIONS.removeHandler(self)
        if self._before is not None:
            level, _COMPILATIONS.propagate = self._before
            _COMPILATIONS.setLevel(level)
            self._before = None

    def take(self) -> float:
        secs, self._secs = self._secs, 0.0
        return secs

    def emit(self, record: logging.LogRecord) -> None:
        # "compiled %s in %.1f s": the line before it, "compiling %s ...", has no number.
        if isinstance(record.args, tuple) and isinstance(record.args[-1], float):
            self._secs += record.args[-1]
