"""A block of a transformer through penstock against a bare network of the same sizes.

    python -m benchmarks attention
    python -m benchmarks attention --batch_size 16 --num_words 256 --rounds 41

The bare network is plain JAX on `jax.nn.dot_product_attention`: the same products, layer norms,
ReLU, residual connections and padding mask, and the same plain SGD update in one jitted step with
donated state. The forward pass and a training step are timed, alternately, in float32. Both get the
lengths of the sequences.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import penstock as ps
from benchmarks import _timing
from benchmarks.recurrent import compare
from penstock import layers

SIZE, NUM_HEADS, FFN_SIZE = 256, 8, 1024
RATE = 1e-3
EPSILON = 1e-5


def _words(num_words: int) -> ps.Sequence:
    return layers.data("words", [SIZE], lod_level=1, buckets=[num_words])


def _block(words: ps.Sequence) -> ps.Sequence:
    return layers.transformer_encoder_layer(words, NUM_HEADS, FFN_SIZE)


def _penstock(batch: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    num_words = batch["words"].shape[1]

    def train_program() -> jax.Array:
        out = _block(_words(num_words))
        return layers.mean(out * out)

    # The mean a sequence, so that a forward pass copies back no more than the bare one does.
    def infer_program() -> jax.Array:
        return layers.sequence_pool(_block(_words(num_words)), "average")

    builder = ps.ProgramBuilder(
        train_program, optax.sgd(RATE), infer_func=infer_program, place=jax.devices()[:1]
    )
    holder = [builder.init()]

    def train() -> None:
        holder[0], values = builder.train(holder[0], batch)
        jax.block_until_ready((holder[0], values))

    return {"forward": lambda: builder.infer(holder[0], batch), "train": train}


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + EPSILON) * scale + shift


def _bare_block(params: Any, x: jax.Array, lengths: jax.Array) -> jax.Array:
    y = _norm(x, *params["norm_1"])
    q, k, v = (
        (y @ w + b).reshape(*x.shape[:2], NUM_HEADS, -1)
        for w, b in (params["query"], params["key"], params["value"])
    )
    mixed = jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=lengths).reshape(x.shape)
    w, b = params["out"]
    x = x + mixed @ w + b
    y = _norm(x, *params["norm_2"])
    (w, b), (w_out, b_out) = params["in"], params["ffn_out"]
    return x + jax.nn.relu(y @ w + b) @ w_out + b_out


def _init_bare() -> Any:
    def dense(seed: int, size: int, units: int) -> tuple[jax.Array, jax.Array]:
        initializer = jax.nn.initializers.xavier_uniform()
        return initializer(jax.random.key(seed), (size, units)), jnp.zeros((1, 1, units))

    def norm() -> tuple[jax.Array, jax.Array]:
        return jnp.ones((1, 1, SIZE)), jnp.zeros((1, 1, SIZE))

    names = ("query", "key", "value", "out")
    return {
        **{name: dense(seed, SIZE, SIZE) for seed, name in enumerate(names)},
        "in": dense(4, SIZE, FFN_SIZE),
        "ffn_out": dense(5, FFN_SIZE, SIZE),
        "norm_1": norm(),
        "norm_2": norm(),
    }


def _bare(batch: dict[str, np.ndarray]) -> dict[str, Callable[[], object]]:
    def is_word(x: jax.Array, lengths: jax.Array) -> jax.Array:
        return (jnp.arange(x.shape[1])[None] < lengths[:, None])[..., None]

    def loss_of(params: Any, x: jax.Array, lengths: jax.Array) -> jax.Array:
        out = _bare_block(params, x, lengths)
        total = jnp.sum(jnp.where(is_word(x, lengths), jnp.square(out), 0))
        return total / (jnp.sum(lengths) * SIZE)

    def update(params: Any, x: jax.Array, lengths: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, lengths)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradients), loss

    def pool(params: Any, x: jax.Array, lengths: jax.Array) -> jax.Array:
        out = jnp.where(is_word(x, lengths), _bare_block(params, x, lengths), 0)
        return out.sum(1) / lengths[:, None]

    step, forward = jax.jit(update, donate_argnums=0), jax.jit(pool)
    holder = [_init_bare()]
    x, lengths = batch["words"], batch["words_length"]

    def train() -> None:
        holder[0], loss = step(holder[0], x, lengths)
        jax.block_until_ready((holder[0], loss))

    return {"forward": lambda: np.asarray(forward(holder[0], x, lengths)), "train": train}


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks attention")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_words", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=41)
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}\n")
    rng = np.random.default_rng(0)
    shape = (flags.batch_size, flags.num_words, SIZE)
    batch = {
        "words": rng.normal(size=shape).astype(np.float32),
        "words_length": rng.integers(1, flags.num_words + 1, flags.batch_size).astype(np.int32),
    }
    made = {"penstock": _penstock(batch), "bare": _bare(batch)}
    rows = []
    for what in ("forward", "train"):
        contenders = {name: each[what] for name, each in made.items()}
        seconds = _timing.alternate(contenders, rounds=flags.rounds, units=1)
        rows.append([what, *compare(seconds, "penstock", ("bare",))])
    print(f"batch {flags.batch_size}, {flags.num_words} words; medians, ratios by round\n")
    print(_timing.table(["what", "penstock, ms", "bare", "ratio"], rows))


if __name__ == "__main__":
    main()
