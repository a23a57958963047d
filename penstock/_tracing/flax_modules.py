"""What flax modules do otherwise inside a program: they follow the example, not the device.

Their dropout draws by the examples' places in the global batch, as `layers.dropout` does. Their
batch norm normalises by the statistics of the valid examples of the global batch, as
`layers.batch_norm` does with `sync=True`: flax's own count padding, and average means of devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import linen as nn

from penstock._program import draws
from penstock._program.frame import Frame
from penstock.layers.batch_norm import has_example_axis, sync_statistics


def follow_examples(frame: Frame) -> contextlib.AbstractContextManager[None]:
    """Return the context in which modules know the examples of `frame`."""

    def intercept(
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: Any,
    ) -> object:
        module = context.module
        # A subclass with a call of its own does as it says.
        is_call = context.method_name == "__call__"
        if is_call and type(module).__call__ is nn.Dropout.__call__:
            return _drop(frame, module, call, *args, **kwargs)
        if is_call and type(module).__call__ is nn.BatchNorm.__call__:
            return _normalize(frame, module, call, *args, **kwargs)
        return call(*args, **kwargs)

    return nn.intercept_methods(intercept)


def _drop(
    frame: Frame,
    module: nn.Dropout,
    call: Callable[..., jax.Array],
    inputs: jax.Array,
    deterministic: bool | None = None,
    rng: jax.Array | None = None,
) -> jax.Array:
    is_off = module.deterministic if deterministic is None else deterministic
    # Nothing is drawn here; without either argument flax's own call raises.
    if is_off is None or is_off or module.rate in (0.0, 1.0):
        return call(inputs, deterministic, rng)
    key = module.make_rng(module.rng_collection) if rng is None else rng
    dims = module.broadcast_dims
    return draws.drop_elements(frame, inputs, key, module.rate, dims, tuple(module.path))


def _normalize(
    frame: Frame,
    module: nn.BatchNorm,
    call: Callable[..., jax.Array],
    x: jax.Array,
    use_running_average: bool | None = None,
    *,
    mask: jax.Array | None = None,
) -> jax.Array:
    is_running = module.use_running_average if use_running_average is None else use_running_average
    path = tuple(module.path)
    # A mask of the user's says which rows count, and flax follows it.
    if is_running is not False or mask is not None:
        return call(x, use_running_average, mask=mask)
    if not has_example_axis(frame, x, module.axis, path):
        return call(x, use_running_average)
    with _use_running_statistics(module):
        if module.is_initializing():  # on a probe: what it makes is asked for, not its values
            return call(x)
        running = tuple(module.get_variable("batch_stats", leaf) for leaf in ("mean", "var"))
        # flax is given the batch's statistics as if they were the running ones: normalisation,
        # dtypes and parameters remain its own.
        *batch, after = sync_statistics(frame, x, module.axis, running, module.momentum)
        _put(module, batch)
        y = call(x)
    # After the call, which has read the batch's in their place.
    _put(module, after)
    return y


@contextlib.contextmanager
def _use_running_statistics(module: nn.BatchNorm) -> Iterator[None]:
    # A module is frozen, and refuses the argument in a call where its constructor had it.
    before = module.use_running_average
    object.__setattr__(module, "use_running_average", True)
    try:
        yield
    finally:
        object.__setattr__(module, "use_running_average", before)


def _put(module: nn.BatchNorm, statistics: Sequence[jax.Array]) -> None:
    for leaf, value in zip(("mean", "var"), statistics, strict=True):
        module.put_variable("batch_stats", leaf, value)
