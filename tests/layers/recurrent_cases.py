"""Recurrent layers and the loops over the words of one example that they stand for."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock as ps
from penstock import layers
from penstock._program.frame import Frame, open_frame
from tests.layers.programs import normal

HIDDEN, LENGTHS = 3, np.array([4, 1, 2, 0], np.int32)  # the last is empty

BATCH = len(LENGTHS)
RANDOM = layers.ParamAttr(initializer=jax.nn.initializers.normal(0.5))
GATES = {
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "identity": lambda x: x,
}


def lstm_loop(
    x,
    params,
    h,
    c,
    *,
    peepholes=True,
    reverse=False,
    acts=("sigmoid", "tanh", "tanh"),
    project=lambda h: h,
    cell_clip=1e9,
):
    """Return what an LSTM gives for one example `[L, 4 * hidden]`, a word at a time."""
    gate, act_cell, act_candidate = (GATES[name] for name in acts)
    w, b, size = params["w"], params["b"][0], x.shape[1] // 4
    p_i, p_f, p_o = b[4 * size :].reshape(3, size) if peepholes else np.zeros((3, size), "f")
    hiddens: Any = [None] * len(x)
    cells: Any = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        a = (x[t] + h @ w + b[: 4 * size]).reshape(4, size)  # candidate, input, forget, output
        i, f = gate(a[1] + p_i * c), gate(a[2] + p_f * c)
        c = jnp.clip(f * c + i * act_candidate(a[0]), -cell_clip, cell_clip)
        h = project(gate(a[3] + p_o * c) * act_cell(c))
        hiddens[t], cells[t] = h, c
    return jnp.concatenate([jnp.stack(hiddens), jnp.stack(cells)], axis=1)


def gru_loop(x, params, h, *, reverse=False, origin=False, bias=True):
    """Return what a GRU gives for one example `[L, 3 * hidden]`, a word at a time."""
    w, size = params["w"], x.shape[1] // 3
    b = params["b"][0] if bias else np.zeros(3 * size, "f")
    states: Any = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        u = jax.nn.sigmoid(x[t, :size] + h @ w[:, :size] + b[:size])
        r = jax.nn.sigmoid(x[t, size : 2 * size] + h @ w[:, size : 2 * size] + b[size : 2 * size])
        m = jnp.tanh(x[t, 2 * size :] + (r * h) @ w[:, 2 * size :] + b[2 * size :])
        h = u * h + (1 - u) * m if origin else (1 - u) * h + u * m
        states[t] = h
    return jnp.stack(states)


def joined(hidden_and_cell):
    hidden, cell = hidden_and_cell
    return hidden.with_values(jnp.concatenate([hidden.values, cell.values], axis=-1))


def both(loop, params, x, *zeros, **options):
    """Return two loops, one for each direction, over projected words."""
    forward, backward = params["forward"], params["backward"]
    return jnp.concatenate(
        [
            loop(x @ forward["w_x"], forward, *zeros, **options)[:, :HIDDEN],
            loop(x @ backward["w_x"], backward, *zeros, reverse=True, **options)[:, :HIDDEN],
        ],
        axis=1,
    )


def gru_by_function(words, state, name):
    _, states = layers.dynamic_rnn(gru_step(name), state, words)
    return states


def gru_step(name):
    def step(old, word):
        new, *_ = layers.gru_unit(word, old, 3 * HIDDEN, RANDOM, RANDOM, name=name)
        return new, new

    return step


def gru_by_block(words, state, name):
    rnn = layers.DynamicRNN()
    with rnn.block():
        old, word = rnn.memory(init=state), rnn.step_input(words)
        new, *_ = layers.gru_unit(word, old, 3 * HIDDEN, RANDOM, RANDOM, name=name)
        rnn.update_memory(old, new)
        rnn.output(new)
    return rnn()


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer and its loop.

    Attributes:
      call: takes words `[B, T, features]`, a state `[B, HIDDEN]` and a name; returns a sequence.
      loop: takes one example `[L, features]`, its parameters and its state; returns `[L, ...]`.
    """

    features: int
    call: Callable[..., Any]
    loop: Callable[..., Any]


