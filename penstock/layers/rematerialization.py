"""`remat`: activations that are computed again when gradients need them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from penstock._program.frame import current_frame

P = ParamSpec("P")
T = TypeVar("T")


def remat(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function to keep its arguments and results for the gradients, and nothing between.

    What lies between is computed again in the backward pass: it takes less memory on accelerators
    (XLA undoes it on CPU), and more time for what it wraps. The numbers are the same. Layers inside
    have the names, parameters, dropout and running statistics that they have without it. flax
    modules do not work inside; they have `flax.linen.remat`. Source: `jax.checkpoint`.

    Arguments:
      function: takes and returns arrays, or pytrees of them.

    >>> import optax, penstock as ps
    >>> from penstock import layers
    >>> @layers.remat
    ... def block(x):
    ...     return x + layers.dropout(layers.fc(x, size=4, act="relu"), 0.1)
    >>> def program():
    ...     return layers.mean(block(block(layers.data("x", shape=[4]))))
    >>> builder = ps.ProgramBuilder(program, optax.sgd(0.1))
    >>> sorted(builder.init().variables["params"])
    ['fc_0', 'fc_1']
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        frame = current_frame("remat")
        bound = functools.partial(function, **kwargs)
        # A probe has no gradients.
        if frame.is_probe:
            return bound(*args)
        return frame.run_transformed(jax.checkpoint, bound, *args)

    return run
