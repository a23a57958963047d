"""What a builder shows of its programs."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock.program_builder._inspect import ParameterRow, summary
from tests.networks import PLACES, classifier, classifier_program, eight_devices, one_device


@pytest.fixture(scope="module", params=PLACES.args[1], ids=["one", "eight"])
def builder(request):
    return ps.ProgramBuilder(
        classifier_program, optax.adam(0.1), infer_func=classifier, place=request.param()
    )


@pytest.mark.parametrize("mode", ["train", "test", "infer"])
def test_inspection_of_each_program_gives_trace_texts_cost_and_memory(builder, mode):
    inspected = builder.inspect(mode, batch_size=16)
    assert "tanh" not in inspected.jaxpr
    assert "dot_general" in inspected.jaxpr
    assert "stablehlo.dot_general" in inspected.lowered_text
    assert "HloModule" in inspected.compiled_text
    per_device = 16 // builder.mesh.size
    assert inspected.flops > 2 * per_device * (4 * 8 + 8 * 3)
    assert inspected.bytes_accessed > 0
    assert set(inspected.memory_bytes) == {"arguments", "outputs", "aliased", "temporary", "code"}
    assert (inspected.memory_bytes["aliased"] > 0) is (mode == "train")
    assert (
        str(inspected).splitlines()[0].endswith("floating point operations per launch and device")
    )
    assert builder.num_compiles == {}


def of_sequences():
    def total(name, lod_level, **options):
        words = layers.data(name, [1], "int32", lod_level=lod_level, **options)
        words = words if lod_level == 1 else words.inner
        return layers.mean(layers.embedding(words, [9, 4]))

    return total("w", 1) + total("l", 1, buckets=[8, 24]) + total("d", 2)


@pytest.mark.quick("train", "infer")
@pytest.mark.parametrize(
    ("mode", "place"), [("train", one_device), ("test", one_device), ("infer", eight_devices)]
)
def test_inspection_shows_sequences_as_long_as_the_last_bucket(mode, place):
    builder = ps.ProgramBuilder(
        of_sequences, optax.sgd(0.1), infer_func=of_sequences, place=place()
    )
    inspected = builder.inspect(mode)
    for shape in ("64,16,1", "64,24,1", "64,4,16,1"):
        assert f"i32[{shape}]" in inspected.jaxpr
    assert "HloModule" in inspected.compiled_text


@pytest.mark.parametrize("mode", ["train", "test"])
def test_inspection_takes_a_batch_of_any_size(mode):
    place = jax.devices()[:3]
    builder = ps.ProgramBuilder(
        classifier_program, optax.adam(0.1), place=place, gradient_accumulation_steps=2
    )
    assert "f32[66,4]" in builder.inspect(mode).jaxpr
    assert "f32[64,4]" in builder.inspect(mode).jaxpr
    assert builder.inspect(mode, batch_size=np.int64(7)).flops > 0


@pytest.mark.parametrize("size", [0, -64, "64", 64.0, True])
def test_inspection_of_a_batch_size_that_is_no_count_is_refused(builder, size):
    with pytest.raises(
        ValueError, match=r"^inspect\(batch_size\) got .*, expected an integer of 1"
    ):
        builder.inspect(batch_size=size)


def test_inspection_of_an_unknown_mode_suggests_the_nearest(builder):
    with pytest.raises(ps.UnknownNameError) as caught:
        builder.inspect("trian")
    assert str(caught.value) == (
        "inspect(mode) got 'trian', expected one of 'train', 'test', 'infer'. Did you mean 'train'?"
    )


def test_inspection_of_infer_without_an_infer_function_is_refused():
    builder = ps.ProgramBuilder(classifier_program, optax.adam(0.1), place=one_device())
    with pytest.raises(ps.ProgramError, match="infer got no infer_func, expected one"):
        builder.inspect("infer")


def test_summary_lists_every_entry_and_the_totals():
    def program():
        frozen = layers.ParamAttr(trainable=False)
        hidden = layers.fc(layers.data("x", shape=[4]), size=3, param_attr=frozen)
        return layers.mean(layers.batch_norm(hidden))

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=one_device())
    assert repr(builder.summary()).splitlines() == [
        "name                   shape   dtype    elements",
        "fc_0/w                 [4, 3]  float32        12  frozen",
        "fc_0/b                 [3]     float32         3",
        "batch_norm_0/scale     [3]     float32         3",
        "batch_norm_0/bias      [3]     float32         3",
        "batch_norm_0/mean      [3]     float32         3  statistic",
        "batch_norm_0/variance  [3]     float32         3  statistic",
        "9 trained, 12 frozen, 6 in running statistics",
    ]


def test_summary_is_a_table_in_a_notebook_which_escapes_names(builder):
    text = builder.summary()
    table = text._repr_html_()
    for row in builder.parameter_table():
        assert all(f">{cell}</td>" in table for cell in (row.name, str(list(row.shape))))
    assert table.count("<tr>") == len(builder.parameter_table()) + 1
    assert table.endswith(f"<p>{text.splitlines()[-1]}</p>")
    row = ParameterRow(
        name="<b>", collection="params", shape=(2,), dtype="float32", is_trainable=True
    )
    assert "&lt;b&gt;" in summary([row])._repr_html_()


def test_summary_of_a_program_without_parameters_says_so():
    builder = ps.ProgramBuilder(infer_func=lambda: layers.data("x", [2]), place=one_device())
    assert builder.summary() == "no parameters"
    assert builder.summary()._repr_html_() == "<p>no parameters</p>"


def test_inspect_shows_what_accelerators_are_given():
    def program():
        x = layers.data("x", [8, 8, 4])
        x = layers.depthwise_conv2d(layers.conv2d(x, 4, 1), 3)
        return layers.mean(layers.reduce_mean(layers.pool2d(x, 2, pool_stride=2)))

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), infer_func=program, place="cpu")
    for mode, number in (("train", 5), ("test", 2), ("infer", 2)):
        plain = builder.inspect(mode, as_on_accelerators=True).lowered_text
        assert plain.count("stablehlo.convolution") == number
        assert ("select_and_scatter" in plain) == (mode == "train")
        own = builder.inspect(mode).lowered_text
        assert "stablehlo.convolution" not in own
        assert "select_and_scatter" not in own
