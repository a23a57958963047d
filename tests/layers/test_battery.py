"""What every public layer keeps to, whatever it computes."""

import dataclasses
import doctest
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import penstock as ps
from penstock import layers
from penstock._errors import LayerContextError, ProgramError
from penstock._program.sequences import Sequence
from penstock.layers.activations import ACTIVATIONS
from tests.layers.programs import initial, normal, train

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
        arguments = sizes if name.startswith("bidirectional") else (width, *sizes)
        return jax.tree.leaves(getattr(layers, name)(words(x), *arguments, **options))[0]

    return call


def lstm_unit(x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
    return layers.lstm_unit(x, x, x, **options)[0]


def gru_unit(x: jax.Array, y: jax.Array, **options: Any) -> jax.Array:
    return layers.gru_unit(x, x[:, : x.shape[1] // 3], x.shape[1], **options)[0]


def dynamic_rnn(x: jax.Array, y: jax.Array) -> jax.Array:
    def step(memories: Any, word: jax.Array) -> Any:
        return memories + word, memories * word

    return layers.dynamic_rnn(step, x[:, 0], words(x))[1].values


def nnx_linear(x: jax.Array, **options: Any) -> jax.Array:
    with jax.ensure_compile_time_eval():  # as if it were made outside of the program
        module = nnx.Linear(x.shape[1], 3, rngs=nnx.Rngs(0))
    return layers.nnx_module(module, **options)(x)


IMAGE = {"shape": (6, 6, 2), "other": (6, 6, 4)}
WORDS = {"shape": (3, 4), "other": (3, 6)}
GATES = {"shape": (3, 8), "other": (3, 16)}

CASES = {
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
    "accuracy": Case(lambda x, y: layers.accuracy(x, y)),
    "add_positions": pure(lambda x, y: layers.add_positions(x), 3, 4),
    "batch_norm": Case(lambda x, y, **k: layers.batch_norm(x, **k), other=(5,)),
    "concat": pure(lambda x, y: layers.concat([x, x], axis=1)),
    "conv2d": Case(lambda x, y, **k: layers.conv2d(x, 3, 3, **k), **IMAGE),
    "conv2d_transpose": Case(
        lambda x, y, **k: layers.conv2d_transpose(x, 3, filter_size=3, **k), **IMAGE
    ),
    "cos_sim": pure(lambda x, y: layers.cos_sim(x, 2 * x)),
    "create_parameter": Case(
        lambda x, y, **k: layers.create_parameter([1, x.shape[1]], **k) + x, other=(5,)
    ),
    "create_parameters": Case(
        lambda x, y, **k: (
            x @ layers.create_parameters({"w": np.ones([x.shape[1], 3], "f")}, **k)["w"]
        ),
        other=(5,),
    ),
    "cross_entropy": Case(lambda x, y: layers.cross_entropy(layers.softmax(x), y)),
    "data": Case(lambda x, y: layers.data("x", x.shape[1:])),
    "depthwise_conv2d": Case(
        lambda x, y, **k: layers.depthwise_conv2d(x, 3, padding="SAME", **k), **IMAGE
    ),
    "drop_path": Case(lambda x, y: layers.drop_path(x, 0.5)),
    "dropout": Case(lambda x, y: layers.dropout(x, 0.5)),
    "embedding": Case(lambda x, y, **k: layers.embedding(y, [10, x.shape[1]], **k), other=(5,)),
    "example_keys": Case(
        lambda x, y: x + jax.vmap(lambda key: jax.random.uniform(key, [1]))(layers.example_keys())
    ),
    "fc": Case(lambda x, y, **k: layers.fc(x, 3, **k), other=(5,)),
    "flatten": pure(lambda x, y: layers.flatten(x), 2, 3),
    "gaussian_random": Case(lambda x, y: x + layers.gaussian_random([1, x.shape[1]])),
    "gaussian_random_batch_size_like": Case(
        lambda x, y: layers.gaussian_random_batch_size_like(x, [-1, 3])
    ),
    "glu": pure(lambda x, y: layers.glu(x)),
    "global_step": Case(lambda x, y: x + layers.global_step()),
    "group_norm": Case(lambda x, y, **k: layers.group_norm(x, 2, **k), **IMAGE),
    "huber_loss": pure(lambda x, y: layers.huber_loss(x, 2 * x, 1.0)),
    "img_conv_group": Case(
        lambda x, y, **k: layers.img_conv_group(x, [2, 3], 2, conv_with_batchnorm=True, **k),
        **IMAGE,
    ),
    "init_cache": pure(lambda x, y: x + layers.init_cache(x.shape[0], 4, 1, 1).keys[:, :, 0, 0]),
    "is_training": Case(lambda x, y: x * layers.is_training()),
    "l2_normalize": pure(lambda x, y: layers.l2_normalize(x, 1)),
    "layer_norm": Case(lambda x, y, **k: layers.layer_norm(x, **k), other=(5,)),
    "lrn": pure(lambda x, y: layers.lrn(x, 3), 6, 6, 4),
    "mean": Case(lambda x, y: layers.mean(x)),
    "monte_carlo": Case(
        lambda x, y: layers.monte_carlo(lambda x: layers.fc(x, size=3, act="tanh"), 2)(x)["mean"]
    ),
    "multi_head_attention": Case(
        lambda x, y, **k: layers.multi_head_attention(x, num_heads=2, **k), **WORDS
    ),
    "nnx_module": Case(lambda x, y, **k: nnx_linear(x, **k), other=(5,)),
    "reduce_mean": Case(lambda x, y: layers.reduce_mean(x)),
    **{
        name: pure(lambda x, y, name=name: getattr(layers, name)(x))
        for name in layers.__all__
        if name.startswith("reduce_") and name != "reduce_mean"
    },
    "one_hot": pure(lambda x, y: layers.one_hot(y, 4)),
    "pad2d": pure(lambda x, y: layers.pad2d(x, [0, 1, 2, 0], "reflect"), 6, 6, 2),
    "pool2d": pure(lambda x, y: layers.pool2d(x, 2, "avg", 2, 1), 6, 6, 2),
    "position_embedding": Case(lambda x, y, **k: layers.position_embedding(x, 5, **k), **WORDS),
    "random_key": Case(lambda x, y: x + jax.random.uniform(layers.random_key(), x.shape)),
    "rms_norm": Case(lambda x, y, **k: layers.rms_norm(x, **k), other=(5,)),
    "rotary_embedding": pure(lambda x, y: layers.rotary_embedding(x), 3, 2, 4),
    "scaled_dot_product_attention": Case(
        lambda x, y, **k: layers.scaled_dot_product_attention(x, x, x, 2, 0.5, **k),
        shape=(3, 4),
        other=(3, 6),
    ),
    "remat": Case(lambda x, y: layers.remat(lambda x: layers.fc(x, size=3, act="tanh"))(x)),
    "scope": Case(lambda x, y: layers.scope("part")(lambda: 2 * x)()),
    "segment_positions": pure(
        lambda x, y: x + layers.segment_positions(jnp.tile(y, (1, x.shape[1])))
    ),
    "separable_conv2d": Case(
        lambda x, y, param_attr=None, **k: layers.separable_conv2d(
            x, 3, 3, param_attr=param_attr, depthwise_attr=param_attr, **k
        ),
        **IMAGE,
    ),
    "sigmoid_cross_entropy_with_logits": pure(
        lambda x, y: layers.sigmoid_cross_entropy_with_logits(x, jax.nn.sigmoid(x))
    ),
    "simple_img_conv_pool": Case(
        lambda x, y, **k: layers.simple_img_conv_pool(x, 3, 3, 2, 2, **k), **IMAGE
    ),
    "sinusoidal_positions": pure(lambda x, y: x + layers.sinusoidal_positions(1, x.shape[1])),
    "softmax_with_cross_entropy": pure(lambda x, y: layers.softmax_with_cross_entropy(x, y)),
    "square_error_cost": pure(lambda x, y: layers.square_error_cost(x, 2 * x)),
    "sown": Case(lambda x, y: x + len(layers.sown())),
    "squeeze_excite": Case(lambda x, y, **k: layers.squeeze_excite(x, 2, **k), **IMAGE),
    "topk": pure(lambda x, y: layers.topk(x, 2)[0]),
    "transformer_decoder": Case(
        lambda x, y, **k: layers.transformer_decoder(x, 1, 2, 6, x, **k), **WORDS
    ),
    "transformer_encoder": Case(
        lambda x, y, **k: layers.transformer_encoder(x, 1, 2, 6, **k), **WORDS
    ),
    "transformer_encoder_layer": Case(
        lambda x, y, **k: layers.transformer_encoder_layer(x, 2, 6, **k), **WORDS
    ),
    "uniform_random": Case(lambda x, y: x + layers.uniform_random([1, x.shape[1]])),
    "uniform_random_batch_size_like": Case(
        lambda x, y: layers.uniform_random_batch_size_like(x, [-1, 3])
    ),
    "weight_decay_loss": Case(lambda x, y: x + layers.weight_decay_loss(0.1)),
    **{name: pure(lambda x, y, f=function: f(x)) for name, function in ACTIVATIONS.items()},
}
CLASSES = {
    *("DynamicRNN", "KeyValueCache", "L1Decay", "L2Decay", "ParamAttr", "Sentences"),
    "StaticRNN",
}
# Windows of images differ in the order of their numbers.
WITH_FORMAT = set(CASES) - {"im2sequence"}
WITH_PARAMETERS = [name for name, case in CASES.items() if case.other]


def labels(size: int = 6) -> np.ndarray:
    return np.arange(size, dtype=np.int32)[:, None] % 4


def input_name(shape: tuple[int, ...]) -> str:
    """Return what the input of a shape is called in a program of many layers."""
    return "x" if shape == (4,) else "x_" + "_".join(map(str, shape))


def feed_for_all(names: Iterable[str]) -> dict[str, np.ndarray]:
    shapes = {CASES[name].shape for name in names}
    return {"y": labels()} | {input_name(shape): normal(6, *shape) for shape in shapes}


def parameter_shapes(function: Callable[[], Any]) -> dict[str, tuple[int, ...]]:
    """Return shapes by name; nothing compiles."""
    rows = ps.ProgramBuilder(infer_func=function, place=jax.devices()[:1]).parameter_table()
    return {row.name: row.shape for row in rows if row.collection == "params"}


def inputs(shape: tuple[int, ...], name: str = "x") -> tuple[jax.Array, jax.Array]:
    return layers.data(name, shape), layers.data("y", [1], "int32")


def test_every_public_layer_is_in_the_battery():
    assert set(CASES) == set(layers.__all__) - CLASSES


def test_every_public_name_has_a_docstring_with_an_example():
    parse = doctest.DocTestParser().get_examples
    docstrings = {name: inspect.getdoc(getattr(layers, name)) or "" for name in layers.__all__}
    assert not [name for name, text in docstrings.items() if not parse(text)]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", range(6))
def test_layers_train_test_and_infer_finitely_in_one_compile(part, precision):
    """Layers stand side by side in one program, over a batch that the devices do not divide."""
    names = list(CASES)[part::6]

    def forward():
        outs = {}
        for name in names:
            x, y = inputs(CASES[name].shape, input_name(CASES[name].shape))
            # Behind a parameter, so that a gradient flows through the layer's input too.
            ones = jax.nn.initializers.ones
            x = x * layers.create_parameter([1] * x.ndim, name=f"gain of {name}", attr=ones)
            # As from a layer of products.
            outs[name] = CASES[name].call(x.astype(precision), y)
        return outs

    def function():
        outs = forward()
        return sum(layers.mean(out).astype("float32") for out in outs.values()), outs

    builder = ps.ProgramBuilder(
        function,
        optax.sgd(0.1),
        infer_func=forward,
        place=jax.devices()[:2],
        precision=precision,
    )
    state, whole = builder.init(), feed_for_all(names)
    feed = {key: value[:5] for key, value in whole.items()}
    for _ in range(2):
        loss, tested = builder.test(state, feed)
        inferred = builder.infer(state, whole)
        state, (_, trained) = builder.train(state, feed)
        for values in ({"loss": loss}, tested, inferred, trained, state.variables):
            for path, value in jax.tree.leaves_with_path(values):
                assert np.isfinite(np.asarray(value, np.float32)).all(), path
        for name in names:
            assert trained[name].shape == tested[name].shape
            assert np.shape(inferred[name])[1:] == tested[name].shape[1:]
    assert builder.num_compiles == {"train": 1, "test": 1, "infer": 1}


@pytest.mark.parametrize("name", CASES)
def test_layer_outside_a_program_says_where_it_belongs_or_works(name):
    case = CASES[name]
    x, y = jnp.asarray(normal(6, *case.shape)), jnp.asarray(labels())
    if not case.needs_program:
        assert np.isfinite(jax.jit(case.call)(x, y)).all()
        return
    with pytest.raises(LayerContextError, match=r"layers\.\w+ got called outside a program"):
        case.call(x, y)


@pytest.mark.quick("batch_norm", "conv2d]", "create_parameter]", "fc", "img_conv_group")
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_layer_shares_its_parameters_with_those_of_its_name_alone(name):
    case = CASES[name]

    def shapes(*names):
        options = [{"name": layer_name} if layer_name else {} for layer_name in names]
        return parameter_shapes(
            lambda: [case.call(*inputs(case.shape), **keywords) for keywords in options]
        )

    once = shapes("same")
    assert shapes("same", "same") == once
    assert len(shapes("same", "other")) == 2 * len(once) > 0
    unnamed = shapes(None, None)
    assert len(unnamed) == 2 * len(once)
    assert all(path.split("/")[0].rpartition("_")[2].isdigit() for path in unnamed)


@pytest.mark.quick("batch_norm", "conv2d]", "create_parameter]", "fc", "img_conv_group")
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_layer_of_one_name_and_another_shape_names_both_places(name):
    case = CASES[name]

    def function():
        first = case.call(*inputs(case.shape), name="same")
        return first, case.call(*inputs(case.other, "z"), name="same")

    place = r"test_battery.py:\d+"
    message = rf"parameter 'same.*' got shape .* at .*{place}, expected shape .* as at"
    with pytest.raises(ProgramError, match=message):
        initial(function)


def parameter_arguments(name: str) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(getattr(layers, name)).parameters)


IMAGE_LAYERS = {
    "batch_norm": lambda x, **k: layers.batch_norm(x, **k),
    "conv2d": lambda x, **k: layers.conv2d(x, 3, (3, 2), act="tanh", padding="SAME", **k),
    "conv2d_transpose": lambda x, **k: layers.conv2d_transpose(
        x, 3, filter_size=3, stride=2, **k
    ),
    "depthwise_conv2d": lambda x, **k: layers.depthwise_conv2d(x, 3, stride=2, **k),
    "group_norm": lambda x, **k: layers.group_norm(x, 2, **k),
    "img_conv_group": lambda x, **k: layers.img_conv_group(x, [2, 3], 2, **k),
    "lrn": lambda x, **k: layers.lrn(x, 3, 2.0, 0.3, 0.75, **k),
    "pad2d": lambda x, **k: layers.pad2d(x, [1, 2, 3, 0], "reflect", **k),
    "pool2d": lambda x, **k: layers.pool2d(x, 3, "avg", 2, 1, **k),
    "pool2d of maxima": lambda x, **k: layers.pool2d(x, 3, "max", 2, 1, **k),
    "pool2d of all": lambda x, **k: layers.pool2d(x, global_pooling=True, **k),
    "separable_conv2d": lambda x, **k: layers.separable_conv2d(x, 3, (2, 3), stride=2, **k),
    "simple_img_conv_pool": lambda x, **k: layers.simple_img_conv_pool(x, 3, 3, 2, 2, 1, **k),
}  # fmt: skip


def test_images_with_channels_first_give_the_same():
    taking = {name for name in WITH_FORMAT if "data_format" in parameter_arguments(name)}
    assert {name.split()[0] for name in IMAGE_LAYERS} == taking

    def program():
        x, outs = layers.data("x", [7, 6, 4]), {}
        for name, call in IMAGE_LAYERS.items():
            own = {"name": f"of {name}"} if "name" in parameter_arguments(name.split()[0]) else {}
            first = call(x.transpose(0, 3, 1, 2), data_format="NCHW", **own)
            outs[name] = call(x, **own), first.transpose(0, 2, 3, 1)
        return sum(layers.mean(last + first) for last, first in outs.values()), outs

    for name, (last, first) in train(program, {"x": normal(3, 7, 6, 4)}).values[1].items():
        np.testing.assert_allclose(first, last, rtol=1e-5, atol=1e-5, err_msg=name)


def test_layers_freeze_scale_and_initialise_their_parameters():
    half = jax.nn.initializers.constant(0.5)
    attr = layers.ParamAttr(initializer=half, learning_rate=0.25, trainable=False)
    names = [name for name in WITH_PARAMETERS if "param_attr" in parameter_arguments(name)]
    # Fluid's attention has none either; those of other libraries have several parameters.
    without = {"scaled_dot_product_attention", "create_parameters", "nnx_module"}
    assert set(WITH_PARAMETERS) - set(names) == without | {"create_parameter"}

    def program():
        placed = {n: inputs(CASES[n].shape, input_name(CASES[n].shape)) for n in names}
        return [CASES[n].call(*placed[n], param_attr=attr, name=f"of {n}") for n in names]

    builder = ps.ProgramBuilder(infer_func=program, place=jax.devices()[:1])
    specs = builder.programs.network.specs
    params = {"/".join(p): spec for p, spec in specs.items() if spec.collection == "params"}
    for name in names:
        # A norm inside a net has no attribute.
        own = {
            path: (spec.learning_rate, spec.trainable, spec.initializer is half)
            for path, spec in params.items()
            if path.startswith(f"of {name}") and "norm" not in path.removeprefix(f"of {name}")
            if not path.endswith(("b", "bias"))
        }
        assert own == dict.fromkeys(own, (0.25, False, True)) != {}
