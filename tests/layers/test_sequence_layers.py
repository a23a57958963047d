"""Layers of sequences: padding never counts, and each is what its formula says in numpy loops."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from penstock._program.frame import Frame, open_frame
from penstock._program.sequences import Sequence
from tests.layers.programs import normal

X_LENGTHS, Y_LENGTHS = (5, 0, 1, 3), (1, 3, 0, 2)
WIDTH = 4
ONES = np.ones(len(X_LENGTHS), np.int32)


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to call a layer.

    Attributes:
      call: takes sequences x and y of words `[WIDTH]`, and vectors v `[B, WIDTH]`; with parameters
        the layer is called `layer`.
      expect: takes `[n, WIDTH]`, `[m, WIDTH]` and `[WIDTH]` of one example, and parameters by name;
        returns what the example gives, in numpy.
      parameters: their shapes.
      lengths: of x.
      is_smooth: whether results are differentiated.
    """

    call: Callable[[Sequence, Sequence, jax.Array], Any]
    expect: Callable[..., np.ndarray]
    parameters: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    lengths: tuple[int, ...] = X_LENGTHS
    is_smooth: bool = True


def pool(kind: Any, expect: Callable[[np.ndarray], np.ndarray]) -> Case:
    return Case(
        lambda x, y, v: layers.sequence_pool(x, kind),
        lambda x, y, v: expect(x) if len(x) else np.zeros(WIDTH),
    )


def first_number(x: Sequence) -> Sequence:
    return x.map(lambda rows: rows[:, :1])


def ids(x: Sequence) -> Sequence:
    return x.map(lambda rows: jnp.floor(10 * rows[:, :1]).astype(jnp.int32))


def expect_softmax(x: np.ndarray) -> np.ndarray:
    powers = [np.exp(number) for number in x]
    return np.asarray([power / sum(powers) for power in powers]).reshape(x.shape)


def expect_conv(x, y, v, w, b, start, act=np.asarray):
    size = len(w) // WIDTH
    out = np.tile(b, (len(x), 1)).astype(float)
    for t in range(len(x)):
        for k in range(size):
            place = t + start + k
            if 0 <= place < len(x):
                out[t] += x[place] @ w[k * WIDTH : (k + 1) * WIDTH]
    return act(out)


def expect_row_conv(x, y, v, w):
    out = np.zeros_like(x)
    for t in range(len(x)):
        for j in range(len(w)):
            if t + j < len(x):
                out[t] += w[j] * x[t + j]
    return out


def expect_windows(x, y, v, size, fill):
    numbers = [int(np.floor(10 * row[0])) for row in x]
    rows = [[*numbers[t : t + size], *[fill] * (t + size - len(x))] for t in range(len(x))]
    return np.asarray(rows, np.int32).reshape(len(x), size)


