"""Layers of sequences: each example gives what it gives alone, and padding never counts."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from penstock import layers
from tests.layers import alone, references
from tests.layers.programs import normal

HIDDEN = 3
# Of four examples one has no word, one no source, and each of two is the longer one.
LENGTHS, SOURCE_LENGTHS = (5, 0, 1, 3), (1, 3, 0, 2)
STEPS = (4, 0, 0, 1, 1, 4, 4, 2)
LABELS = [[1, 2], [], [2], [1], [], [1, 1], [], [1, 1]]  # the third and the last do not fit


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to call a layer.

    Attributes:
      call: takes of the inputs in `rows_of` those that it names; a layer with parameters is called
        `layer`.
      expect: takes the parameters of `layer`, and one example of these inputs; by default the
        example is compared with what the layer gives for it at its own length.
      width: of words.
      lengths: of x.
    """

    call: Callable[..., Any]
    expect: Callable[..., Any] | None = None
    width: int = 4
    lengths: tuple[int, ...] = LENGTHS


def rows_of(case: Case) -> dict[str, list[np.ndarray]]:
    """Return words x and y, a vector v, tags and segments of x, segments of y."""
    count, width = len(case.lengths), case.width
    ids = np.array([[1], [1], [2], [2], [3]], np.int32), np.array([[2], [1], [4]], np.int32)
    tags = np.random.default_rng(0).integers(0, 3, (5, 1)).astype(np.int32)
    rows = {
        "x": [normal(n, width, seed=i) for i, n in enumerate(case.lengths)],
        "y": [normal(n, width, seed=10 + i) for i, n in enumerate(SOURCE_LENGTHS[:count])],
        "v": [normal(width, seed=20 + i) for i in range(count)],
        "ids": [ids[0][:n] for n in case.lengths],
        "y_ids": [ids[1][:n] for n in SOURCE_LENGTHS[:count]],
        "tags": [tags[:n] for n in case.lengths],
        "label": [np.array(label, np.int32).reshape(-1, 1) for label in LABELS[:count]],
    }
    return {name: rows[name] for name in inspect.signature(case.call).parameters}


def formula(call: Any, expect: Any, **options: Any) -> Case:
    """Return a case without parameters."""
    return Case(call, lambda p, *inputs: expect(*inputs), **options)


def pool(kind: Any, expect: Callable[[Any], Any]) -> Case:
    return formula(
        lambda x: layers.sequence_pool(x, kind), lambda x: expect(x) if len(x) else jnp.zeros(4)
    )


