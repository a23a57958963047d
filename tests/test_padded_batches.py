"""Feeds: what is accepted, what is refused and how it is said, padding and placing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import _padded_batches, layers
from penstock._program.inputs import FeedSpec
from tests.networks import eight_devices, linear_data, linear_program, one_device


def spec(name, shape, dtype="float32"):
    return FeedSpec(name=name, shape=tuple(shape), dtype=np.dtype(dtype))


IMAGE = {"image": spec("image", [2, 3, 1])}
LABEL = {"label": spec("label", [1], "int32")}
BOTH = {**IMAGE, **LABEL}


def checked(feed, specs=BOTH, declared=BOTH):
    return _padded_batches.check_feed(feed, specs, declared)


def error_of(feed, specs=BOTH, declared=BOTH):
    with pytest.raises(ps.FeedError) as caught:
        checked(feed, specs, declared)
    return str(caught.value)


def images(num_examples, *shape):
    return np.zeros((num_examples, *(shape or (2, 3, 1))), np.float32)


# What is accepted.


LABELS = np.arange(4, dtype=np.int32)
FLAT = (np.arange(24, dtype=np.float32) % 8).reshape(4, 6)
# By form, an input and its value; what comes of all is of the dtype and the shape declared.
ACCEPTED = {
    **{f"labels {shape}": ("label", LABELS.reshape(shape)) for shape in ((4,), (4, 1), (4, 1, 1))},
    "labels in a list": ("label", LABELS.tolist()),
    "flat examples": ("image", FLAT),
    "examples in a list": ("image", FLAT.reshape(4, 2, 3, 1).tolist()),
    "a mask without masked values": ("image", np.ma.masked_array(FLAT)),
    **{
        f"{dtype} for {name}": (name, value.astype(dtype))
        for name, value, dtypes in (
            ("image", FLAT, "float64 float16 bfloat16 float8_e4m3fn int64 int4 bool"),
            ("label", LABELS, "int64 uint8 int16 int8"),
        )
        for dtype in dtypes.split()
    },
}


@pytest.mark.parametrize("form", ACCEPTED)
def test_feed_of_every_form_is_an_array_as_declared(form):
    name, value = ACCEPTED[form]
    columns, size = checked({name: value}, {name: BOTH[name]})
    array = columns[name]
    assert size == 4
    assert type(array) is np.ndarray
    assert (array.dtype, array.shape[1:]) == (BOTH[name].dtype, BOTH[name].shape)
    expected = np.asarray(value).astype(array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(array, expected)


def test_bytes_for_a_floating_input_stay_bytes_until_they_are_on_the_device():
    columns, _ = checked({"image": FLAT.astype(np.uint8)}, IMAGE)
    assert columns["image"].dtype == np.uint8


def test_input_of_another_program_of_the_builder_is_left_out():
    columns, _ = checked({"image": images(2), "label": np.zeros((2, 1), np.int32)}, IMAGE)
    assert list(columns) == ["image"]


# What is refused, and how.


class Unreadable:
    """A tensor of another library, on a GPU."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Use .cpu()")