def conv_of(size: int, start: int | None, act: Any) -> Case:
    functions = {None: np.asarray, "tanh": np.tanh}
    at = -(size // 2) if start is None else start
    return Case(
        lambda x, y, v: layers.sequence_conv(
            x, 3, size, act=act, name="layer", padding_start=start
        ),
        functools.partial(expect_conv, start=at, act=functions[act]),
        {"w": (size * WIDTH, 3), "b": (3,)},
    )


def slice_words(x: Sequence, y: Sequence, v: jax.Array) -> Sequence:
    offset = jnp.minimum(x.lengths, 1)
    return layers.sequence_slice(x, offset, (x.lengths - offset).reshape(-1, 1))


CASES = {
    "sum": pool("sum", lambda x: x.sum(0)),
    "average": pool("average", lambda x: x.sum(0) / len(x)),
    "sqrt": pool("sqrt", lambda x: x.sum(0) / np.sqrt(len(x))),
    "max": pool("max", lambda x: x.max(0)),
    "last": pool("last", lambda x: x[-1]),
    "first": pool("first", lambda x: x[0]),
    "softmax": Case(
        lambda x, y, v: layers.sequence_softmax(first_number(x)),
        lambda x, y, v: expect_softmax(x[:, :1]),
    ),
    "softmax of rows": Case(
        lambda x, y, v: layers.sequence_softmax(x.map(lambda rows: rows[:, 0])),
        lambda x, y, v: expect_softmax(x[:, 0]),
    ),
    "conv 3": conv_of(3, None, "tanh"),
    "conv 4": conv_of(4, None, None),
    "conv 1": conv_of(1, None, None),
    "conv of earlier words": conv_of(3, -2, None),
    "conv of later words": conv_of(2, 7, None),
    "row_conv": Case(
        lambda x, y, v: layers.row_conv(x, 2, name="layer"), expect_row_conv, {"w": (3, WIDTH)}
    ),
    "expand vectors": Case(
        lambda x, y, v: layers.sequence_expand(v, y), lambda x, y, v: np.tile(v, (len(y), 1))
    ),
    "expand words": Case(
        lambda x, y, v: layers.sequence_expand(x, y, ref_level=0),
        lambda x, y, v: np.tile(x, (len(y), 1)) if len(x) else x,
        lengths=(1, 0, 1, 1),
    ),
    "concat": Case(
        lambda x, y, v: layers.sequence_concat([x, y, x]),
        lambda x, y, v: np.concatenate([x, y, x]),
    ),
    "concat of one": Case(lambda x, y, v: layers.sequence_concat([y]), lambda x, y, v: y),
    "reshape narrower": Case(
        lambda x, y, v: layers.sequence_reshape(x, 2), lambda x, y, v: x.reshape(-1, 2)
    ),
    "reshape wider": Case(
        lambda x, y, v: layers.sequence_reshape(x, 6),
        lambda x, y, v: x.reshape(-1, 6),
        lengths=(3, 0, 6, 3),
    ),
    "reverse": Case(lambda x, y, v: layers.sequence_reverse(x), lambda x, y, v: x[::-1]),
    "pad and unpad": Case(
        lambda x, y, v: layers.sequence_unpad(*layers.sequence_pad(x, 0.5, maxlen=7)),
        lambda x, y, v: x,
    ),
    "pad": Case(
        lambda x, y, v: layers.sequence_pad(x, 2.0, maxlen=7)[0],
        lambda x, y, v: np.concatenate([x, np.full((7 - len(x), WIDTH), 2.0)]),
    ),
    "pad with a word": Case(
        lambda x, y, v: layers.sequence_pad(x, jnp.arange(4.0), maxlen=5)[0],
        lambda x, y, v: np.concatenate([x, np.tile(np.arange(4.0), (5 - len(x), 1))]),
    ),
    "reset": Case(
        lambda x, y, v: layers.lod_reset(2 * x.values, x), lambda x, y, v: 2 * x
    ),
    "slice": Case(slice_words, lambda x, y, v: x[1:]),
    "mask": Case(
        lambda x, y, v: layers.sequence_mask(x, 6),
        lambda x, y, v: np.arange(6) < len(x),
        is_smooth=False,
    ),
    "enumerate": Case(
        lambda x, y, v: layers.sequence_enumerate(ids(x), 3, 99),
        functools.partial(expect_windows, size=3, fill=99),
        is_smooth=False,
    ),
    "conv and pool": Case(
        lambda x, y, v: layers.sequence_conv_pool(x, 3, 3, name="layer", pool_type="sqrt"),
        lambda x, y, v, w, b: (
            expect_conv(x, y, v, w, b, -1, lambda z: 1 / (1 + np.exp(-z))).sum(0)
            / np.sqrt(max(len(x), 1))
        ),
        {"w": (3 * WIDTH, 3), "b": (3,)},
    ),
}  # fmt: skip
SMOOTH = [name for name, case in CASES.items() if case.is_smooth]


def run(case: Case, parameters: Any, x: Sequence, y: Sequence, v: jax.Array) -> Any:
    """Call a layer with parameters of known values."""
    batch = x.values.shape[0]
    frame = Frame(
        mode="infer",
        variables={"params": {"layer": parameters}},
        feed={},
        batch_size=batch,
        key=jax.random.key(0),
    )
    with open_frame(frame):
        return case.call(x, y, v)


def make_parameters(case: Case) -> dict[str, np.ndarray]:
    return {leaf: normal(*shape, seed=7) for leaf, shape in case.parameters.items()}


def make_examples(case: Case) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return x `[n, WIDTH]`, y `[m, WIDTH]` and v `[WIDTH]` of each example."""
    return [
        (normal(n, WIDTH, seed=i), normal(m, WIDTH, seed=10 + i), normal(WIDTH, seed=20 + i))
        for i, (n, m) in enumerate(zip(case.lengths, Y_LENGTHS, strict=True))
    ]


def join(rows: list[np.ndarray], length: int) -> Sequence:
    """Return a sequence with garbage in its padding."""
    values = np.full((len(rows), length, *rows[0].shape[1:]), 1e9, np.float32)
    for number, row in enumerate(rows):
        values[number, : len(row)] = row
    return Sequence(jnp.asarray(values), jnp.asarray([len(row) for row in rows], jnp.int32))


def join_examples(examples: Any, spare: int = 0) -> tuple[Sequence, Sequence, jax.Array]:
    xs, ys, vs = zip(*examples, strict=True)
    # Without spare places an example alone is at its own length; an empty one has one place.
    x, y = (join(list(s), max(1, *map(len, s), 0) + spare) for s in (xs, ys))
    return x, y, jnp.stack(vs)


def cut(out: Any) -> list[np.ndarray]:
    return out.cut() if isinstance(out, Sequence) else list(np.asarray(out))


@pytest.mark.parametrize("name", CASES)
def test_each_example_gives_what_the_formula_says(name):
    case, parameters = CASES[name], make_parameters(CASES[name])
    examples = make_examples(case)
    out = jax.jit(functools.partial(run, case))(parameters, *join_examples(examples, spare=2))
    for actual, example in zip(cut(out), examples, strict=True):
        expected = case.expect(*example, **parameters)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def weigh(case: Case, parameters: Any, x: Any, y: Any, v: Any, weights: Any) -> jax.Array:
    """Return what is valid of a result, weighed, as a scalar to differentiate."""
    out = run(case, parameters, x, y, v)
    if isinstance(out, Sequence):
        weights = weights.reshape(len(weights), -1)[:, : out.values[0].size]
        out = Sequence(out.values * weights.reshape(out.values.shape), out.lengths).masked()
        return jnp.sum(out)
    return jnp.sum(out * weights.reshape(len(weights), -1)[:, : out[0].size].reshape(out.shape))


def differentiate(case: Case, parameters: Any, examples: Any, weights: Any, spare: int) -> Any:
    x, y, v = join_examples(examples, spare)

    def function(parameters: Any, x_values: jax.Array, y_values: jax.Array, v: jax.Array) -> Any:
        x_and_y = x.with_values(x_values), y.with_values(y_values)
        return weigh(case, parameters, *x_and_y, v, weights)

    return jax.jit(jax.value_and_grad(function, argnums=(0, 1, 2, 3)))(
        parameters, x.values, y.values, v
    )


@pytest.mark.parametrize("name", SMOOTH)
def test_each_example_has_the_gradient_that_it_has_alone(name):
    case, parameters = CASES[name], make_parameters(CASES[name])
    examples = make_examples(case)
    weights = normal(len(examples), 100, seed=3)
    _, (of_parameters, *batched) = differentiate(case, parameters, examples, weights, 2)
    total = jax.tree.map(np.zeros_like, parameters)
    for number, example in enumerate(examples):
        _, (own, *alone) = differentiate(
            case, parameters, [example], weights[number : number + 1], 0
        )
        total = jax.tree.map(np.add, total, own)
        for actual, expected, value in zip(batched, alone, example, strict=True):
            if value.ndim == 1:
                np.testing.assert_allclose(actual[number], expected[0], rtol=1e-5, atol=1e-5)
                continue
            length = len(value)
            np.testing.assert_allclose(
                actual[number, :length], expected[0, :length], rtol=1e-5, atol=1e-5
            )
            assert not np.asarray(actual[number, length:]).any()
    for leaf, expected in total.items():
        np.testing.assert_allclose(of_parameters[leaf], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_gradient_of_softmax_is_what_differences_say():
    # It takes the largest score for a constant.
    case, examples = CASES["softmax"], make_examples(CASES["softmax"])
    weights = normal(len(X_LENGTHS), 100, seed=3)
    _, (_, of_x, *_) = differentiate(case, {}, examples, weights, 2)
    place, step = (0, 2, 0), 1e-2
    x, y, v = join_examples(examples, 2)
    ends = [x.with_values(x.values.at[place].add(sign * step)) for sign in (-1, 1)]
    low, high = (weigh(case, {}, end, y, v, weights) for end in ends)
    np.testing.assert_allclose(of_x[place], (high - low) / (2 * step), atol=1e-2)


@pytest.mark.slow
def test_first_of_equal_words_has_the_gradient_of_the_maximum():
    x = Sequence(jnp.asarray([[0.0, 2, 2, 1, 2, 9]]), jnp.asarray([5]))
    gradient = jax.grad(lambda v: layers.sequence_pool(x.with_values(v), "max").sum())(x.values)
    assert gradient.tolist() == [[0, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize("place", range(3))
def test_nan_among_words_is_their_maximum(place):
    values = jnp.zeros([1, 5]).at[0, place].set(jnp.nan)
    words = Sequence(jnp.concatenate([values, jnp.full([1, 5], jnp.nan)]), jnp.asarray([3, 0]))
    np.testing.assert_array_equal(layers.sequence_pool(words, "max"), [np.nan, 0])


@pytest.mark.parametrize(
    "name", ["concat", "expand vectors", "reshape narrower", "reverse", "slice"]
)
def test_words_that_moved_leave_zeros_behind_them(name):
    case = CASES[name]
    out = run(case, {}, *join_examples(make_examples(case), spare=2))
    assert not np.where(out.aligned_mask(), 0, out.values).any()


def test_integers_are_pooled_as_integers():
    words = Sequence(jnp.asarray([[-3, -2, 9], [9, 9, 9]]), jnp.asarray([2, 0]))
    assert layers.sequence_pool(words, "max").tolist() == [-2, 0]
    assert layers.sequence_pool(words, "sum").tolist() == [-5, 0]
    assert layers.sequence_pool(words, "average").tolist() == [-2.5, 0]


def test_sums_of_bfloat16_are_computed_in_float32():
    words = Sequence(jnp.ones([1, 1000, 1], jnp.bfloat16), jnp.asarray([1000]))
    for kind in ("sum", "average", "sqrt"):
        assert layers.sequence_pool(words, kind).dtype == jnp.bfloat16
    assert layers.sequence_pool(words, "average").item() == 1
    weights = layers.sequence_softmax(words)
    assert weights.values.dtype == jnp.bfloat16
    assert abs(weights.values.astype(jnp.float32).sum() - 1) < 1e-2


def test_softmax_of_large_scores_is_finite():
    scores = Sequence(jnp.asarray([[1e30, 1e30, -1e30]]), jnp.asarray([3]))
    assert layers.sequence_softmax(scores).values.tolist() == [[0.5, 0.5, 0]]


@pytest.mark.parametrize("padding", [0, 1, ((0, 1), (2, 0))])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_windows_of_images_are_cut_row_by_row(data_format, padding):
    image = normal(2, 5, 6, 3)
    given = image if data_format == "NHWC" else image.transpose(0, 3, 1, 2)
    words = layers.im2sequence(given, (2, 3), (1, 2), padding, data_format=data_format)
    sides = padding if isinstance(padding, tuple) else [(padding, padding)] * 2
    padded = np.pad(image, [(0, 0), *sides, (0, 0)])
    for number, actual in enumerate(words.cut()):
        expected = [
            padded[number, i : i + 2, j : j + 3]
            for i in range(0, padded.shape[1] - 1, 1)
            for j in range(0, padded.shape[2] - 2, 2)
        ]
        if data_format == "NCHW":
            expected = [window.transpose(2, 0, 1) for window in expected]
        np.testing.assert_array_equal(actual, [window.ravel() for window in expected])
