"""Compare what a layer gives a batch of sequences with what each example gives by itself."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock._program.frame import Frame, open_frame
from penstock._program.sequences import Sequence

GARBAGE = 1e9
"""What stands in the padding, far from every value."""

SPARE = 2
"""Places of padding behind the longest example."""

Layer = Callable[..., Any]
Rows = Mapping[str, list[np.ndarray]]


def make_frame(
    params: Any = None, num_examples: int = 1, key: Any = None, *, is_probe: bool = False
) -> Frame:
    return Frame(
        mode="train",
        variables={"params": jax.tree.map(jnp.asarray, params or {})},
        feed=None if is_probe else {},
        batch_size=num_examples,
        key=jax.random.key(0) if key is None else key,
    )


def run(layer: Callable[[], Any], params: Any, num_examples: int, key: Any = None) -> Any:
    """Return what a layer gives in training with these parameters."""
    with open_frame(make_frame(params, num_examples, key)):
        return layer()


def pad(rows: list[np.ndarray], length: int) -> Sequence:
    """Return arrays `[length, ...]` in one sequence, with garbage behind each."""
    values = np.full((len(rows), length, *rows[0].shape[1:]), GARBAGE).astype(rows[0].dtype)
    for padded, row in zip(values, rows, strict=True):
        padded[: len(row)] = row
    return Sequence(jnp.asarray(values), jnp.array([len(row) for row in rows], jnp.int32))


def join(rows: Rows) -> dict[str, Any]:
    """Return sequences with garbage in their padding; what is called `v` are vectors `[B, D]`."""
    return {
        name: jnp.stack(parts) if name == "v" else pad(parts, max(map(len, parts)) + SPARE)
        for name, parts in rows.items()
    }


def draw_params(layer: Layer, rows: Rows) -> Any:
    """Return random parameters of a layer; nothing compiles."""
    params: dict[str, Any] = {}
    inputs = join(rows)
    with open_frame(make_frame(None, count(rows), is_probe=True)) as frame:
        jax.eval_shape(lambda inputs: layer(**inputs), inputs)
    random = np.random.default_rng(0)
    for path, spec in frame.specs.items():
        node = params
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = 0.5 * random.standard_normal(spec.shape).astype(np.float32)
    return params


def count(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def weigh(out: jax.Array) -> jax.Array:
    """Return the sum of one example's numbers, each with a weight of its own."""
    return jnp.sum(out.astype(jnp.float32) * jnp.sin(1.0 + jnp.arange(out.size)).reshape(out.shape))


def single(name: str, row: Any) -> Any:
    """Return one example as a batch, at its own length; an empty one has a place of padding."""
    if name == "v":
        return row[None]
    values = row if len(row) else jnp.zeros([1, *row.shape[1:]], row.dtype)
    return Sequence(values[None], jnp.array([len(row)], jnp.int32))


def mask(out: Any) -> jax.Array:
    return out.masked() if isinstance(out, Sequence) else out


def cut(out: Any) -> list[np.ndarray]:
    return out.cut() if isinstance(out, Sequence) else list(np.asarray(out))


def check(
    layer: Layer,
    rows: Rows,
    params: Any = None,
    expect: Layer | None = None,
    *,
    tolerance: float = 1e-5,
) -> Any:
    """Check results and gradients for every example; return the results of the batch.

    Arguments:
      layer: takes the inputs by name, and returns an array `[B, ...]` or a sequence.
      rows: the examples of each input.
      params: of the layer; drawn at random by default.
      expect: takes the parameters and the inputs of one example by name, and returns what it gives;
        by default the layer itself gives that.
    """
    params = draw_params(layer, rows) if params is None else params
    examples = [{name: parts[n] for name, parts in rows.items()} for n in range(count(rows))]
    inputs = join(rows)
    floats = [name for name, parts in rows.items() if parts[0].dtype.kind == "f"]

    def alone(params: Any, **example: Any) -> Any:
        batch = {name: single(name, row) for name, row in example.items()}
        return run(lambda: layer(**batch), params, 1)

    @jax.jit
    def together(values, params):
        def total(values, params):
            batch = {
                name: held if name not in values else values[name] if name == "v"
                else held.with_values(values[name])
                for name, held in inputs.items()
            }  # fmt: skip
            out = run(lambda: layer(**batch), params, len(examples))
            return jnp.sum(jax.vmap(weigh)(mask(out))), out

        return jax.grad(total, (0, 1), has_aux=True)(values, params)

    @jax.jit
    def apart(values, params):
        def total(values, params):
            batches = [{**e, **v} for e, v in zip(examples, values, strict=True)]
            if expect is None:
                outs = [alone(params, **batch) for batch in batches]
                return sum(weigh(mask(out)[0]) for out in outs), outs
            outs = [expect(params, **batch) for batch in batches]
            return sum(map(weigh, outs)), [
                *(out[None] for out in outs),
                alone(params, **batches[0]),
            ]

        return jax.grad(total, (0, 1), has_aux=True)(values, params)

    held = {name: inputs[name] if name == "v" else inputs[name].values for name in floats}
    (gradients, of_params), out = together(held, params)
    (own, to_params), expected = apart([{n: e[n] for n in floats} for e in examples], params)
    close: Any = {"rtol": tolerance, "atol": tolerance}
    steep: Any = {"rtol": 10 * tolerance, "atol": 5 * tolerance}
    for n, (actual, wanted) in enumerate(zip(cut(out), expected, strict=False)):
        (wanted,) = cut(wanted)
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, **close, err_msg=f"example {n}")
        for name, gradient in own[n].items():
            actual = np.asarray(gradients[name][n])
            length = len(gradient)
            np.testing.assert_allclose(actual[:length], gradient, **steep, err_msg=name)
            assert not actual[length:].any(), f"padding of {name}"
    if expect is not None:
        np.testing.assert_allclose(*cut(expected[-1]), cut(out)[0], **close, err_msg="alone")
    values = np.asarray(out.values if isinstance(out, Sequence) else out)
    assert values.dtype.kind != "f" or np.isfinite(values).all()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **steep), of_params, to_params)
    return out
