"""`Profile`: a trace of some steps, and a table of the slowest operations."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import jax

from penstock._errors import check_count
from penstock._files import expand_path
from penstock.events import BeginStep, BeginTraining, EndStep, EndTraining, Event
from penstock.handlers import _trace
from penstock.handlers._arguments import make_folder

_LOGGER = logging.getLogger("penstock")


class Profile:
    """Trace a few steps, and print the slowest operations of the device.

    The trace is in JAX's format: view it with `tensorboard --logdir DIRECTORY` and the package
    `xprof`, or open its `.trace.json.gz` at https://ui.perfetto.dev. The printed table is also in
    `operations.txt` beside the trace. It has the names of layers, if the compiler kept them.

    The device is waited for before and after the traced steps, so that the trace holds them
    completely and nothing else. It consists of whole launches: if a launch has several steps, it
    may have more than `num_steps`. It also ends when training ends. Each `Profile` makes one trace.

    Arguments:
      directory: the folder. Each trace has its own folder in `plugins/profile`, named by the time.
        If there are several processes, the others write to `process_1`, `process_2`, ...
      first_step: how many steps run before the trace; the first ones compile.
      num_steps: how many steps to trace. Traces grow large: a few steps are enough.
      top: how many operations to list.

    Raises:
      OSError: at `BeginTraining`, if the folder cannot be created.
      RuntimeError: from JAX, if another trace is running.

    >>> import tempfile
    >>> from penstock.events import BeginStep, EndStep, EndTraining
    >>> profile = Profile(tempfile.mkdtemp(), first_step=1, num_steps=2)
    >>> for step in range(3):
    ...     profile(BeginStep(epoch=0, step=step, global_step=step))
    ...     profile(EndStep(epoch=0, step=step, global_step=step))
    the operations of 2 steps, by the time they took on all devices:
    ...
    the trace is in ...
    >>> profile(EndTraining("completed"))
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        first_step: int = 10,
        num_steps: int = 5,
        top: int = 15,
    ) -> None:
        counts = [("first_step", first_step, 0), ("num_steps", num_steps, 1), ("top", top, 1)]
        for argument, value, least in counts:
            check_count(argument, value, least)
        self._directory = expand_path(directory)
        self._first_step, self._num_steps, self._top = first_step, num_steps, top
        self._num_done = self._num_traced = self._first_traced = 0
        self._is_tracing = self._is_done = False
        self._last: EndStep | None = None
        self._mark = contextlib.ExitStack()

    def __call__(self, event: Event) -> None:
        """Start the trace before its first step, and stop it after its last."""
        match event:
            case BeginTraining():
                make_folder("Profile", "directory", self._find_directory())
            case BeginStep():
                self._begin_step(event)
            case EndStep():
                self._end_step(event)
            case EndTraining():
                self._last = None
                if self._is_tracing:
                    self._stop()
                elif not self._is_done and event.error is None:
                    self._warn()

    def _warn(self) -> None:
        _LOGGER.warning(
            "Profile traced nothing: training ended after %d steps, and the trace begins after "
            "first_step=%d of them. Train for longer, or pass a smaller first_step.",
            self._num_done,
            self._first_step,
        )

    def _begin_step(self, event: BeginStep) -> None:
        # From one step before the window, whose metrics are waited for.
        if self._is_done or self._num_done + 1 < self._first_step:
            return
        event.fetch_metrics = True  # the window's edges wait for them
        if self._num_done >= self._first_step and not self._is_tracing:
            if self._last is not None:
                self._last.metrics  # noqa: B018  # reading waits for the steps before the window
                self._last = None
            self._start()
        if self._is_tracing and self._num_traced == self._num_done - self._first_traced:
            # The launch's first step: TensorBoard takes step times from such marks.
            mark = jax.profiler.StepTraceAnnotation("train", step_num=event.global_step)
            self._mark.enter_context(mark)
        self._num_traced += self._is_tracing

    def _end_step(self, event: EndStep) -> None:
        self._num_done += 1
        self._mark.close()
        if not self._is_tracing:
            self._last = None if self._is_done else event
        elif self._num_done >= self._first_traced + self._num_steps:
            event.metrics  # noqa: B018  # reading waits for the whole launch
            self._stop()

    def _start(self) -> None:
        options = jax.profiler.ProfileOptions()
        # Every call of a Python function would be an event: the file holds a million in all.
        options.python_tracer_level = 0
        jax.profiler.start_trace(os.fspath(self._find_directory()), profiler_options=options)
        self._is_tracing, self._first_traced = True, self._num_done

    def _find_directory(self) -> Path:
        # Files are called by the machine: two processes of one would write into the same.
        number = jax.process_index()
        return self._directory / f"process_{number}" if number else self._directory

    def _stop(self) -> None:
        self._is_tracing, self._is_done = False, True
        self._mark.close()
        jax.profiler.stop_trace()
        # Folders are called by the time: the last one is this trace's.
        folder = max((self._find_directory() / "plugins" / "profile").iterdir())
        operations = _trace.read_operations(folder)
        title = f"the operations of {self._num_traced} steps, by the time they took on all devices:"
        text = f"{title}\n{_trace.table(operations, self._top)}"
        (folder / "operations.txt").write_text(text + "\n")
        if not jax.process_index():
            print(f"{text}\nthe trace is in {folder}", flush=True)
