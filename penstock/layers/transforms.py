"""Program functions that are transformed: computed again for gradients, or run many times."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from penstock._errors import ProgramError, check_int
from penstock._program.frame import current_frame, widen
from penstock._program.sequences import Sequence

P = ParamSpec("P")
T = TypeVar("T")


def monte_carlo(function: Callable[P, Any], num_samples: int) -> Callable[P, dict[str, Any]]:
    """Wrap a function to run it many times, each with random numbers of its own.

    Inside, `layers.dropout`, `layers.drop_path` and the dropout of attention drop in test and infer
    as in training (Gal and Ghahramani 2016), and `layers.random_key` and its like draw anew each
    time, for augmentation. Batch norm keeps its running statistics. The runs follow each other, and
    take the memory of one. They have one set of parameters: those of the function called once.

    Arguments:
      function: takes arrays and returns an array of floats, or a pytree of them.
      num_samples: how often it is run.

    Returns:
      A function that returns `{"mean": ..., "deviation": ...}`, each like what `function` returns.
      The deviation is that of the answers themselves, in their own units: of 20 answers it is the
      root of the mean square of 20 distances from the mean.

    >>> def network():
    ...     return layers.fc(layers.dropout(layers.data("x", shape=[2]), 0.5), size=3)
    >>> builder = ps.ProgramBuilder(infer_func=layers.monte_carlo(network, num_samples=20))
    >>> answer = builder.infer(builder.init(), {"x": [[1.0, 2.0]]})
    >>> answer["mean"].shape, bool((answer["deviation"] > 0).all())
    ((1, 3), True)
    """
    check_int("num_samples", num_samples, 1)

    def run(*args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        frame = current_frame("monte_carlo")
        key = frame.key

        def transform(body: Callable[..., Any]) -> Callable[[], Any]:
            def draw(number: jax.Array) -> tuple[Any, ...]:
                with frame.drawing(jax.random.fold_in(key, number)):
                    answer, updates, *notes = body()
                if updates:
                    raise ProgramError(
                        "layers.monte_carlo got a function that moves running statistics in "
                        "training, expected one that leaves them. They would move once for each "
                        "sample. Use it in infer_func, or freeze batch norm."
                    )
                return answer, updates, *notes

            def run() -> tuple[Any, ...]:
                answers, *notes = jax.lax.map(draw, jnp.arange(num_samples))
                # All samples are of the same words.
                return answers, *jax.tree.map(lambda x: x[0], notes)

            return run

        answers = frame.run_transformed(transform, lambda: function(*args, **kwargs))
        means = jax.tree.map(lambda x: _reduce(jnp.mean, x), answers, is_leaf=_is_sequence)
        spread = jax.tree.map(lambda x: _reduce(jnp.std, x), answers, is_leaf=_is_sequence)
        return {"mean": means, "deviation": spread}

    return run


def _is_sequence(x: object) -> bool:
    return isinstance(x, Sequence)


def _reduce(function: Callable[..., jax.Array], answers: Any) -> Any:
    if _is_sequence(answers):
        return Sequence(_reduce(function, answers.values), answers.lengths[0])
    if not jnp.issubdtype(answers.dtype, jnp.floating):
        raise ProgramError(
            f"layers.monte_carlo got an answer of dtype {answers.dtype}, expected floats. There is "
            "no mean of classes. Return probabilities, and take their argmax after it."
        )
    # The square of a distance may be more than float16 holds.
    return function(widen(answers), axis=0).astype(answers.dtype)


def remat(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function to keep its arguments and results for the gradients, and nothing between.

    What lies between is computed again in the backward pass: it takes less memory on accelerators
    (XLA undoes it on CPU), and more time for what it wraps. The numbers are the same. Layers inside
    have the names, parameters, dropout and running statistics that they have without it. flax
    modules do not work inside; they have `flax.linen.remat`. Source: `jax.checkpoint`.

    Arguments:
      function: takes and returns arrays, or pytrees of them.

    >>> import optax
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
