"""One block of a transformer: attention and two products a word, with the parameters at a path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax

from penstock._errors import ProgramError, check_choice
from penstock._parameter_names import Path
from penstock._program.frame import Frame
from penstock._program.sequences import Sequence
from penstock.layers._attending import close_words
from penstock.layers._projections import project
from penstock.layers.activations import Activation, activate
from penstock.layers.attention import Heads, Segments, attend_cached, attend_words, dropout_name
from penstock.layers.dropout import dropout
from penstock.layers.key_value_cache import KeyValueCache
from penstock.layers.norm import norm_words

Norm = Literal["layer", "rms"]
_EPSILONS: dict[Norm, float] = {"layer": 1e-5, "rms": 1e-6}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """The options of a block, the same for all of a transformer."""

    layer: str
    heads: Heads
    ffn_size: int
    dropout_rate: float
    norm: Norm
    is_pre_norm: bool
    act: Activation | Callable[[jax.Array], jax.Array] | None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        check_choice(f"layers.{self.layer}", "norm", self.norm, ("layer", "rms"))
        if self.epsilon is not None and not self.epsilon > 0:
            raise ProgramError(
                f"layers.{self.layer} got epsilon={self.epsilon!r}, expected a positive number. It "
                "keeps the norm from dividing by 0. Leave it out for the usual one."
            )


def run_block(
    frame: Frame,
    path: Path,
    block: Block,
    like: Sequence | jax.Array,
    x: jax.Array,
    memory: Sequence | jax.Array | None = None,
    segment_ids: Segments = None,
    cache: KeyValueCache | None = None,
) -> tuple[jax.Array, KeyValueCache | None]:
    """Return what a block makes of the values of `like`, and its cache after."""
    own, heads = (*path, "self_attention"), block.heads
    y = close_words(like, _before(frame, own, block, x))
    if cache is not None:
        mixed, cache = attend_cached(frame, own, heads, y, cache)
    else:
        ids = segment_ids[0] if isinstance(segment_ids, tuple) else segment_ids
        mixed = attend_words(frame, own, heads, y, segment_ids=ids)
    x = _after(frame, own, block, x, _values(mixed))
    if memory is not None:
        own = (*path, "cross_attention")
        y = close_words(like, _before(frame, own, block, x))
        # Distances between words of two sequences mean nothing.
        across = dataclasses.replace(heads, is_causal=False, rotary=False)
        mixed = attend_words(frame, own, across, y, memory, segment_ids=segment_ids)
        x = _after(frame, own, block, x, _values(mixed))
    own, attrs = (*path, "ffn"), heads.attrs
    y = _before(frame, own, block, x)
    y = project(frame, own, "in", y, block.ffn_size, attrs, layer=block.layer)
    y = block.act(y) if callable(block.act) else activate(y, block.act, block.layer)
    y = project(frame, own, "out", y, x.shape[-1], attrs, layer=block.layer)
    return _after(frame, own, block, x, y), cache


def _before(frame: Frame, path: Path, block: Block, x: jax.Array) -> jax.Array:
    return normalise(frame, _norm_of(path), block, x) if block.is_pre_norm else x


def _after(frame: Frame, path: Path, block: Block, x: jax.Array, change: jax.Array) -> jax.Array:
    if block.dropout_rate:
        change = dropout(change, block.dropout_rate, dropout_name(frame, path, "dropout"))
    # In the dtype of the words, which a sum of two precisions would widen.
    total = x + change.astype(x.dtype)
    return total if block.is_pre_norm else normalise(frame, _norm_of(path), block, total)


def normalise(frame: Frame, path: Path, block: Block, x: jax.Array) -> jax.Array:
    epsilon = _EPSILONS[block.norm] if block.epsilon is None else block.epsilon
    return norm_words(frame, path, x, block.norm, epsilon)


def _norm_of(path: Path) -> Path:
    return (*path[:-1], f"{path[-1]}_norm")


def _values(words: Sequence | jax.Array) -> jax.Array:
    return words.values if isinstance(words, Sequence) else words