SHAPED = "feed 'image' got shape {}, expected [batch, 2, 3, 1]. "
REMEDY = (
    "Without the batch axis that is what layers.data declares. Change the shape there, or what the "
    "reader yields."
)
SINGLE = "This is one example without a batch axis. Use readers.batch or value[None]."
MASKED = np.ma.masked_array(np.zeros((2, 6)), mask=np.eye(2, 6))
NO_MASK = "feed 'image' got masked values, expected an array without a mask...."
NO_ARRAY = "feed 'image' got what numpy makes no array of: "
NO_FIT = "feed 'label' got {} values from 5 to {}, expected values that fit int32."
# A text that ends in three dots goes on.
REFUSED = {
    "an input that is missing": (
        {"image": images(2), "carried": [0, 0]},
        "feed got 'image', 'carried', expected also 'label'.",
    ),
    "masked values": ({"image": MASKED}, NO_MASK),
    "a list of masked values": ({"image": list(MASKED)}, NO_MASK),
    **{
        f"shape {shape}": ({"image": np.zeros(shape)}, SHAPED.format(list(shape)) + REMEDY)
        for shape in ((2, 7), (2,), (2, 2, 3, 2), ())
    },
    "axes in another order": (
        {"image": images(2, 1, 2, 3)},
        SHAPED.format([2, 1, 2, 3]) + "Only flat examples are reshaped; these axes are in another "
        "order or grouping. Transpose or reshape them in the reader, or declare them so "
        "with layers.data.",
    ),
    **{
        f"{dtype} for {name}": (
            {name: np.zeros((2, *BOTH[name].shape), dtype)},
            f"feed {name!r} got dtype {np.dtype(dtype)}, expected {BOTH[name].dtype}. It is not "
            "converted, since that would lose information. Convert it in the reader.",
        )
        for name, dtype in (
            *(("label", "float32"), ("label", "bfloat16"), ("image", "complex64")),
            *(("image", "<U3"), ("image", "V4"), ("image", "M8[s]"), ("image", "O")),
        )
    },
    "large numbers": ({"label": np.array([[5], [2**40]])}, NO_FIT.format("int64", 2**40)),
    "large numbers without a sign": (
        {"label": np.array([[5], [2**31]], "uint32")},
        NO_FIT.format("uint32", 2**31),
    ),
    "large numbers on the device": (
        {"label": jnp.array([[5], [2**31]], "uint32")},
        NO_FIT.format("uint32", 2**31),
    ),
    "different lengths": (
        {"image": images(3), "label": np.zeros((2, 1), np.int32)},
        "feed got batches of different lengths {'image': 3, 'label': 2}, expected one length for "
        "all inputs. The first axis counts examples. See which input the reader cuts otherwise.",
    ),
    "no example": ({"image": images(0)}, "feed got a batch of 0 examples, expected at least 1."),
    "no dict": ((images(2), 1), "feed got tuple, expected a dict of input name to array...."),
    "rows of unequal length": ({"image": [[1.0, 2.0], [3.0]]}, f"{NO_ARRAY}..."),
    "a tensor on a GPU": (
        {"image": Unreadable()},
        f"{NO_ARRAY}Use .cpu(). Convert it in the reader.",
    ),
    "nothing": (
        {"image": None},
        "feed 'image' got NoneType, expected an array. Convert it in the reader.",
    ),
    "an example": ({"image": np.zeros((2, 3, 1))}, SHAPED.format([2, 3, 1]) + SINGLE),
    "a flat example": ({"image": np.zeros(6)}, SHAPED.format([6]) + SINGLE),
    "a label": (
        {"label": np.int32(3)},
        f"feed 'label' got shape [], expected [batch, 1]. {SINGLE}",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_feed_that_does_not_fit_is_refused_saying_what_to_do(what):
    feed, text = REFUSED[what]
    is_whole = not isinstance(feed, dict) or "carried" in feed
    specs = BOTH if is_whole else {name: BOTH[name] for name in feed}
    message, begin = error_of(feed, specs, declared=None), text.removesuffix("...")
    assert message.startswith(begin) if begin != text else message == text


def test_feed_with_a_misspelt_name_lists_what_there_is_and_the_nearest():
    text = error_of({"imgae": images(2), "label": np.zeros((2, 1), np.int32)}, declared=None)
    assert text == "feed got 'imgae', 'label', expected also 'image'. Is it misspelt as 'imgae'?"


def test_feed_with_several_problems_lists_them_all():
    text = error_of({"image": images(2, 5), "lable": np.zeros(2, np.int32)})
    assert text.splitlines() == [
        "feed got the unknown input 'lable', expected 'image', 'label'. Did you mean 'label'?",
        f"{SHAPED.format([2, 5])}{REMEDY}",
        "feed got 'image', 'lable', expected also 'label'. Is it misspelt as 'lable'?",
    ]


# The errors in a program: before it runs, and from every way in.


def program():
    prediction = layers.fc(layers.data("x", shape=[4]), size=1)
    loss = layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    return loss, prediction


@pytest.fixture(scope="module")
def trainer():
    def infer_program():
        return layers.fc(layers.data("x", shape=[4]), size=1)

    return ps.Trainer(program, optax.sgd(0.1), infer_func=infer_program, place=one_device())


@pytest.mark.parametrize("how", ["train", "test", "infer", "builder"])
def test_wrong_feed_is_refused_before_anything_is_compiled(trainer, how):
    wrong = {"x": np.zeros((2, 5), np.float32), "y": np.zeros((2, 1), np.float32)}
    ways = {
        "train": lambda: trainer.train([wrong]),
        "test": lambda: trainer.test([wrong]),
        "infer": lambda: trainer.infer({"x": wrong["x"]}),
        "builder": lambda: trainer.builder.train(trainer.builder.init(), wrong),
    }
    with pytest.raises(ps.FeedError, match=r"feed 'x' got shape \[2, 5\], expected \[batch, 4\]"):
        ways[how]()
    assert not trainer.builder.num_compiles


def test_feed_to_infer_needs_the_inputs_of_the_infer_function_alone(trainer):
    data = linear_data(3)
    assert trainer.infer({"x": data["x"]}).shape == trainer.infer(data).shape == (3, 1)


# Padding and placing.


def builder_on(place):
    return ps.ProgramBuilder(linear_program, place=place())


def place(builder, *sizes):
    """Place batches of ones of the given sizes for one launch."""
    batches = [{"x": np.ones((n, 4), np.float32), "y": np.ones((n, 1), np.float32)} for n in sizes]
    return builder.programs.place("train", batches)


@pytest.mark.parametrize(
    ("places", "size", "padded_size"),
    [(one_device, 3, 3), (eight_devices, 3, 8), (eight_devices, 8, 8), (eight_devices, 17, 24)],
)
def test_batch_is_padded_to_a_multiple_of_the_devices(places, size, padded_size):
    placed = place(builder_on(places), size)
    assert (placed.size, placed.num_steps) == (size, 1)
    assert placed.feed["x"].shape == (padded_size, 4)
    assert placed.rows == (padded_size, size, ((0, size),))


def test_batches_of_one_launch_of_different_sizes_are_refused():
    with pytest.raises(ps.FeedError, match="a launch got batches of 2, 3 examples, expected one"):
        place(builder_on(one_device), 2, 3)


@pytest.mark.parametrize(
    ("owners", "shares", "rows"),
    [
        ([0, 0, 1, 1], (4, 4), (8, ((0, 8),))),
        ([0, 0, 1, 1], (4, 3), (8, ((0, 7),))),
        ([0, 0, 1, 1], (3, 4), (8, ((0, 3), (4, 8)))),
        ([0, 0, 1, 1], (4, 0), (8, ((0, 4),))),
        ([0, 0, 1, 1], (0, 1), (4, ((2, 3),))),
        ([0, 1, 0, 1], (3, 4), (8, ((0, 5), (6, 8)))),
        ([0, 1, 1], (2, 3), (6, ((0, 5),))),
    ],
)
def test_rows_of_processes_that_bring_different_numbers(owners, shares, rows, monkeypatch):
    monkeypatch.setattr(_padded_batches._mesh, "owners", lambda mesh: owners)
    feeder = _padded_batches.Feeder(builder_on(one_device).mesh, {}, {}, exchange=lambda *_: [])
    chosen = feeder.choose_rows(shares)
    assert (chosen.size, chosen.parts) == rows
    assert chosen.num_examples == sum(shares)
    # What is cut off comes back where it was.
    values = jnp.arange(chosen.size)
    cut = chosen.cut({"x": values}, builder_on(one_device).mesh, "split")["x"]
    spread = chosen.spread(cut, 1, builder_on(one_device).mesh, "split")
    is_example = np.zeros(chosen.size, bool)
    for begin, end in chosen.parts:
        is_example[begin:end] = True
    np.testing.assert_array_equal(spread, np.where(is_example, values, 0))


def test_process_without_examples_brings_bytes_as_the_others_do_and_two_dtypes_are_refused(
    monkeypatch,
):
    monkeypatch.setattr(_padded_batches._mesh, "owners", lambda mesh: [0, 1])
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    theirs = [3, ["image"]], {}
    feeder = _padded_batches.Feeder(
        builder_on(one_device).mesh,
        {"image": spec("image", [4])},
        exchange=lambda what, own: [own, theirs],
    )
    batch = feeder.prepare([{"image": np.zeros((0, 4), np.float32)}])
    assert batch.columns[0]["image"].dtype == np.uint8
    assert batch.rows.num_examples == 3
    with pytest.raises(ps.FeedError, match="feed got bytes for 'image' on some processes and oth"):
        feeder.prepare([{"image": np.zeros((2, 4), np.float32)}])


def test_bytes_are_placed_as_bytes_and_give_what_floats_give():
    def program():
        return layers.mean(layers.fc(layers.data("image", [4]), size=1))

    builder = ps.ProgramBuilder(program, optax.sgd(0.1), place=jax.devices()[:1])
    batch = np.arange(32, dtype=np.uint8).reshape(8, 4)
    for _ in range(2):  # the second goes the short way
        assert builder.programs.place("train", [{"image": batch}]).feed["image"].dtype == np.uint8
    state = builder.init()
    assert builder.test(state, {"image": batch}) == builder.test(
        state, {"image": batch.astype(np.float32)}
    )


def test_feed_as_declared_is_passed_on_without_a_copy():
    feed = {"image": images(5), "label": np.zeros((5, 1), np.int32)}
    columns, size = checked(feed)
    assert size == 5
    assert all(columns[name] is value for name, value in feed.items())


def test_batch_on_one_cpu_device_stays_in_host_memory_until_its_launch():
    builder = builder_on(one_device)
    data = linear_data(2000)
    for _ in range(2):
        assert builder.programs.place("train", [data]).feed["x"] is data["x"]