ZERO = np.zeros(HIDDEN, "f")
EXOTIC = ("identity", "relu", "identity")
ATTRS = {"param_attr": RANDOM, "bias_attr": RANDOM}
CASES = {
    "lstm": Case(
        12,
        lambda x, s, name: joined(layers.dynamic_lstm(x, 12, name=name, **ATTRS)),
        lambda x, p, s: lstm_loop(x, p, ZERO, ZERO),
    ),
    "lstm reversed, from a state, without peepholes": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstm(
                x, 12, s, 2 * s, use_peepholes=False, is_reverse=True, name=name, **ATTRS
            )
        ),
        lambda x, p, s: lstm_loop(x, p, s, 2 * s, peepholes=False, reverse=True),
    ),
    "lstm of other activations": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstm(
                x,
                12,
                gate_activation="identity",
                cell_activation="relu",
                candidate_activation="identity",
                param_attr=layers.ParamAttr(initializer=jax.nn.initializers.normal(0.1)),
                bias_attr=layers.ParamAttr(initializer=jax.nn.initializers.normal(0.1)),
                name=name,
            )
        ),
        lambda x, p, s: lstm_loop(x, p, ZERO, ZERO, acts=EXOTIC),
    ),
    "lstmp": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstmp(
                x, 12, 2, name=name, h_0=s[:, :2], c_0=s, cell_clip=0.5, proj_clip=0.4, **ATTRS
            )
        ),
        lambda x, p, s: lstm_loop(
            x,
            p,
            s[:2],
            s,
            project=lambda h: jnp.clip(jnp.tanh(h @ p["w_proj"]), -0.4, 0.4),
            cell_clip=0.5,
        ),
    ),
    "lstmp reversed": Case(
        12,
        lambda x, s, name: joined(
            layers.dynamic_lstmp(
                x, 12, 2, is_reverse=True, proj_activation="identity", name=name, **ATTRS
            )
        ),
        lambda x, p, s: lstm_loop(
            x, p, ZERO[:2], ZERO, reverse=True, project=lambda h: h @ p["w_proj"]
        ),
    ),
    "gru": Case(
        9,
        lambda x, s, name: layers.dynamic_gru(x, HIDDEN, name=name, **ATTRS),
        lambda x, p, s: gru_loop(x, p, ZERO),
    ),
    "gru reversed, from a state, of the first paper": Case(
        9,
        lambda x, s, name: layers.dynamic_gru(
            x, HIDDEN, is_reverse=True, h_0=s, origin_mode=True, name=name, **ATTRS
        ),
        lambda x, p, s: gru_loop(x, p, s, reverse=True, origin=True),
    ),
    "gru without biases": Case(
        9,
        lambda x, s, name: layers.dynamic_gru(x, HIDDEN, RANDOM, False, name=name),
        lambda x, p, s: gru_loop(x, p, ZERO, bias=False),
    ),
    "bidirectional lstm": Case(
        4,
        lambda x, s, name: layers.bidirectional_lstm(x, HIDDEN, name=name, **ATTRS),
        lambda x, p, s: both(lstm_loop, p, x, ZERO, ZERO),
    ),
    "bidirectional gru": Case(
        4,
        lambda x, s, name: layers.bidirectional_gru(x, HIDDEN, name=name, **ATTRS),
        lambda x, p, s: both(gru_loop, p, x, ZERO),
    ),
    "gru as a function of one step": Case(9, gru_by_function, lambda x, p, s: gru_loop(x, p, s)),
    "gru as a block": Case(9, gru_by_block, lambda x, p, s: gru_loop(x, p, s)),
}


STATE = normal(BATCH, HIDDEN, seed=9)


def words_of(case: Case) -> list[np.ndarray]:
    return [normal(length, case.features, seed=n) for n, length in enumerate(LENGTHS)]


def pad(words: list[np.ndarray]) -> ps.Sequence:
    """Return one batch, with numbers in the padding that one product more would make infinite."""
    values = np.full((len(words), max(map(len, words)), words[0].shape[1]), 1e30, np.float32)
    for row, each in enumerate(words):
        values[row, : len(each)] = each
    return ps.Sequence(jnp.asarray(values), jnp.array([len(each) for each in words], jnp.int32))


def weigh(values: Any) -> Any:
    """Return another weight for each number `[T, D]` of one example."""
    columns = jnp.sin(1 + jnp.arange(values.shape[1], dtype="float32")).reshape(1, -1)
    return columns * (1 + jnp.arange(len(values), dtype="float32").reshape(-1, 1))


def make_frame(variables: Any = None, is_probe: bool = False) -> Frame:
    return Frame(
        mode="train",
        variables=variables or {},
        feed=None if is_probe else {},
        batch_size=BATCH,
        key=jax.random.key(0),
    )


def random_params(name: str) -> Any:
    """Return parameters of a case, under its name."""
    case, params = CASES[name], {}
    with open_frame(make_frame(is_probe=True)) as frame:
        jax.eval_shape(lambda words: case.call(words, STATE, name), pad(words_of(case)))
    for number, (path, spec) in enumerate(frame.requests.specs.items()):
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = 0.5 * normal(*spec.shape, seed=number)
    return params


def apply(name: str, params: Any, words: ps.Sequence, state: Any) -> ps.Sequence:
    with open_frame(make_frame({"params": params})):
        return CASES[name].call(words, state, name)
