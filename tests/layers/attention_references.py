"""Attention and transformers written out for one example at its own length, head by head."""

import jax.numpy as jnp
import numpy as np


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
        q, k = [turn(each) for each in q], [turn(each) for each in k]
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
