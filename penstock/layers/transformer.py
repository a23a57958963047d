"""Transformers (Vaswani et al. 2017): blocks of attention and a feed-forward network."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from collections.abc import Sequence as Several
from typing import Literal, overload

import jax

from penstock._errors import ProgramError, check_choice
from penstock._parameter_names import Path
from penstock._program.frame import Frame, current_frame
from penstock._program.sequences import Sequence
from penstock.layers import attention
from penstock.layers._attending import Words, close_words, open_words
from penstock.layers.activations import Activation, activate
from penstock.layers.dropout import dropout
from penstock.layers.norm import norm_words
from penstock.layers.parameters import Attr, add_to_name
from penstock.layers.transforms import remat

Norm = Literal["layer", "rms"]
_EPSILONS: dict[Norm, float] = {"layer": 1e-5, "rms": 1e-6}
Caches = Several[attention.KeyValueCache]


def transformer_encoder_layer(
    x: Words,
    num_heads: int,
    ffn_size: int,
    dropout_rate: float = 0.0,
    *,
    norm: Norm = "layer",
    is_pre_norm: bool = True,
    act: Activation | Callable[[jax.Array], jax.Array] | None = "relu",
    epsilon: float | None = None,
    num_kv_heads: int | None = None,
    rotary: bool = False,
    is_causal: bool = False,
    segment_ids: attention.Segments = None,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Words:
    """Apply one block of `transformer_encoder`, without the encoder's final norm.

    Parameters: those of `multi_head_attention` under `self_attention`; `ffn/in_w` `[D, ffn_size]`,
    `ffn/out_w` `[ffn_size, D]` and their biases; those of the norms under `self_attention_norm` and
    `ffn_norm`.

    Arguments:
      x: a `Sequence` with values `[B, T, D]`, or an array `[B, T, D]`.
      num_heads: the number of attention heads. For the other arguments see `transformer_encoder`.

    Returns:
      An output of the same type and shape as `x`.

    >>> def program():
    ...     return layers.transformer_encoder_layer(layers.data("x", [5, 8]), 2, ffn_size=16)
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> sorted(params["transformer_encoder_layer_0"])
    ['ffn', 'ffn_norm', 'self_attention', 'self_attention_norm']
    """
    layer = "transformer_encoder_layer"
    frame = current_frame(layer)
    path = frame.names.layer(layer, name)
    block = Block(
        num_heads=num_heads, num_kv_heads=num_kv_heads, is_causal=is_causal, rotary=rotary,
        ffn_size=ffn_size, block_dropout=dropout_rate, norm=norm, is_pre_norm=is_pre_norm,
        act=act, epsilon=epsilon, attrs=(param_attr, bias_attr), layer=layer,
    )  # fmt: skip
    values, _ = open_words(layer, "an input", x)
    return close_words(x, _run_block(frame, path, block, x, values, segment_ids=segment_ids)[0])


def transformer_encoder(
    x: Words,
    num_layers: int,
    num_heads: int,
    ffn_size: int,
    dropout_rate: float = 0.0,
    *,
    norm: Norm = "layer",
    is_pre_norm: bool = True,
    act: Activation | Callable[[jax.Array], jax.Array] | None = "relu",
    epsilon: float | None = None,
    num_kv_heads: int | None = None,
    rotary: bool = False,
    is_causal: bool = False,
    segment_ids: attention.Segments = None,
    rematerialize: bool = False,
    scan_layers: bool = False,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Words:
    """Apply a stack of self-attention and feed-forward blocks (Vaswani et al. 2017).

    Padding never counts. Self-attention and the feed-forward network each have a residual
    connection. In training, `dropout_rate` applies to the outputs of both, before the residual sum.
    Parameters: those of each `transformer_encoder_layer` under `layer_0`, `layer_1` and so on;
    those of the final norm, if there is one, under `norm`.

    Arguments:
      x: a `Sequence` with values `[B, T, D]`, or an array `[B, T, D]`, with positions added.
      ffn_size: the hidden features of the feed-forward network.
      norm: `"layer"` (epsilon 1e-5) or `"rms"` (epsilon 1e-6). `epsilon`: another one; BERT's is
        1e-12.
      is_pre_norm: normalise the inputs of attention and feed-forward, and the final output (Xiong
        et al. 2020). `False` normalises after each residual sum, as the original transformer does.
      act: the activation of the hidden features, by name or as a function of an array: GPT-2's is
        `functools.partial(layers.gelu, approximate=True)`.
      num_kv_heads, rotary, is_causal, segment_ids: see `multi_head_attention`.
      rematerialize: compute what lies inside a block again for its gradients, see `remat`.
      scan_layers: compile one block, and run it in a scan with the parameters of each in turn. With
        caches the blocks run one by one, as without it.
      param_attr, bias_attr: for all weights and all biases, except those of the norms. A name gets
        those of the part and the weight behind it, `_ffn_in_w`; all blocks then share them.

    Returns:
      An output of the same type and shape as `x`.

    >>> def program():
    ...     return layers.transformer_encoder(layers.data("x", [5, 8]), 3, 2, ffn_size=16)
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> sorted(params["transformer_encoder_0"])
    ['layer_0', 'layer_1', 'layer_2', 'norm']
    """
    layer = "transformer_encoder"
    block = Block(
        num_heads=num_heads, num_kv_heads=num_kv_heads, is_causal=is_causal, rotary=rotary,
        ffn_size=ffn_size, block_dropout=dropout_rate, norm=norm, is_pre_norm=is_pre_norm,
        act=act, epsilon=epsilon, attrs=(param_attr, bias_attr), layer=layer,
    )  # fmt: skip
    run = functools.partial(_run_blocks, block, name, num_layers, rematerialize, scan_layers)
    return run(x, segment_ids=segment_ids)[0]


@overload
def transformer_decoder(
    x: Words,
    num_layers: int,
    num_heads: int,
    ffn_size: int,
    memory: Sequence | jax.Array | None = None,
    dropout_rate: float = 0.0,
    *,
    norm: Norm = "layer",
    is_pre_norm: bool = True,
    act: Activation | Callable[[jax.Array], jax.Array] | None = "relu",
    epsilon: float | None = None,
    num_kv_heads: int | None = None,
    rotary: bool = False,
    segment_ids: attention.Segments = None,
    caches: None = None,
    rematerialize: bool = False,
    scan_layers: bool = False,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Words: ...


@overload
def transformer_decoder(
    x: Words,
    num_layers: int,
    num_heads: int,
    ffn_size: int,
    memory: Sequence | jax.Array | None = None,
    dropout_rate: float = 0.0,
    *,
    norm: Norm = "layer",
    is_pre_norm: bool = True,
    act: Activation | Callable[[jax.Array], jax.Array] | None = "relu",
    epsilon: float | None = None,
    num_kv_heads: int | None = None,
    rotary: bool = False,
    segment_ids: attention.Segments = None,
    caches: Caches,
    rematerialize: bool = False,
    scan_layers: bool = False,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> tuple[Words, tuple[attention.KeyValueCache, ...]]: ...


def transformer_decoder(
    x: Words,
    num_layers: int,
    num_heads: int,
    ffn_size: int,
    memory: Sequence | jax.Array | None = None,
    dropout_rate: float = 0.0,
    *,
    norm: Norm = "layer",
    is_pre_norm: bool = True,
    act: Activation | Callable[[jax.Array], jax.Array] | None = "relu",
    epsilon: float | None = None,
    num_kv_heads: int | None = None,
    rotary: bool = False,
    segment_ids: attention.Segments = None,
    caches: Caches | None = None,
    rematerialize: bool = False,
    scan_layers: bool = False,
    param_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Words | tuple[Words, tuple[attention.KeyValueCache, ...]]:
    """Apply a stack of causal self-attention, cross-attention and feed-forward blocks.

    It is a `transformer_encoder` whose words see only themselves and earlier words. With a memory,
    each block attends to it between self-attention and the feed-forward network, with parameters
    under `cross_attention`.

    Arguments:
      x: a `Sequence` with values `[B, T, D]`, or an array `[B, T, D]`, with positions added.
      memory: the output of an encoder, `[B, S, D']`; its padding never counts.
      segment_ids: the segments of packed words; with a memory, a pair for the words and the memory.
      caches: one for each layer, see `init_cache`. `x` then has only the next words.

    Returns:
      An output of the same type and shape as `x`. With caches, also a tuple of the updated caches.

    >>> def program():
    ...     words, source = layers.data("words", [5, 8]), layers.data("source", [3, 8])
    ...     return layers.transformer_decoder(words, 1, 2, ffn_size=16, memory=source)
    >>> params = ps.ProgramBuilder(infer_func=program).init().variables["params"]
    >>> [name for name in sorted(params["transformer_decoder_0"]["layer_0"]) if "norm" not in name]
    ['cross_attention', 'ffn', 'self_attention']
    """
    layer = "transformer_decoder"
    block = Block(
        num_heads=num_heads, num_kv_heads=num_kv_heads, is_causal=True, rotary=rotary,
        ffn_size=ffn_size, block_dropout=dropout_rate, norm=norm, is_pre_norm=is_pre_norm,
        act=act, epsilon=epsilon, attrs=(param_attr, bias_attr), layer=layer,
    )  # fmt: skip
    run = functools.partial(_run_blocks, block, name, num_layers, rematerialize, scan_layers)
    out, after = run(x, memory, segment_ids, caches)
    return out if caches is None else (out, after)


def _run_blocks(
    block: Block,
    name: str | None,
    num_layers: int,
    rematerialize: bool,
    scan_layers: bool,
    x: Words,
    memory: Sequence | jax.Array | None = None,
    segment_ids: attention.Segments = None,
    caches: Caches | None = None,
) -> tuple[Words, tuple[attention.KeyValueCache, ...]]:
    frame = current_frame(block.layer)
    path = frame.names.layer(block.layer, name)
    _check(block, num_layers, memory, segment_ids, caches)
    values, _ = open_words(block.layer, "an input", x)
    after: list[attention.KeyValueCache] = []
    paths = [(*path, f"layer_{number}") for number in range(num_layers)]
    if scan_layers and caches is None:
        values = frame.scan(
            paths,
            lambda own, values: _run_block(frame, own, block, x, values, memory, segment_ids)[0],
            values,
            rematerialize=rematerialize,
        )
        paths = []
    for number, own in enumerate(paths):
        cache = None if caches is None else caches[number]
        run = functools.partial(_run_block, frame, own, block, x)
        run = remat(run) if rematerialize else run
        values, cache = run(values, memory, segment_ids, cache)
        after += [] if cache is None else [cache]
    if block.is_pre_norm:
        # What the blocks add up to has been normalised by none of them.
        values = _normalise(frame, (*path, "norm"), block, values)
    return close_words(x, values), tuple(after)


def _check(
    block: Block,
    num_layers: int,
    memory: Sequence | jax.Array | None,
    segment_ids: attention.Segments,
    caches: Caches | None,
) -> None:
    problems = []
    if num_layers < 1:
        problems.append(f"num_layers={num_layers}, expected 1 or more")
    if caches is not None and len(caches) != num_layers:
        problems.append(f"{len(caches)} caches, expected {num_layers}, one for each layer")
    if caches is not None and segment_ids is not None:
        problems.append("caches and segment_ids, expected one of them")
    if memory is not None and segment_ids is not None and not isinstance(segment_ids, tuple):
        problems.append("a memory and one array of segment_ids, expected a pair of arrays")
    if problems:
        raise ProgramError(
            f"layers.{block.layer} got {'; '.join(problems)}. Each layer keeps the words "
            "that it has met, and packed words see those of their own segment. Check the arguments."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block(attention.Heads):
    """The options of a block, those of its attention and more; the same for all of a transformer.

    `dropout_rate` is that of the weights of attention, `block_dropout` that of what is added.
    """

    ffn_size: int
    block_dropout: float
    norm: Norm
    is_pre_norm: bool
    act: Activation | Callable[[jax.Array], jax.Array] | None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        check_choice(f"layers.{self.layer}", "norm", self.norm, ("layer", "rms"))


def _run_block(
    frame: Frame,
    path: Path,
    block: Block,
    like: Sequence | jax.Array,
    x: jax.Array,
    memory: Sequence | jax.Array | None = None,
    segment_ids: attention.Segments = None,
    cache: attention.KeyValueCache | None = None,
) -> tuple[jax.Array, attention.KeyValueCache | None]:
    """Return what a block makes of the values of `like`, and its cache after."""
    own = (*path, "self_attention")
    heads = dataclasses.replace(block, attrs=_attrs_of(block, "self_attention"))
    y = close_words(like, _before(frame, own, block, x))
    if cache is not None:
        mixed, cache = attention.attend_cached(frame, own, heads, y, cache)
    else:
        ids = segment_ids
        # The second of a pair is the memory's, if there is one.
        if memory is not None and isinstance(segment_ids, tuple):
            ids = segment_ids[0]
        mixed = attention.attend_words(frame, own, heads, y, segment_ids=ids)
    x = _after(frame, own, block, x, _values(mixed))
    if memory is not None:
        own = (*path, "cross_attention")
        y = close_words(like, _before(frame, own, block, x))
        # Distances between words of two sequences mean nothing.
        attrs = _attrs_of(block, "cross_attention")
        across = dataclasses.replace(heads, is_causal=False, rotary=False, attrs=attrs)
        mixed = attention.attend_words(frame, own, across, y, memory, segment_ids=segment_ids)
        x = _after(frame, own, block, x, _values(mixed))
    own, attrs = (*path, "ffn"), _attrs_of(block, "ffn")
    y = _before(frame, own, block, x)
    y = attention.project(frame, own, "in", y, block.ffn_size, attrs, layer=block.layer)
    y = block.act(y) if callable(block.act) else activate(y, block.act, block.layer)
    y = attention.project(frame, own, "out", y, x.shape[-1], attrs, layer=block.layer)
    return _after(frame, own, block, x, y), cache


def _attrs_of(block: Block, part: str) -> tuple[Attr, Attr]:
    """Return the attributes of a part, whose weights another part may have by the same names."""
    (weights, biases), layer = block.attrs, block.layer
    weights = add_to_name(layer, "param_attr", weights, part)
    return weights, add_to_name(layer, "bias_attr", biases, part)


def _before(frame: Frame, path: Path, block: Block, x: jax.Array) -> jax.Array:
    return _normalise(frame, _norm_of(path), block, x) if block.is_pre_norm else x


def _after(frame: Frame, path: Path, block: Block, x: jax.Array, change: jax.Array) -> jax.Array:
    if block.block_dropout:
        change = dropout(
            change, block.block_dropout, attention.dropout_name(frame, path, "dropout")
        )
    # In the dtype of the words, which a sum of two precisions would widen.
    total = x + change.astype(x.dtype)
    return total if block.is_pre_norm else _normalise(frame, _norm_of(path), block, total)


def _normalise(frame: Frame, path: Path, block: Block, x: jax.Array) -> jax.Array:
    epsilon = _EPSILONS[block.norm] if block.epsilon is None else block.epsilon
    return norm_words(frame, path, x, block.norm, epsilon)


def _norm_of(path: Path) -> Path:
    return (*path[:-1], f"{path[-1]}_norm")


def _values(words: Sequence | jax.Array) -> jax.Array:
    return words.values if isinstance(words, Sequence) else words
