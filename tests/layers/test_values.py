"""Layers against numpy, scipy and flax: all in one program, each with parameters of its own."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import numpy as np
import pytest
import scipy.special as sp
from scipy.spatial.distance import cosine

from penstock import layers
from tests.layers.programs import Case, normal, run_all

X, Y, IMAGE = normal(2, 3, 6), normal(2, 3, 6, seed=1), normal(2, 7, 6, 4)
IDS = [np.random.default_rng(0).integers(0, 9, (2, *shape)).astype("i") for shape in ([1], [6, 1])]


def exactly(call: Callable[..., Any], expect: Callable[..., Any], *inputs: np.ndarray) -> Case:
    return Case(call, lambda p, *values: expect(*values), inputs, 0, 0)


def dense(x, p):
    return x @ p["w"] + p["b"]


def sum_products(p, x, y):
    assert (sorted(p), sorted(p["of"])) == (["of", "shared"], ["b", "w_1"])
    return x @ p["shared"] + y.reshape(2, 18) @ p["of"]["w_1"] + p["of"]["b"]


def normalise(p, x, *axes, epsilon=1e-5):
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt(x.var(axes, keepdims=True) + epsilon) * p["scale"] + p["bias"]


def standardise(p, x):
    assert not p
    return np.maximum(normalise({"scale": 1, "bias": 0}, x, 1, 2), 0)


def group_norm(p, x, groups):
    norm = nn.GroupNorm(num_groups=groups, epsilon=1e-5, use_fast_variance=False)
    return norm.apply({"params": p["of"]}, x)


def respond(p, x, size=5, alpha=0.3):
    """Divide each channel by what is around it."""
    around = [(x[..., max(c - 2, 0) : c + 3] ** 2).sum(-1) for c in range(x.shape[-1])]
    return x / (2 + alpha * np.stack(around, -1)) ** 0.75


def place(places, size):
    """Return rows of sines and cosines, as the paper has them."""
    exponents = np.arange(size) // 2 * 2 / size
    angles = np.reshape(places, (-1, 1)) / 10000**exponents
    return np.where(np.arange(size) % 2, np.cos(angles), np.sin(angles))


def lstm_unit(p, x, h, c):
    i, f, o, g = np.split(np.concatenate([x, h], 1) @ p["of"]["w"] + p["of"].get("b", 0), 4, axis=1)
    cell = sp.expit(f + 1.5) * c + sp.expit(i) * np.tanh(g)
    return sp.expit(o) * np.tanh(cell), cell


def gru_unit(p, x, h, is_origin):
    assert (p["of"]["w"].shape, p["of"]["b"].shape) == ((3, 9), (1, 9))
    w, x = p["of"]["w"], x + p["of"]["b"]
    u, r = np.split(sp.expit(x[:, :6] + h @ w[:, :6]), 2, axis=1)
    m = np.tanh(x[:, 6:] + (r * h) @ w[:, 6:])
    return u * h + (1 - u) * m if is_origin else (1 - u) * h + u * m, r * h, np.hstack([u, r, m])


def log_likelihood(x, label):
    return -np.take_along_axis(sp.log_softmax(x.astype(np.float64), -1), label, -1)


CASES = {
    "fc flattens the axes behind": Case(
        lambda x: layers.fc(x, 5, act="tanh", name="of"),
        lambda p, x: np.tanh(dense(x.reshape(2, 18), p["of"])),
        (X,),
    ),
    "fc keeps the axes in front": Case(
        lambda x: layers.fc(x, 5, 2, name="of"), lambda p, x: dense(x, p["of"]), (X,)
    ),
    "fc sums the products of several inputs and adds one bias": Case(
        lambda x, y: layers.fc([x, y], 5, param_attr=["shared", None], name="of"),
        sum_products,
        (X[:, 0], Y),
    ),
    "embedding": Case(
        lambda x, y: [layers.embedding(ids, [9, 4], name="of") for ids in (x, y, y[..., 0])],
        lambda p, x, y: [p["of"]["w"][ids[..., 0]] for ids in (x, y, y)],
        (*IDS,),
    ),
    "layer_norm of the last axis": Case(
        lambda x: layers.layer_norm(x, begin_norm_axis=-1, name="of"),
        lambda p, x: normalise(p["of"], x, 2),
        (X,),
    ),
    "layer_norm of the whole example": Case(
        lambda x: layers.layer_norm(x, epsilon=0.1, name="of"),
        lambda p, x: normalise(p["of"], x.reshape(2, 18), 1, epsilon=0.1).reshape(x.shape),
        (X,),
    ),
    "layer_norm without parameters": Case(
        lambda x: layers.layer_norm(x, scale=False, shift=False, act="relu"), standardise, (X,)
    ),
    **{
        f"group_norm of {n}": Case(
            lambda x, n=n: layers.group_norm(x, n, name="of"),
            lambda p, x, n=n: group_norm(p, x, n),
            (2 * IMAGE + 1,),
        )
        for n in (1, 2, 4)
    },
    "l2_normalize": Case(
        lambda x: layers.l2_normalize(x, axis=-1),
        lambda p, x: x / np.linalg.norm(x, axis=-1, keepdims=True),
        (X,),
        atol=0,
    ),
    "lrn": Case(
        lambda x: layers.lrn(x, 5, 2.0, 0.3, 0.75), respond, (normal(2, 3, 3, 7),), atol=0
    ),
    "concat": exactly(
        lambda x, y: [layers.concat([x, y], axis=axis) for axis in (2, -1)],
        lambda x, y: [np.dstack([x, y])] * 2,
        *(X, Y),
    ),
    "concat of parameters along axis 0 is no batch": Case(
        lambda x: x @ layers.concat(
            [layers.create_parameter([n, 2], name=f"w{n}") for n in (2, 4)], axis=0
        ),
        lambda p, x: x @ np.concatenate([p["w2"], p["w4"]]),
        (X[:, 0],),
    ),
    "topk": exactly(
        lambda x: (*layers.topk(x, k=2), layers.topk(X.tolist(), k=2)[1]),
        lambda x: (np.sort(x)[..., :-3:-1], *[np.argsort(x)[..., :-3:-1]] * 2),
        X,
    ),
    **{
        f"pad2d of {mode}": exactly(
            lambda x, mode=mode: layers.pad2d(x, [1, 2, 3, 0], mode, 7.0),
            lambda x, mode=mode, how=how: np.pad(x, [(0, 0), (1, 2), (3, 0), (0, 0)], mode, **how),
            IMAGE,
        )
        for mode, how in {"constant": {"constant_values": 7.0}, "reflect": {}, "edge": {}}.items()
    },
    "cos_sim": Case(
        lambda x, y: (layers.cos_sim(x, y), layers.cos_sim(x, Y[0, :1])),
        lambda p, x, y: (
            [[1 - cosine(a, b)] for a, b in zip(x, y, strict=True)],
            [[1 - cosine(a, y[0])] for a in x],
        ),
        (X[:, 0], Y[:, 0]),
        atol=0,
    ),
    "sinusoidal positions": Case(
        lambda x, n: (
            x + layers.sinusoidal_positions(3, 5)[None],
            layers.add_positions(x),
            layers.add_positions(x[:, :1], n),
        ),
        lambda p, x, n: (*[x + place(np.arange(3), 5)] * 2, x[:, :1] + place(n, 5)[:, None]),
        (X[..., :5], np.array([[3], [6]], np.int32)),
        atol=1e-6,
    ),
    "glu": Case(lambda x: layers.glu(x, dim=2), lambda p, x: nn.glu(x, axis=2), (X,), 1e-6, 0),
    **{
        f"lstm_unit of bias {bias}": Case(
            lambda x, h, c, bias=bias: layers.lstm_unit(x, h, c, 1.5, None, bias, name="of"),
            lstm_unit,
            (normal(2, 4), normal(2, 3, seed=1), normal(2, 3, seed=2)),
        )
        for bias in (None, False)
    },
    **{
        f"gru_unit of origin {origin}": Case(
            lambda x, h, origin=origin: layers.gru_unit(x, h, 9, origin_mode=origin, name="of"),
            lambda p, x, h, origin=origin: gru_unit(p, x, h, origin),
            (normal(2, 9), normal(2, 3, seed=1)),
        )
        for origin in (False, True)
    },
    "softmax_with_cross_entropy": Case(
        lambda x, y: [
            layers.softmax_with_cross_entropy(*pair)
            for pair in ((x, y), (x, y[..., 0]), (x[:, 0], y[:, 0]), (x[:, 0], y[:, 0, 0]))
        ],
        lambda p, x, y: [*[log_likelihood(x, y)] * 2, *[log_likelihood(x, y)[:, 0]] * 2],
        (normal(2, 6, 9), IDS[1]),
        *(1e-6, 0),
    ),
    "softmax_with_cross_entropy of soft labels": Case(
        lambda x, y: layers.softmax_with_cross_entropy(x, y, soft_label=True),
        lambda p, x, y: -np.sum(y * sp.log_softmax(x, -1), axis=-1, keepdims=True),
        (X, sp.softmax(Y, axis=-1)),
        atol=0,
    ),
    "cross_entropy": Case(
        layers.cross_entropy,
        lambda p, x, y: -np.log(np.take_along_axis(x.astype(np.float64), y, 1)),
        (sp.softmax(normal(2, 9), axis=-1), IDS[0]),
        atol=0,
    ),
    "cross_entropy of soft labels": Case(
        lambda x, y: layers.cross_entropy(x, y, soft_label=True),
        lambda p, x, y: -np.sum(y * np.log(x), axis=-1, keepdims=True),
        (sp.softmax(X[:, 0], axis=-1), sp.softmax(Y[:, 0], axis=-1)),
        atol=0,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    return run_all(CASES)


@pytest.mark.parametrize("name", CASES)
def test_layer_gives_its_formula(name, measured):
    CASES[name].check(*measured[name])
