"""Compare what a layer gives a batch of sequences with what it gives each of them by itself."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock._program.frame import Frame, open_frame
from penstock._program.sequences import Sequence

GARBAGE = 1e9
"""What stands in the padding, far from every value."""

Layer = Callable[..., Any]


def run(layer: Callable[[], Any], params: Any, num_examples: int, key: Any = None) -> Any:
    """Return what a layer gives in a test program with these parameters."""
    frame = Frame(
        mode="test",
        variables={"params": jax.tree.map(jnp.asarray, params)},
        feed={},
        batch_size=num_examples,
        key=jax.random.key(0) if key is None else key,
    )
    with open_frame(frame):
        return layer()


def pad(rows: list[np.ndarray], length: int) -> Sequence:
    """Return arrays `[length, ...]` in one sequence, with garbage behind each."""
    values = np.full((len(rows), length, *rows[0].shape[1:]), GARBAGE).astype(rows[0].dtype)
    for padded, row in zip(values, rows, strict=True):
        padded[: len(row)] = row
    return Sequence(jnp.asarray(values), jnp.array([len(row) for row in rows], jnp.int32))


def check(
    layer: Layer, rows: Mapping[str, list[np.ndarray]], params: Any, *, tolerance: float = 1e-5
) -> Any:
    """Check results and gradients for every example; return the results of the batch.

    Arguments:
      layer: takes the inputs by name, and returns an array `[B, ...]` or a sequence.
      rows: the examples of each input.
      params: of the layer.
    """
    floats = [name for name, each in rows.items() if each[0].dtype.kind == "f"]
    size = len(next(iter(rows.values())))

    @jax.jit
    def with_gradients(inputs, params):
        def total(values, params):
            given = {
                name: each.with_values(values[name]) if name in values else each
                for name, each in inputs.items()
            }
            count = next(iter(inputs.values())).lengths.shape[0]
            out = run(lambda: layer(**given), params, count)
            summed = out.masked() if isinstance(out, Sequence) else out
            return jnp.sum(summed.astype(jnp.float32)), out

        values = {name: inputs[name].values for name in floats}
        return jax.grad(total, (0, 1), has_aux=True)(values, params)

    longest = {name: max(map(len, each)) + 2 for name, each in rows.items()}
    whole = {name: pad(each, longest[name]) for name, each in rows.items()}
    (gradients, of_params), out = with_gradients(whole, params)
    total = jax.tree.map(np.zeros_like, of_params)
    for number in range(size):
        alone = {name: pad([e[number]], max(len(e[number]), 1)) for name, e in rows.items()}
        (expected, its_part), result = with_gradients(alone, params)
        options: Any = {"rtol": tolerance, "atol": tolerance, "err_msg": f"example {number}"}
        np.testing.assert_allclose(one(out, number), one(result, 0), **options)
        for name in floats:
            length = len(rows[name][number])
            gradient = np.asarray(gradients[name][number])
            np.testing.assert_allclose(gradient[:length], expected[name][0, :length], **options)
            assert not gradient[length:].any()
        total = jax.tree.map(np.add, total, its_part)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=10 * tolerance),
        of_params,
        total,
    )
    return out


def one(out: Any, number: int) -> np.ndarray:
    """Return the result of one example, cut to its length."""
    if isinstance(out, Sequence):
        return np.asarray(out.values[number, : int(out.lengths[number])])
    return np.asarray(out[number])
