"""Every operation that is converted gives in ONNX Runtime what it gives in JAX."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from penstock import ExportError
from penstock.onnx_export import check, convert

INPUTS: dict[str, tuple[list[int], str]] = {
    "x": ([4, 6], "float32"),
    "image": ([9, 8, 4], "float32"),
    "ids": ([3], "int32"),
    "pixels": ([4, 4], "uint8"),
}
WEIGHTS = {"table": np.arange(30, dtype=np.float32).reshape(10, 3), "scale": np.float32(0.5)}


def make_feed(batch_size: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch_size)
    return {
        "x": random.normal(size=(batch_size, 4, 6)).astype(np.float32),
        "image": random.normal(size=(batch_size, 9, 8, 4)).astype(np.float32),
        "ids": random.integers(-3, 14, size=(batch_size, 3)).astype(np.int32),
        "pixels": random.integers(0, 255, size=(batch_size, 4, 4)).astype(np.uint8),
    }


def find_kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def elementwise(w: Any, f: Any) -> list[Any]:
    x, small = f["x"], jnp.tanh(f["x"]) * 0.9
    of_one = [jnp.exp, jnp.exp2, jnp.log1p, jnp.expm1, lax.logistic, lax.erf, lax.erfc, jnp.sqrt]
    of_one += [lax.rsqrt, jnp.abs, jnp.sign, jnp.floor, jnp.ceil, jnp.round, jnp.sin, jnp.cos]
    of_one += [jnp.tan, jnp.arcsin, jnp.arccos, jnp.arctan, jnp.sinh, jnp.cosh, jnp.arcsinh]
    of_one += [jnp.arctanh, jnp.square, jnp.log, jnp.isfinite, lax.round, jnp.negative]
    positive = {jnp.sqrt, lax.rsqrt, jnp.log}
    results = [g(jnp.abs(small) + 0.1 if g in positive else small) for g in of_one]
    # Numbers that half a one more would round.
    results += [lax.round(8388609 + 2 * jnp.floor(x)), lax.round(0.49999997 * jnp.sign(x))]
    results += [jnp.arccosh(1.5 + small), x**3, x**2, jnp.abs(x) ** w["scale"], jnp.clip(x, -1, 1)]
    return [*results, jax.nn.relu6(x), jax.nn.gelu(x), jax.nn.softplus(x), x / (2 + small)]


def compared(w: Any, f: Any) -> list[Any]:
    x, ids, pixels = jnp.round(f["x"]), f["ids"], f["pixels"]  # some numbers are equal
    y = x[:, ::-1]
    results = [x == y, x != y, x < y, x > y, x <= y, x >= y, (x > 0) & (y > 0), (x > 0) | (y > 0)]
    results += [~(x > 0), (x > 0) ^ (y > 0), jnp.where(x > 0, x, y), jnp.maximum(x, y)]
    results += [jnp.where(x > 0, y > 0, x > 1), lax.select_n(jnp.clip(ids, 0, 2), ids, -ids, ids)]
    results += [ids // 2, ids % 3, lax.rem(ids, jnp.int32(3)), lax.div(ids, jnp.int32(2)), ids & 6]
    return [*results, jnp.minimum(pixels, 100), pixels.astype(jnp.float32) / 255]


def dtypes(w: Any, f: Any) -> list[Any]:
    x = f["x"]
    kept = jax.checkpoint_name(x, "kept") if hasattr(jax, "checkpoint_name") else x
    return [(10 * x).astype(jnp.int32), (x > 0).astype(jnp.float32), f["ids"].astype(bool), kept]


def reductions(w: Any, f: Any) -> list[Any]:
    x, is_large = f["x"], f["x"] > 0
    results = [x.sum(2), x.max((1, 2)), x.min(1), x.prod(2), x.mean(1, keepdims=True), x.var(2)]
    results += [is_large.any(1), is_large.all(2), is_large.sum(1), is_large.max(1)]
    results += [x.argmax(2), x.argmin(1), is_large.argmax(2), f["ids"].sum(1), f["ids"].max(1)]
    return [*results, jax.nn.softmax(x), jnp.cumsum(x, 1), lax.cumsum(f["ids"], 1, reverse=True)]


def shapes(w: Any, f: Any) -> list[Any]:
    x = f["x"]
    size = x.shape[0]
    results = [x.reshape(-1, 6), x.reshape(size, -1), x.reshape(-1, 2, 6).reshape(size, 4, 6)]
    results += [x.transpose(0, 2, 1), x[:, None], jnp.broadcast_to(x[:, :1], (size, 5, 6))]
    results += [jnp.broadcast_to(jnp.float32(2), (size, 3)), jnp.zeros((size, 2)) + x[:, 0, :2]]
    results += [jnp.concatenate([x, 2 * x], 1), jnp.stack([x, x + 1], 2), *jnp.split(x, 3, axis=2)]
    results += [x[:, 1:3, ::2], x[:, ::-1], jnp.pad(x, ((0, 0), (1, 2), (0, 1))), jnp.flip(x, 2)]
    results += [lax.pad(x, 1.0, ((0, 0, 0), (-1, 2, 0), (1, -2, 2))), x[:, 0], x[:, -1, 2:4]]
    results += [jnp.arange(size) + f["ids"][:, 0], lax.broadcasted_iota(jnp.int32, (size, 2), 1)]
    return [*results, x.sum() / size, jnp.ones((300, 300)) * x.max(), *lax.split(x, [1, 3], 1)]


def lookups(w: Any, f: Any) -> list[Any]:
    x, ids, places = f["x"], f["ids"], jnp.clip(f["ids"], 0, 3)
    results = [jnp.take(w["table"], ids, axis=0), jnp.take(w["table"], ids, axis=0, mode="clip")]
    results += [w["table"].at[ids].get(mode="fill", fill_value=-1), x[:, jnp.array([2, 0])]]
    results += [
        jnp.take_along_axis(x, places[:, :, None], axis=1),
        x[:, ids[0, 0]],
        w["table"][ids],
    ]
    results += [x[jnp.arange(x.shape[0]), places[:, 0]], x[:, 1, jnp.array([0, 3])], x[:, 2, 1:3]]
    results += [jnp.take(jnp.arange(10) > 4, ids), jnp.take(jnp.arange(10, dtype="uint32"), ids)]
    results += [lax.dynamic_slice_in_dim(x, ids[0, 1], 2, axis=1), jnp.take(x, places[0], axis=2)]
    results += [jnp.sort(x, axis=1), jnp.argsort(x, axis=2), *lax.top_k(x, 3)]
    return [*results, jax.nn.one_hot(places, 4), jax.vmap(lambda row, i: row[i])(x, places[:, 0])]


def updates(w: Any, f: Any) -> list[Any]:
    x, ids = f["x"], f["ids"]
    size, i = x.shape[0], ids[0, 0]
    results = [x.at[:, 0].set(0.0), x.at[:, 1:3].set(2.0), x.at[:, 1:3, 2].add(1.0)]
    results += [x.at[jnp.arange(size), ids[:, 0]].set(5.0), x.at[:, ids[0]].add(1.0)]
    results += [x.at[jnp.arange(size), ids[:, 0]].max(0.5), x.at[..., 0, :2].multiply(3.0)]
    results += [
        x.at[:, ids[0]].min(0.0, mode="clip"),
        jnp.zeros((size, 9)).at[:, i].set(x[:, 0, 0]),
        # What is dropped leaves the last row to what is put there.
        jnp.zeros((size, 4)).at[:, 0 * i + jnp.array([3, 7])].set(x[:, 0, :2]),
    ]
    results += [lax.dynamic_update_slice(x, x[:, :2, :3] * 2, (0, i, ids[0, 1]))]
    return [*results, lax.dynamic_update_slice(x, x * 2, (i, i, i))]


def products(w: Any, f: Any) -> list[Any]:
    x, table = f["x"], jnp.linspace(0, 1, 24, dtype=jnp.float32).reshape(6, 4)
    results = [x @ table, jnp.einsum("bij,bkj->bik", x, x), jnp.einsum("bij,ji->b", x, table)]
    results += [jnp.tensordot(x, table, [[1], [1]]), jnp.einsum("bij,bik,jl->bkl", x, x, table)]
    return [
        *results,
        jnp.einsum("bi,cj->bicj", x[:, 0], table),
        f["ids"] @ jnp.eye(3, dtype="int32"),
    ]


def convolve(
    image: Any, kernel_shape: tuple[int, ...], padding: Any = "SAME", **options: Any
) -> Any:
    size = int(np.prod(kernel_shape))
    kernel = jnp.sin(jnp.arange(size, dtype=jnp.float32)).reshape(kernel_shape)
    options = {"window_strides": (1, 1), "dimension_numbers": ("NHWC", "HWIO", "NHWC"), **options}
    return lax.conv_general_dilated(image, kernel, padding=padding, **options)


def convolutions(w: Any, f: Any) -> list[Any]:
    x = f["image"]
    rows = {"window_strides": (2,), "dimension_numbers": ("NHC", "HIO", "NHC")}
    channels_first = {"dimension_numbers": ("NCHW", "OIHW", "NHWC")}
    odd = [(2, 1), (-1, 3)]
    results = [convolve(x, (3, 3, 4, 5), window_strides=(2, 1)), convolve(x, (2, 3, 4, 2), odd)]
    results += [convolve(x, (3, 3, 1, 8), feature_group_count=4, rhs_dilation=(2, 2))]
    results += [convolve(x, (5, 9, 3, 2), **channels_first), convolve(x[:, 0], (3, 4, 2), **rows)]
    spread = {"lhs_dilation": (2, 3), "padding": [(1, 2), (4, 0)]}
    results += [convolve(x, (3, 2, 4, 5), **spread)]
    results += [convolve(x, (2, 2, 2, 6), **spread, feature_group_count=2)]
    return [*results, convolve(x, (3, 3, 4, 2), **spread, window_strides=(2, 2))]


def pools(w: Any, f: Any) -> list[Any]:
    x, ids = f["image"], f["ids"]
    windows = (1, 3, 2, 1), (1, 2, 2, 1)
    padding = ((0, 0), (1, 1), (0, 1), (0, 0))
    results = [lax.reduce_window(x, -jnp.inf, lax.max, *windows, padding)]
    results += [lax.reduce_window(x, jnp.inf, lax.min, *windows, padding)]
    results += [lax.reduce_window(x, 0.0, lax.add, *windows, padding)]
    results += [lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 2), (1, 1, 1, 2), "VALID")]
    wide = ((0, 0), (2, 2), (0, 0), (0, 0))
    results += [lax.reduce_window(x, 0.0, lax.add, (1, 2, 1, 1), (1, 1, 1, 1), wide)]
    least = jnp.iinfo(ids.dtype).min
    return [*results, lax.reduce_window(ids, least, lax.max, (1, 2), (1, 1), "VALID")]


def loops(w: Any, f: Any) -> list[Any]:
    x, ids = f["x"], f["ids"]
    table = jnp.full((6, 6), w["scale"])

    def step(carry: Any, row: Any) -> Any:
        carry = jnp.tanh(carry @ table + row)
        return carry, (carry, row.sum(1))

    rows, zeros = x.swapaxes(0, 1), jnp.zeros((x.shape[0], 6))
    last, (states, sums) = lax.scan(step, zeros, rows)
    back = lax.scan(step, zeros, rows, reverse=True)[1][0]
    counted = lax.fori_loop(0, 3, lambda i, y: y * 2 + i, x)
    doubled = lax.while_loop(lambda y: jnp.max(y) < 50, lambda y: 2 * y, jnp.abs(x) + 1)
    branches = [lambda y: y + 1, lambda y: y * 2, lambda y: -y]
    chosen = lax.switch(jnp.clip(ids[0, 0], 0, 2), branches, x)
    running = [lax.cummax(x, 1), lax.cummin(ids, 1, reverse=True), lax.cumprod(x, 2)]
    for_cpus = lax.platform_dependent(x, cpu=lambda y: y + 3, default=lambda y: y)
    checkpointed = jax.checkpoint(lambda y: jnp.sin(y) * 2)(x)
    return [last, states, sums, back, counted, doubled, chosen, *running, for_cpus, checkpointed]


GROUPS: list[Callable[[Any, Any], list[Any]]] = [
    *(elementwise, compared, dtypes, reductions, shapes, lookups, updates, products),
    *(convolutions, pools, loops),
]


@pytest.mark.quick("lookups", "convolutions", "shapes", "reductions", "loops", "pools", "dtypes")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_operations_give_in_onnx_what_they_give_in_jax(group):
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return tuple(group(weights, feed))

    count = len(jax.eval_shape(function, WEIGHTS, make_feed(2)))
    model = convert(function, WEIGHTS, INPUTS, [f"{group.__name__}_{n}" for n in range(count)])
    onnx.checker.check_model(model, full_check=True)
    for batch_size in (1, 3):
        assert check(model, jax.jit(function), WEIGHTS, make_feed(batch_size), 1e-5) < 1e-5


def test_bfloat16_becomes_float32():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return (feed["x"].astype(jnp.bfloat16) @ jnp.asarray(weights["table"], jnp.bfloat16),)

    weights = {"table": jnp.linspace(0, 1, 12, dtype=jnp.bfloat16).reshape(6, 2)}
    model = convert(function, weights, INPUTS, ["y"])
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in kinds
    assert check(model, function, weights, make_feed(3), 1e-2) > 1e-5


def test_weights_keep_their_names_and_what_depends_on_them_alone_is_computed():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return (feed["x"] @ weights["layer"]["w"] * jnp.exp(weights["layer"]["scale"]),)

    weights = {"layer": {"w": np.ones([6, 2], np.float32), "scale": np.float32(1)}}
    graph = convert(function, weights, {"x": ([6], "float32")}, ["y"], batch="n").graph
    assert [node.op_type for node in graph.node] == ["MatMul", "Mul", "Identity"]
    assert graph.initializer[0].name == "layer/w"
    assert [size.dim_param for size in graph.output[0].type.tensor_type.shape.dim] == ["n", ""]


def test_an_operation_without_a_rule_is_an_error_that_names_it_and_the_line():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return (jnp.fft.fft(feed["x"]).real,)

    with pytest.raises(ExportError, match=r"got the operation 'fft' of .*test_operations\.py:\d+"):
        convert(function, {}, INPUTS, ["y"])


def test_an_error_inside_a_rule_tells_the_line():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return (lax.sort([feed["x"], feed["x"] * 2], num_keys=2)[0],)

    with pytest.raises(ExportError, match="a sort got num_keys=2, expected 1") as caught:
        convert(function, {}, INPUTS, ["y"])
    assert re.match(r"In the operation 'sort' of .*test_operations\.py", caught.value.__notes__[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda _, feed: (jnp.ones(len(feed["x"])),),
        lambda _, feed: (feed["x"] * 2 if feed["x"].shape[0] > 2 else feed["x"],),
    ],
    ids=["len", "if"],
)
def test_a_function_that_asks_for_a_free_size_is_an_error(function):
    with pytest.raises(ExportError, match="asks for a free size as a number"):
        convert(function, {}, INPUTS, ["y"])


def test_sizes_are_computed_from_those_of_the_inputs():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        x, (size, length, _) = feed["x"], feed["x"].shape
        pairs = jnp.broadcast_to(x[:1, 0, 0], [3 * size * size + size])
        halves = jnp.broadcast_to(x[:1, 0, :1], [size // 2 + 1, (3 * size + length - 2) % 4 + 1])
        cut = x[: -(-size // 2), : length - 1]
        return pairs, halves, x.reshape(size * length, -1), cut

    inputs = {"x": (["length", 6], "float32")}
    model = convert(function, {}, inputs, ["pairs", "halves", "rows", "cut"])
    shape = model.graph.output[2].type.tensor_type.shape.dim
    assert [size.dim_param or size.dim_value for size in shape] == ["batch*length", 6]
    for batch_size in (1, 3):
        assert (
            check(model, function, {}, {"x": make_feed(batch_size)["x"][:, : batch_size + 1]}) == 0
        )


def test_inputs_of_int64_are_taken_as_such():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return feed["ids"] + jnp.arange(3)[None], feed["x"] + feed["ids"][:, :1, None]

    inputs = {"x": INPUTS["x"], "ids": ([3], "int64")}
    model = convert(function, {}, inputs, ["taken", "sum"])
    assert model.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.INT64
    feed = make_feed(2)
    assert check(model, function, {}, feed | {"ids": feed["ids"].astype(np.int64)}) < 1e-6


def test_names_of_weights_do_not_meet_those_of_inputs_and_outputs():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        w = weights["x"]
        return feed["x"] @ w + weights["add_2"], feed["x"] @ w[:, ::-1].T @ weights["y"]

    random = np.random.default_rng(0)
    weights = {name: random.normal(size=[6, 6]).astype(np.float32) for name in ("x", "y")}
    weights["add_2"] = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    model = convert(function, weights, INPUTS, ["y", "matmul_3"])
    assert check(model, function, weights, make_feed(2)) < 1e-5


def test_check_names_the_output_that_differs():
    model = convert(lambda _, feed: (feed["x"], feed["x"] * 2), {}, INPUTS, ["same", "other"])
    with pytest.raises(ExportError, match="the output 'other' of the ONNX model got a difference"):
        check(model, lambda _, feed: (feed["x"], feed["x"] * 2.01), {}, make_feed(2))


@pytest.mark.parametrize(
    "function",
    [
        lambda f: jnp.pad(f["x"], ((0, 0), (1, 2), (3, 0)), mode="edge"),
        lambda f: f["x"][:, :0].reshape(f["x"].shape[0], 0, 3),
        lambda f: (f["x"] * 1000).astype(jnp.uint8),
        lambda f: (f["x"] * 1e10).astype(jnp.int32),
        lambda f: (f["x"] * jnp.inf).astype(jnp.uint32),
        lambda f: jax.nn.softmax(jnp.where(f["x"] > 0, jnp.inf, f["x"])),
        lambda f: jnp.maximum(f["x"] * jnp.inf, 0.5) + jnp.minimum(-f["x"] * jnp.inf, 0.5),
        lambda f: jnp.maximum(f["x"], jnp.nan),
        lambda f: lax.clamp(jnp.float32(2), f["x"], jnp.float32(1)),
        lambda f: jax.vmap(
            lambda row: lax.while_loop(lambda y: jnp.max(y) < 9, lambda y: 2 * y, jnp.abs(row) + 1)
        )(f["x"]),
        lambda f: jnp.concatenate(
            [
                rows.reshape(-1, 6)
                for rows in lax.scan(lambda y, _: (2 * y, 3 * y), f["x"][:, 0], None, length=0)
            ]
        ),
        lambda f: jnp.tile(f["x"], (2, 1, 3)).at[:, f["ids"][0]].subtract(2.0),
        lambda f: jnp.minimum(f["x"] > 0, f["x"] > 1),
        lambda f: f["pixels"].sum(1),
        lambda f: lax.reduce_window(
            f["x"], 0.0, lax.add, (1, 2, 1), (1, 1, 1), [(0, 0), (-1, 1), (0, 0)]
        ),
        lambda f: lax.reduce_window(
            f["ids"] + (2**30 + 1), jnp.iinfo("int32").min, lax.max, (1, 2), (1, 1), "VALID"
        ),
    ],
    ids=[
        *("edges", "empty", "saturated uint8", "saturated int32", "infinite"),
        *("softmax of infinite", "bounds of infinite", "nan as a bound", "bounds that cross"),
        *("condition of each example", "scan of nothing", "repeats less a number"),
        *("booleans", "sum of uint8", "negative padding", "pooled integers"),
    ],
)
def test_an_unusual_operand_gives_in_onnx_what_it_gives_in_jax(function):
    model = convert(lambda _, feed: (function(feed),), {}, INPUTS, ["y"])
    feed = make_feed(3)
    assert check(model, lambda _, feed: (function(feed),), {}, feed, 1e-9) == 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda f: f["x"].at[:, 1].apply(jnp.exp), "an update at indices got a function"),
        (
            lambda f: lax.reduce(f["ids"], -1, lax.bitwise_and, (1,)),
            "a reduction got bits of 'int32', expected",
        ),
        (
            lambda f: lax.reduce_precision(f["x"], 5, 3),
            r"\(exponent, mantissa\) \(5, 3\), expected",
        ),
    ],
)
def test_what_has_no_counterpart_in_onnx_is_an_error(function, message):
    with pytest.raises(ExportError, match=message):
        convert(lambda _, feed: (function(feed),), {}, INPUTS, ["y"])


def test_what_onnx_runtime_does_not_load_is_an_error():
    def function(weights: Any, feed: Any) -> tuple[Any, ...]:
        return (lax.lt(feed["x"] > 0, feed["x"] > 1),)

    with pytest.raises(ExportError, match="ONNX Runtime got a model that it does not load"):
        check(convert(function, {}, INPUTS, ["y"]), function, {}, make_feed(2))
