"""Layers of sequences written out for one example at its own length, to be differentiated."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

# Attention and transformers, head by head.


def attend(q, k, v, visible):
    """Return one head's values for queries [T, H], keys and values [S, H], visible [T, S]."""
    if not len(k):
        return jnp.zeros((len(q), v.shape[1]))
    scores = jnp.where(visible, (q @ k.T) / np.sqrt(q.shape[1]), -np.inf)
    is_blind = ~visible.any(axis=1, keepdims=True)
    scores = jnp.where(is_blind, 0.0, scores)
    weights = jnp.exp(scores - scores.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    return jnp.where(is_blind, 0.0, weights @ v)


def turn(x, base=10000.0):
    """Return x [T, H] turned by rotary positions, as complex numbers."""
    half = x.shape[1] // 2
    rates = base ** (-2 * np.arange(half) / x.shape[1])
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * np.arange(len(x))[:, None] * rates)
    return jnp.concatenate([turned.real, turned.imag], axis=1)


def multi_head(p, x, y, num_heads, num_kv_heads=None, is_causal=False, rotary=False, segments=None):
    """Return multi-head attention of one example, x [T, D] over y [S, D], from parameters p."""
    num_kv_heads = num_kv_heads or num_heads

    def heads(part, words, count):
        flat = words @ p[f"{part}_w"]
        flat = flat + p[f"{part}_b"][None] if f"{part}_b" in p else flat
        return jnp.split(flat, count, axis=1)

    visible = np.ones((len(x), len(y)), bool)
    if is_causal:
        visible &= np.arange(len(y))[None] <= np.arange(len(x))[:, None]
    if segments is not None:
        visible &= segments[0][:, None] == segments[1][None]
    q = heads("query", x, num_heads)
    k, v = heads("key", y, num_kv_heads), heads("value", y, num_kv_heads)
    if rotary:
        q, k = [turn(head) for head in q], [turn(head) for head in k]
    served = num_heads // num_kv_heads
    mixed = [attend(q[n], k[n // served], v[n // served], visible) for n in range(num_heads)]
    (out,) = heads("out", jnp.concatenate(mixed, axis=1), 1)
    return jnp.where(visible.any(axis=1, keepdims=True), out, 0)


def normalise(p, x):
    """Return layer norm where there is a bias, the root mean square's otherwise."""
    if "bias" not in p:
        return x / jnp.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * p["scale"][None]
    centred = x - x.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-5) * p["scale"][None] + p["bias"][None]


def transformer(p, x, memory=None, *, is_pre_norm=True, segments=None, **heads):
    """Return a transformer's result for one example, x [T, D] and memory [S, D']."""
    across = {**heads, "is_causal": False, "rotary": False}
    own = None if segments is None else (segments, segments)
    for number in range(sum(name.startswith("layer_") for name in p)):
        layer = p[f"layer_{number}"]

        def feed_forward(x, layer=layer):
            ffn = layer["ffn"]
            hidden = jnp.maximum(x @ ffn["in_w"] + ffn["in_b"][None], 0)
            return hidden @ ffn["out_w"] + ffn["out_b"][None]

        parts = {
            "self_attention": lambda x, p=layer["self_attention"]: multi_head(
                p, x, x, segments=own, **heads
            )
        }
        if memory is not None:
            parts["cross_attention"] = lambda x, p=layer["cross_attention"]: multi_head(
                p, x, memory, **across
            )
        for name, function in {**parts, "ffn": feed_forward}.items():
            norm = layer[f"{name}_norm"]
            if is_pre_norm:
                x = x + function(normalise(norm, x))
            else:
                x = normalise(norm, x + function(x))
    return normalise(p["norm"], x) if is_pre_norm else x


# Recurrent layers, from Fluid's formulas, a word at a time.

GATES = {"sigmoid": jax.nn.sigmoid, "tanh": jnp.tanh, "relu": jax.nn.relu, "identity": lambda x: x}


def lstm(
    p,
    x,
    h=0.0,
    c=0.0,
    *,
    peepholes=True,
    reverse=False,
    acts=("sigmoid", "tanh", "tanh"),
    project=lambda h: h,
    cell_clip=1e9,
):
    """Return hidden and cell states of an LSTM over `[L, 4 * hidden]`."""
    gate, act_cell, act_candidate = (GATES[name] for name in acts)
    w, b, size = p["w"], p["b"][0], x.shape[1] // 4
    p_i, p_f, p_o = b[4 * size :].reshape(3, size) if peepholes else np.zeros((3, size), "f")
    h, c = jnp.broadcast_to(h, w.shape[:1]), jnp.broadcast_to(c, (size,))
    hiddens = [jnp.zeros(len(h))[None][:0]] * (len(x) + 1)
    cells = [jnp.zeros(size)[None][:0]] * (len(x) + 1)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        a = (x[t] + h @ w + b[: 4 * size]).reshape(4, size)  # candidate, input, forget, output
        i, f = gate(a[1] + p_i * c), gate(a[2] + p_f * c)
        c = jnp.clip(f * c + i * act_candidate(a[0]), -cell_clip, cell_clip)
        h = project(gate(a[3] + p_o * c) * act_cell(c))
        hiddens[t], cells[t] = h[None], c[None]
    return jnp.concatenate([jnp.concatenate(hiddens), jnp.concatenate(cells)], axis=1)


def gru(p, x, h=0.0, *, reverse=False, origin=False, bias=True):
    """Return the states of a GRU over `[L, 3 * hidden]`."""
    w, size = p["w"], x.shape[1] // 3
    b = p["b"][0] if bias else np.zeros(3 * size, "f")
    h = jnp.broadcast_to(h, (size,))
    states = [jnp.zeros([0, size])] * (len(x) + 1)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        u = jax.nn.sigmoid(x[t, :size] + h @ w[:, :size] + b[:size])
        r = jax.nn.sigmoid(x[t, size : 2 * size] + h @ w[:, size : 2 * size] + b[size : 2 * size])
        m = jnp.tanh(x[t, 2 * size :] + (r * h) @ w[:, 2 * size :] + b[2 * size :])
        h = u * h + (1 - u) * m if origin else (1 - u) * h + u * m
        states[t] = h[None]
    return jnp.concatenate(states)


def both_directions(loop, p, x):
    """Return the states of a loop over projected words, forwards and backwards."""
    forward, backward = p["forward"], p["backward"]
    size = forward["w"].shape[0]
    return jnp.concatenate(
        [
            loop(forward, x @ forward["w_x"])[:, :size],
            loop(backward, x @ backward["w_x"], reverse=True)[:, :size],
        ],
        axis=1,
    )


# What moves, weighs and adds up words.


def softmax(x):
    return jnp.exp(x) / jnp.sum(jnp.exp(x)) if len(x) else x


def conv(p, x, start):
    size, width = len(p["w"]) // x.shape[1], x.shape[1]
    out = jnp.tile(p["b"], (len(x), 1))
    for t, k in itertools.product(range(len(x)), range(size)):
        if 0 <= t + start + k < len(x):
            out = out.at[t].add(x[t + start + k] @ p["w"][k * width : (k + 1) * width])
    return out


def row_conv(p, x):
    out = jnp.zeros_like(x)
    for t, j in itertools.product(range(len(x)), range(len(p["w"]))):
        if t + j < len(x):
            out = out.at[t].add(p["w"][j] * x[t + j])
    return out


def windows(x, size, fill):
    rows = jnp.concatenate([x, jnp.full([size, 1], fill, x.dtype)])
    return jnp.concatenate([rows[n : n + len(x)] for n in range(size)], axis=1)


# What goes over all paths.


def path_scores(w, words):
    """Return every path of tags `[P, L]` and its score `[P]`, by Fluid's formula of a CRF."""
    paths = np.array([*itertools.product(range(words.shape[1]), repeat=len(words))])
    scores = w[0, paths[:, 0]] + w[1, paths[:, -1]]
    scores = scores + words[np.arange(len(words)), paths].sum(1)
    return paths, scores + w[2 + paths[:, :-1], paths[:, 1:]].sum(1)


def crf(w, words, tags):
    """Return the negative log likelihood of tags `[L, 1]` among all paths, `[1]`."""
    if not len(words):
        return jnp.zeros([1])
    paths, scores = path_scores(w, words)
    own = scores[(paths == tags[:, 0]).all(axis=1)]
    return jax.nn.logsumexp(scores) - own


def decode(w, words):
    """Return the best of all paths, `[L, 1]`."""
    if not len(words):
        return jnp.zeros([0, 1], jnp.int32)
    paths, scores = path_scores(w, words)
    return jnp.asarray(paths, jnp.int32)[jnp.argmax(scores)][:, None]


def merge(path, blank):
    return [key for key, _ in itertools.groupby(path) if key != blank]


def ctc(logits, label, blank=0):
    """Return the negative log likelihood over all alignments, 0 where there is none, `[1]`."""
    paths = [*itertools.product(range(logits.shape[1]), repeat=len(logits))]
    paths = np.array([path for path in paths if merge(path, blank) == label[:, 0].tolist()], int)
    if not len(paths) or not len(logits):
        return jnp.zeros([1])
    log_p = jax.nn.log_softmax(logits)
    return -jax.nn.logsumexp(log_p[np.arange(len(logits)), paths].sum(1), keepdims=True)


def hsigmoid(p, x, label, size):
    """Return the losses of labels `[L, 1]`, from the leaf to the root as Fluid's codes say."""
    losses = [jnp.zeros([0, 1])]
    for row, (code,) in zip(x, label + size, strict=True):
        loss = 0.0
        while code > 1:
            parent, is_second = divmod(int(code), 2)
            score = p["w"][parent - 1] @ row + p["b"][parent - 1, 0]
            loss, code = loss + jax.nn.softplus(-score if is_second else score), parent
        losses.append(jnp.reshape(loss, [1, 1]))
    return jnp.concatenate(losses)
