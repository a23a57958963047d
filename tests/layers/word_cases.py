"""How one layer is called, for batteries over all of them; and those of sequences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from penstock import layers
from penstock._program.sequences import Sequence

Call = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """How one layer is called.

    Attributes:
      call: takes an array `[B, *shape]`, labels `[B, 1]` and, where it has parameters, `name`.
      shape: of the first input; `other`: a shape for which its parameters differ.
      needs_program: whether it raises outside a program.
    """

    call: Call
    shape: tuple[int, ...] = (4,)
    other: tuple[int, ...] | None = None
    needs_program: bool = True


def pure(call: Call, *shape: int) -> Case:
    return Case(call, shape or (4,), needs_program=False)


def words(x: jax.Array) -> Sequence:
    return Sequence(x, jnp.full(x.shape[:1], x.shape[1], jnp.int32))


def tags(x: jax.Array, y: jax.Array) -> Sequence:
    return words(jnp.tile(y[:, None], (1, x.shape[1], 1)) % 3)


def search(decode: Call, x: jax.Array, y: jax.Array, **options: Any) -> Any:
    def step(words: jax.Array, state: jax.Array) -> Any:
        return jax.lax.stop_gradient(state) + jax.nn.one_hot(words, 4), state

    return decode(step, jax.lax.stop_gradient(x), y, end_id=0, max_length=3, **options)


def recurrent(name: str, *sizes: int) -> Call:
    """Return a call of a recurrent layer over the words, of which the first result is returned."""

    def call(x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
        width = x.shape[-1] // 3 if name == "dynamic_gru" else x.shape[-1]
        given = sizes if name.startswith("bidirectional") else (width, *sizes)
        return jax.tree.leaves(getattr(layers, name)(words(x), *given, **options))[0]

    return call


def lstm_unit(x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
    return layers.lstm_unit(x, x, x, **options)[0]


def gru_unit(x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
    return layers.gru_unit(x, x[:, : x.shape[1] // 3], x.shape[1], **options)[0]


def dynamic_rnn(x: jax.Array, y: jax.Array) -> jax.Array:
    def step(memories: Any, word: jax.Array) -> Any:
        return memories + word, memories * word

    return layers.dynamic_rnn(step, x[:, 0], words(x))[1].values


WORDS = {"shape": (3, 4), "other": (3, 5)}
GATES = {"shape": (3, 8), "other": (3, 16)}

WORD_CASES = {
    "chunk_eval": pure(lambda x, y: layers.chunk_eval(tags(x, y), tags(x, y), "IOB", 2)[2], 3, 4),
    "crf_decoding": Case(lambda x, y: layers.crf_decoding(words(x), "crfw").values, (3, 4)),
    "ctc_greedy_decoder": pure(lambda x, y: layers.ctc_greedy_decoder(words(x), 0).values, 3, 4),
    "edit_distance": pure(lambda x, y: layers.edit_distance(tags(x, y), tags(x, y))[0], 3, 4),
    "hsigmoid": Case(lambda x, y, **k: layers.hsigmoid(x, y, 10, **k), other=(5,)),
    "linear_chain_crf": Case(
        lambda x, y, **k: layers.linear_chain_crf(words(x), tags(x, y), **k), **WORDS
    ),
    "nce": Case(lambda x, y, **k: layers.nce(x, y, 10, seed=1, **k), other=(5,)),
    "warpctc": pure(lambda x, y: layers.warpctc(words(x), tags(x, y), blank=3), 3, 4),
    "beam_decode": pure(lambda x, y: search(layers.beam_decode, x, y, beam_size=2).scores),
    "beam_search": pure(lambda x, y: layers.beam_search(y, x[:, :1], None, x[:, None], 2, 9)[1]),
    "beam_search_decode": pure(
        lambda x, y: layers.beam_search_decode(y[None], x[None, :, :1], 0 * y[None], 1, 0).scores
    ),
    "greedy_decode": pure(lambda x, y: search(layers.greedy_decode, x, y).values),
    "sample_decode": Case(lambda x, y: search(layers.sample_decode, x, y).values),
    "tile_beams": pure(lambda x, y: layers.tile_beams(x, 2)),
    "bidirectional_gru": Case(recurrent("bidirectional_gru", 2), **WORDS),
    "bidirectional_lstm": Case(recurrent("bidirectional_lstm", 2), **WORDS),
    "dynamic_gru": Case(recurrent("dynamic_gru"), (3, 6), (3, 12)),
    "dynamic_rnn": pure(dynamic_rnn, 3, 4),
    "gru_unit": Case(gru_unit, (6,), (12,)),
    "lstm_unit": Case(lstm_unit, (4,), (6,)),
    "dynamic_lstm": Case(recurrent("dynamic_lstm"), **GATES),
    "dynamic_lstmp": Case(recurrent("dynamic_lstmp", 2), **GATES),
    "im2sequence": pure(lambda x, y: layers.im2sequence(x, 2, 2).values, 6, 6, 2),
    "lod_reset": pure(lambda x, y: layers.lod_reset(words(x), words(x)).values, 3, 4),
    "row_conv": Case(lambda x, y, **k: layers.row_conv(words(x), 1, **k).values, **WORDS),
    "sequence_concat": pure(lambda x, y: layers.sequence_concat([words(x), words(x)]).values, 3, 4),
    "sequence_conv": Case(lambda x, y, **k: layers.sequence_conv(words(x), 2, **k).values, **WORDS),
    "sequence_conv_pool": Case(
        lambda x, y, **k: layers.sequence_conv_pool(words(x), 2, 3, **k), **WORDS
    ),
    "sequence_enumerate": pure(lambda x, y: layers.sequence_enumerate(tags(x, y), 2).values, 3, 4),
    "sequence_expand": pure(lambda x, y: layers.sequence_expand(x[:, 0], words(x)).values, 3, 4),
    "sequence_first_step": pure(lambda x, y: layers.sequence_first_step(words(x)), 3, 4),
    "sequence_last_step": pure(lambda x, y: layers.sequence_last_step(words(x)), 3, 4),
    "sequence_mask": pure(lambda x, y: layers.sequence_mask(words(x), dtype="float32"), 3, 4),
    "sequence_pad": pure(lambda x, y: layers.sequence_pad(words(x), 0.0, 4)[0], 3, 4),
    "sequence_pool": pure(lambda x, y: layers.sequence_pool(words(x), "sqrt"), 3, 4),
    "sequence_reshape": pure(lambda x, y: layers.sequence_reshape(words(x), 2).values, 3, 4),
    "sequence_reverse": pure(lambda x, y: layers.sequence_reverse(words(x)).values, 3, 4),
    "sequence_slice": pure(
        lambda x, y: layers.sequence_slice(words(x), 0 * y, 0 * y + 2).values, 3, 4
    ),
    "sequence_softmax": pure(lambda x, y: layers.sequence_softmax(words(x[:, :, :1])).values, 3, 4),
    "sequence_unpad": pure(lambda x, y: layers.sequence_unpad(x, words(x).lengths).values, 3, 4),
}
