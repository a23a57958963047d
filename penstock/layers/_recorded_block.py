"""The computation inside a `with` block, as a function that can be run again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.typing import DTypeLike


class RecordedBlock:
    """Record what runs inside a `with` block as a function of inputs that are named there.

    JAX traces functions, and Python runs a block once, where it stands. So another thread traces a
    function that waits, and the block runs with that function's trace as the current one. What the
    block uses from outside becomes constants of the trace. Inputs are such constants too, which
    `call` puts values in place of: the block may name them in any order.

    >>> block = RecordedBlock()
    >>> with block:
    ...     x = block.input((2,), "float32")
    ...     block.return_values([2 * x])
    >>> block.call([jnp.array([1.0, 3.0])])[0].tolist()
    [2.0, 6.0]
    """

    def __init__(self) -> None:
        # JAX promises nothing of `jax.extend` from one version to the next.
        if not hasattr(core, "set_current_trace"):
            raise NotImplementedError(
                f"a block of layers.DynamicRNN or StaticRNN got JAX {jax.__version__}, expected "
                "jax.extend.core.set_current_trace in it. It runs the block as a loop. Use "
                "layers.dynamic_rnn, which takes a function."
            )
        self._placeholders: list[jax.Array] = []
        self._values: list[jax.Array] = []
        self._jaxpr: Any = None
        self._failure: BaseException | None = None
        self._is_tracing, self._is_left = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._trace_jaxpr, daemon=True)
        self._outer: Any = None
        self._inner: Any = None
        self._context: Any = None

    def _trace_jaxpr(self) -> None:
        def wait() -> list[jax.Array]:
            with core.take_current_trace() as self._inner:
                self._is_tracing.set()
                self._is_left.wait()
            return self._values

        try:
            self._jaxpr = jax.make_jaxpr(wait)()
        except BaseException as failure:  # raised again in the thread of the block
            self._failure = failure
            self._is_tracing.set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_tracing.wait()
        self._raise_failure()
        with core.take_current_trace() as self._outer:
            pass
        self._context = core.set_current_trace(self._inner)
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._context.__exit__(kind, error, traceback)
        if error is not None:
            self._values = []
        self._is_left.set()
        self._thread.join()
        # No cycle through a trace that has ended: JAX would report it as leaked.
        self._context = self._inner = self._outer = None
        if error is None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def outside(self) -> Any:
        """Return a context in which operations belong to what is around the block."""
        return core.set_current_trace(self._outer)

    def is_inside(self, value: object) -> bool:
        """Return whether a value was computed in the block, and so means nothing around it."""
        return self._inner is not None and getattr(value, "_trace", None) is self._inner

    def input(self, shape: Sequence[int], dtype: DTypeLike) -> jax.Array:
        """Return a new input, in the block; its number is the count of those before."""
        with self.outside():
            placeholder = jnp.zeros(shape, dtype)
        self._placeholders.append(placeholder)
        # A value of the block's trace: used behind the block, JAX refuses it.
        return jnp.copy(placeholder)

    def return_values(self, values: Sequence[jax.Array]) -> None:
        """Set what `call` returns, in the block."""
        self._values = [jnp.asarray(value) for value in values]

    def call(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """Return what the block computes of these inputs."""
        values = {id(p): x for p, x in zip(self._placeholders, inputs, strict=True)}
        constants = [values.get(id(constant), constant) for constant in self._jaxpr.consts]
        return core.jaxpr_as_fun(core.ClosedJaxpr(self._jaxpr.jaxpr, constants))()