def conv(size: int, start: int | None, act: Any) -> Case:
    first = -(size // 2) if start is None else start
    return Case(
        lambda x: layers.sequence_conv(x, 3, size, act=act, name="layer", padding_start=start),
        lambda p, x: references.GATES[act or "identity"](references.conv(p, x, first)),
    )


SEQUENCES = {
    "sum": pool("sum", lambda x: x.sum(0)),
    "average": pool("average", lambda x: x.sum(0) / len(x)),
    "sqrt": pool("sqrt", lambda x: x.sum(0) / np.sqrt(len(x))),
    "max": pool("max", lambda x: x.max(0)),
    "last": pool("last", lambda x: x[-1]),
    "first": pool("first", lambda x: x[0]),
    "softmax": formula(lambda x: layers.sequence_softmax(x), references.softmax, width=1),
    "softmax of rows": formula(
        lambda x: layers.sequence_softmax(x.map(lambda rows: rows[:, 0])),
        lambda x: references.softmax(x[:, 0]),
    ),
    "conv 3": conv(3, None, "tanh"),
    "conv 4": conv(4, None, None),
    "conv 1": conv(1, None, None),
    "conv of earlier words": conv(3, -2, None),
    "conv of later words": conv(2, 7, None),
    "row_conv": Case(lambda x: layers.row_conv(x, 2, name="layer"), references.row_conv),
    "expand vectors": formula(
        lambda v, y: layers.sequence_expand(v, y), lambda v, y: jnp.tile(v, (len(y), 1))
    ),
    "expand words": formula(
        lambda x, y: layers.sequence_expand(x, y, ref_level=0),
        lambda x, y: jnp.tile(x, (len(y), 1)) if len(x) else x,
        lengths=(1, 0, 1, 1),
    ),
    "concat": formula(
        lambda x, y: layers.sequence_concat([x, y, x]), lambda x, y: jnp.concatenate([x, y, x])
    ),
    "concat of one": formula(lambda y: layers.sequence_concat([y]), lambda y: y),
    "reshape narrower": formula(
        lambda x: layers.sequence_reshape(x, 2), lambda x: x.reshape(-1, 2)
    ),
    "reshape wider": formula(
        lambda x: layers.sequence_reshape(x, 6), lambda x: x.reshape(-1, 6), lengths=(3, 0, 6, 3)
    ),
    "reverse": formula(lambda x: layers.sequence_reverse(x), lambda x: x[::-1]),
    "pad and unpad": formula(
        lambda x: layers.sequence_unpad(*layers.sequence_pad(x, 0.5, maxlen=7)), lambda x: x
    ),
    "pad": formula(
        lambda x: layers.sequence_pad(x, 2.0, maxlen=7)[0],
        lambda x: jnp.concatenate([x, jnp.full((7 - len(x), 4), 2.0)]),
    ),
    "pad with a word": formula(
        lambda x: layers.sequence_pad(x, jnp.arange(4.0), maxlen=7)[0],
        lambda x: jnp.concatenate([x, jnp.tile(jnp.arange(4.0), (7 - len(x), 1))]),
    ),
    "reset": formula(lambda x: layers.lod_reset(2 * x.values, x), lambda x: 2 * x),
    "slice": formula(
        lambda x: layers.sequence_slice(
            x, n := jnp.minimum(x.lengths, 1), (x.lengths - n).reshape(-1, 1)
        ),
        lambda x: x[1:],
    ),
    "mask": formula(lambda x: layers.sequence_mask(x, 6), lambda x: np.arange(6) < len(x)),
    "enumerate": formula(
        lambda ids: layers.sequence_enumerate(ids, 3, 99),
        lambda ids: references.windows(ids, 3, 99),
    ),
    "conv and pool": Case(
        lambda x: layers.sequence_conv_pool(x, 3, 3, name="layer", pool_type="sqrt"),
        lambda p, x: (
            jax.nn.sigmoid(references.conv(p, x, -1)).sum(0) / np.sqrt(max(len(x), 1))
        ),
    ),
}  # fmt: skip


def join_states(states: Any) -> Any:
    hidden, cell = states
    return hidden.with_values(jnp.concatenate([hidden.values, cell.values], axis=-1))


def lstm(x: Any, **options: Any) -> Any:
    return join_states(layers.dynamic_lstm(x, 12, name="layer", **options))


def lstmp(x: Any, **options: Any) -> Any:
    return join_states(layers.dynamic_lstmp(x, 12, 2, name="layer", **options))


def gru(x: Any, *options: Any, **more: Any) -> Any:
    return layers.dynamic_gru(x, HIDDEN, *options, name="layer", **more)


def gru_by_function(x: Any, v: Any) -> Any:
    def step(old: Any, word: Any) -> Any:
        new, *_ = layers.gru_unit(word, old, 3 * HIDDEN, name="layer")
        return new, new

    return layers.dynamic_rnn(step, v[:, :HIDDEN], x)[1]


def gru_by_block(x: Any, v: Any) -> Any:
    rnn, first = layers.DynamicRNN(), v[:, :HIDDEN]
    with rnn.block():
        old, word = rnn.memory(init=first), rnn.step_input(x)
        new, *_ = layers.gru_unit(word, old, 3 * HIDDEN, name="layer")
        rnn.update_memory(old, new)
        rnn.output(new)
    return rnn()


EXOTIC = ("identity", "relu", "identity")
NAMES = ("gate_activation", "cell_activation", "candidate_activation")
RECURRENT = {
    "lstm": Case(lambda x: lstm(x), references.lstm, 12),
    "lstm reversed, from a state, without peepholes": Case(
        lambda x, v: lstm(
            x, h_0=v[:, :3], c_0=2 * v[:, :3], use_peepholes=False, is_reverse=True
        ),
        lambda p, x, v: references.lstm(p, x, v[:3], 2 * v[:3], peepholes=False, reverse=True),
        12,
    ),
    "lstm of other activations": Case(
        lambda x: lstm(x, **dict(zip(NAMES, EXOTIC, strict=True))),
        lambda p, x: references.lstm(p, x, acts=EXOTIC),
        12,
    ),
    "lstmp": Case(
        lambda x, v: lstmp(x, h_0=v[:, :2], c_0=v[:, :3], cell_clip=0.5, proj_clip=0.4),
        lambda p, x, v: references.lstm(
            p,
            x,
            v[:2],
            v[:3],
            project=lambda h: jnp.clip(jnp.tanh(h @ p["w_proj"]), -0.4, 0.4),
            cell_clip=0.5,
        ),
        12,
    ),
    "lstmp reversed": Case(
        lambda x: lstmp(x, is_reverse=True, proj_activation="identity"),
        lambda p, x: references.lstm(p, x, reverse=True, project=lambda h: h @ p["w_proj"]),
        12,
    ),
    "gru": Case(lambda x: gru(x), references.gru, 9),
    "gru reversed, from a state, of the first paper": Case(
        lambda x, v: gru(x, is_reverse=True, h_0=v[:, :HIDDEN], origin_mode=True),
        lambda p, x, v: references.gru(p, x, v[:HIDDEN], reverse=True, origin=True),
        9,
    ),
    "gru without biases": Case(
        lambda x: gru(x, None, False), lambda p, x: references.gru(p, x, bias=False), 9
    ),
    "bidirectional lstm": Case(
        lambda x: layers.bidirectional_lstm(x, HIDDEN, name="layer"),
        functools.partial(references.both_directions, references.lstm),
    ),
    "bidirectional gru": Case(
        lambda x: layers.bidirectional_gru(x, HIDDEN, name="layer"),
        functools.partial(references.both_directions, references.gru),
    ),
    "gru as a function of one step": Case(
        gru_by_function, lambda p, x, v: references.gru(p, x, v[:HIDDEN]), 9
    ),
    "gru as a block": Case(gru_by_block, lambda p, x, v: references.gru(p, x, v[:HIDDEN]), 9),
}  # fmt: skip


# Formulas are compiled word by word.
RECURRENT = {k: dataclasses.replace(case, lengths=(3, 0, 1, 2)) for k, case in RECURRENT.items()}


def attention(**options: Any) -> Any:
    return functools.partial(layers.multi_head_attention, num_heads=4, name="layer", **options)


def own_attention(**options: Any) -> Case:
    kept = {k: v for k, v in options.items() if k in ("num_kv_heads", "is_causal", "rotary")}
    return Case(
        lambda x: attention(**options)(x), lambda p, x: references.multi_head(p, x, x, 4, **kept), 8
    )


def packed_attention(**options: Any) -> Case:
    return Case(
        lambda x, ids: attention(**options)(x, segment_ids=ids),
        lambda p, x, ids: references.multi_head(
            p, x, x, 4, segments=(ids[:, 0], ids[:, 0]), **options
        ),
        8,
    )


def cross_attention(**options: Any) -> Case:
    return Case(
        lambda x, y: attention(**options)(x, y),
        lambda p, x, y: references.multi_head(
            p, x, y, 4, is_causal=options.get("is_causal", False)
        ),
        8,
    )


def packed_cross_attention(**options: Any) -> Case:
    return Case(
        lambda x, y, ids, y_ids: attention(**options)(x, y, segment_ids=(ids, y_ids)),
        lambda p, x, y, ids, y_ids: references.multi_head(
            p, x, y, 4, segments=(ids[:, 0], y_ids[:, 0]), **options
        ),
        8,
    )


def plain_attention(num_heads: int) -> Case:
    def expect(p: Any, x: Any, y: Any) -> Any:
        parts = []
        for words, part in ((x, "query"), (y, "key"), (y, "value")):
            own = p.get(f"layer_{part}")
            words = words if own is None else words @ own["w"] + own["b"][None]
            parts.append(jnp.split(words, num_heads, axis=1))
        visible = np.ones((len(x), len(y)), bool)
        heads = [references.attend(*head, visible) for head in zip(*parts, strict=True)]
        return jnp.concatenate(heads, axis=1)

    return Case(
        lambda x, y: layers.scaled_dot_product_attention(x, y, y, num_heads, name="layer"),
        expect,
        8,
    )


ATTENTION = {
    "itself": own_attention(),
    "causal": own_attention(is_causal=True),
    "grouped": own_attention(num_kv_heads=2),
    "rotary": own_attention(rotary=True, is_causal=True),
    "sizes": own_attention(head_dim=6, size=5, bias_attr=False),
    # In training the sum is written out; of so small a rate nothing is dropped.
    "written out": own_attention(num_kv_heads=2, is_causal=True, dropout_rate=1e-9),
    "packed, causal": packed_attention(is_causal=True),
    "another": cross_attention(),
    "another, causal": cross_attention(is_causal=True),
    "another, written out": cross_attention(dropout_rate=1e-9),
    "another, packed": packed_cross_attention(),
    "another, packed, causal": packed_cross_attention(is_causal=True),
    "plain, one head": plain_attention(1),
    "plain, two heads": plain_attention(2),
}


def encoder(**options: Any) -> Case:
    kept = {k: v for k, v in options.items() if k != "norm"}
    return Case(
        lambda x: layers.transformer_encoder(x, 1, 2, 12, name="layer", **options),
        lambda p, x: references.transformer(p, x, num_heads=2, **kept),
        8,
    )


def decoder(num_layers: int, **options: Any) -> Case:
    kept = {k: v for k, v in options.items() if k != "norm"}
    return Case(
        lambda x, y: layers.transformer_decoder(x, num_layers, 2, 12, y, name="layer", **options),
        lambda p, x, y: references.transformer(p, x, y, num_heads=2, is_causal=True, **kept),
        8,
        (3, 0, 1, 2),
    )


TRANSFORMERS = {
    "encoder": encoder(),
    "encoder, rms, rotary": encoder(norm="rms", rotary=True),
    "encoder, post-norm": encoder(is_pre_norm=False),
    "encoder, causal, grouped": encoder(is_causal=True, num_kv_heads=1),
    "decoder": decoder(2, rotary=True),
    "decoder, post-norm, rms": decoder(1, is_pre_norm=False, norm="rms"),
}

NORMS = {
    "rms_norm": Case(
        lambda x: layers.rms_norm(x, act="tanh", name="layer"),
        lambda p, x: jnp.tanh(references.normalise(p, x)),
        8,
    )
}

PATHS = {
    "crf": Case(
        lambda x, tags: layers.linear_chain_crf(x, tags, param_attr="layer"),
        references.crf,
        3,
        (4, 0, 1, 3),
    ),
    "best path": Case(
        lambda x: layers.crf_decoding(x, layers.ParamAttr(name="layer")),
        references.decode,
        3,
        (4, 0, 1, 3),
    ),
    "ctc": formula(
        lambda x, label: layers.warpctc(x, label), references.ctc, width=3, lengths=STEPS
    ),
    "ctc of another blank": formula(
        lambda x, label: layers.warpctc(x, label.with_values(label.values - 1), blank=2),
        lambda x, label: references.ctc(x, label - 1, blank=2),
        width=3,
        lengths=STEPS,
    ),
    "hsigmoid": Case(
        lambda x, tags: layers.hsigmoid(x, tags, 12, name="layer"),
        functools.partial(references.hsigmoid, size=12),
    ),
    # The noise of an example follows its place, so it is compared in the first.
    "nce": Case(lambda x, tags: layers.nce(x, tags, 12, name="layer"), lengths=(3,)),
    "nce of nothing": Case(lambda x, tags: layers.nce(x, tags, 12, name="layer"), lengths=(0,)),
}

CASES = SEQUENCES | RECURRENT | ATTENTION | TRANSFORMERS | NORMS | PATHS


# Words that moved leave zeros behind them.
CLEAR = {"concat", "expand vectors", "reshape narrower", "reverse", "slice", "softmax"}


# One of each kind, in `make test`.
@pytest.mark.quick(
    *("sum", "last", "slice", "reverse]", "row_conv", "softmax of rows", "conv and pool"),
    *("conv of earlier words", "expand words", "pad with a word", "reshape narrower", "crf"),
    *("ctc]", "hsigmoid", "bidirectional gru", "gru as a block", "plain, two heads"),
)
@pytest.mark.parametrize("name", CASES)
def test_example_gives_what_it_gives_alone_and_so_do_its_gradients(name):
    case = CASES[name]
    expect = case.expect and (
        lambda params, **inputs: case.expect(params.get("layer", params), *inputs.values())
    )
    out = alone.check(case.call, rows_of(case), expect=expect, tolerance=2e-5)
    if name in CLEAR:
        assert not np.where(out.aligned_mask(), 0, out.values).any()
