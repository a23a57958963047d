"""What readers yield becomes batches: every accepted form, and every error of order and arity."""

import threading
from typing import Any

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from penstock._program.inputs import FeedSpec
from penstock._reader_items import Fields, Pass, check_reader, resume_pass
from tests.networks import (
    Recorder,
    eight_devices,
    linear_data,
    linear_program,
    linear_reader,
    one_device,
)

SPECS = {
    "image": FeedSpec(name="image", shape=(2,), dtype=np.dtype("float32")),
    "label": FeedSpec(name="label", shape=(1,), dtype=np.dtype("int32")),
}
ONE = {"image": SPECS["image"]}
IMAGES = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
LABELS = np.array([5, 6], np.int32)


def batch_of(item, feed_order=None, specs=SPECS):
    batch = Fields(specs, feed_order).as_batch(item)
    return {name: np.asarray(value).tolist() for name, value in batch.items()}


def error_of(make):
    with pytest.raises(ps.FeedError) as caught:
        make()
    return str(caught.value)


# The accepted forms.


@pytest.mark.parametrize(
    ("item", "feed_order"),
    [
        ({"image": IMAGES, "label": LABELS}, None),
        ({"image": IMAGES, "label": LABELS}, ["label", "image"]),
        ((IMAGES, LABELS), ["image", "label"]),
        ((LABELS, IMAGES), ["label", "image"]),
        ((LABELS, IMAGES), {"image": 1, "label": 0}),
        ([IMAGES, LABELS], ["image", "label"]),  # as torch's DataLoader makes it of tuples
        ([(IMAGES[0], 5), (IMAGES[1], 6)], ["image", "label"]),
        ([[IMAGES[0], 5], [IMAGES[1], 6]], ["image", "label"]),
        ([(5, IMAGES[0]), (6, IMAGES[1])], {"label": 0, "image": 1}),
        ([{"image": IMAGES[0], "label": 5}, {"image": IMAGES[1], "label": 6}], None),
    ],
)
def test_batch_in_every_accepted_form_is_the_same_dict(item, feed_order):
    assert batch_of(item, feed_order) == {"image": IMAGES.tolist(), "label": LABELS.tolist()}


@pytest.mark.parametrize(
    ("item", "size"),
    [
        *((item, 2) for item in (IMAGES, (IMAGES,), [IMAGES], [IMAGES[0], IMAGES[1]])),
        ([(IMAGES[0],), (IMAGES[1],)], 2),
        # One array in a list is a batch of one or a sample.
        *((item, 1) for item in ([IMAGES[:1]], [IMAGES[0]], [(IMAGES[0],)])),
    ],
)
def test_batch_of_the_one_input_needs_no_feed_order(item, size):
    assert batch_of(item, specs=ONE) == {"image": IMAGES[:size].tolist()}


def test_flat_example_alone_in_a_batch_of_the_one_input_has_a_batch_axis():
    square = FeedSpec(name="image", shape=(2, 2), dtype=np.dtype("float32"))
    flat = np.arange(4.0)[None]  # the short last batch of torch's DataLoader
    assert batch_of([flat], specs={"image": square}) == {"image": flat.tolist()}
    assert batch_of([flat[0]], specs={"image": square}) == {"image": flat.tolist()}


def test_fields_that_are_no_inputs_are_carried():
    paths = ("a.png", "b.png")
    assert batch_of([paths, IMAGES], ["path", "image"], ONE)["path"] == list(paths)
    expected = {"image": IMAGES.tolist(), "extra": LABELS.tolist()}
    assert batch_of({"image": IMAGES, "extra": LABELS}, ["image"], ONE) == expected
    assert batch_of((LABELS, IMAGES), ["extra", "image"], ONE) == expected


def test_samples_carry_fields_that_make_no_array():
    samples = [{"image": IMAGES[0], "box": [1]}, {"image": IMAGES[1], "box": [[2, 3], [4]]}]
    assert Fields(ONE, None).as_batch(samples)["box"] == [[1], [[2, 3], [4]]]


def test_samples_of_python_numbers_are_stacked():
    batch = Fields(SPECS, ["image", "label"]).as_batch([([1.0, 2.0], 3), ([4.0, 5.0], 6)])
    assert batch["image"].shape == (2, 2)
    assert batch["label"].tolist() == [3, 6]


# Errors of order and arity.

ORDER = ["image", "label"]
ARITY = (
    "the reader yielded {}, expected 2: 'image', 'label'. Each field is one input, in the order of "
    "feed_order."
)
NO_BATCH = (
    "the reader yielded {}, expected a batch: a dict, a tuple or an array. See what the function "
    "that makes it returns."
)
UNEQUAL = (
    "feed {} of one batch, expected one shape in all of them. Declare sequences of any length with "
    "layers.data(..., lod_level=1)."
)
REFUSED = [
    ((IMAGES, LABELS, LABELS), ORDER, ARITY.format("a batch of 3 fields")),
    ((IMAGES,), ORDER, ARITY.format("a batch of 1 fields")),
    (IMAGES, ORDER, ARITY.format("a batch of 1 fields")),
    ([(IMAGES[0], 5), (IMAGES[1],)], ORDER, ARITY.format("sample 1 of a batch of 1 fields")),
    (
        (IMAGES, LABELS),
        None,
        "the reader yielded a batch of 2 unnamed fields, expected names for them: the program "
        "declares 'image', 'label'. Pass feed_order=[...] with the names in the order of the "
        "fields, or let the reader yield dicts.",
    ),
    *(
        (item, order, NO_BATCH.format(repr(item)))
        for item in (None, "a.png")
        for order in (None, ORDER)
    ),
    ([], ORDER, "the reader yielded an empty list, expected a list of samples."),
    (
        [(np.zeros(2), 0), (np.zeros(3), 1)],
        ORDER,
        UNEQUAL.format("'image' got samples of shapes [(2,), (3,)] in 2 of 2 samples"),
    ),
    (
        [{"image": IMAGES[0], "label": 1}, {"image": IMAGES[1]}],
        None,
        UNEQUAL.format("'label' got samples of shapes [()] in 1 of 2 samples"),
    ),
]


@pytest.mark.parametrize(("item", "order", "text"), REFUSED)
def test_item_that_is_no_batch_of_the_inputs_is_refused(item, order, text):
    assert error_of(lambda: batch_of(item, order)) == text


def test_samples_with_masked_values_keep_their_mask():
    masked = np.ma.masked_array(np.zeros(4), mask=[0, 1, 0, 0])
    samples = [(masked, 1), (np.zeros(4), 1)]
    batch = Fields(SPECS, ["image", "label"]).as_batch(samples)
    assert np.ma.count_masked(batch["image"]) == 1  # what checks the feed refuses it


@pytest.mark.parametrize(
    ("feed_order", "text"),
    [
        (
            ["image", "lable"],
            "feed_order got ['image', 'lable'], expected the inputs that "
            "layers.data declares: 'image', 'label' (unknown: 'lable'; missing: 'label').",
        ),
        (
            ["image"],
            "feed_order got ['image'], expected the inputs that "
            "layers.data declares: 'image', 'label' (unknown: nothing; missing: 'label').",
        ),
        (
            ["image", "image"],
            "feed_order got ['image', 'image'], expected a list of names, each once.",
        ),
        ("image", "feed_order got 'image', expected a list of names, each once."),
        ({"image": 0, "label": 2}, "feed_order got indices [0, 2], expected each of [0, 1] once."),
        ({"image": 1, "label": 1}, "feed_order got indices [1, 1], expected each of [0, 1] once."),
    ],
)
def test_feed_order_that_does_not_fit_the_program_is_refused(feed_order, text):
    assert error_of(lambda: Fields(SPECS, feed_order)) == text


# Passes over a reader.


def test_reader_that_is_neither_called_nor_iterated_is_refused():
    with pytest.raises(TypeError) as caught:
        check_reader(7, 1)
    assert str(caught.value) == (
        "reader got int, expected a function without arguments that returns an iterator, or an "
        "iterable such as readers.arrays(...)."
    )


def test_samples_by_index_are_refused_with_the_reader_for_them():
    class Dataset:
        def __getitem__(self, index):
            return index

    with pytest.raises(TypeError, match=r"are read by readers.indexed\(source, batch_size\)\.$"):
        check_reader(Dataset(), 1)


def test_reader_that_only_starts_passes_of_a_number_is_taken():
    class Numbered:
        def iterate(self, epoch):
            return iter([{"x": np.full([2, 1], epoch, np.float32)}])

    check_reader(Numbered(), 2)
    passes = [next(iter(Pass(Numbered(), Fields({}, None), epoch))) for epoch in (0, 1)]
    assert [float(batch["x"][0, 0]) for batch in passes] == [0, 1]


def test_error_of_a_batch_is_noted_with_its_number():
    passed = iter(Pass([(IMAGES,), (IMAGES, LABELS)], Fields(ONE, None), 0))
    next(passed)
    with pytest.raises(ps.FeedError) as caught:
        next(passed)
    assert caught.value.__notes__ == ["In batch 1 of the reader."]


# From the trainer.


@pytest.fixture(scope="module")
def trainer():
    return ps.Trainer(linear_program, optax.sgd(0.01), place=one_device())


@pytest.mark.parametrize("call", ["train", "test"])
def test_empty_reader_is_refused(trainer, call):
    with pytest.raises(
        ps.ReaderError, match=r"the reader yielded no batch .*expected at least one"
    ):
        getattr(trainer, call)([])


def test_reader_used_up_by_an_earlier_call_is_refused(trainer):
    reader = iter(linear_reader())
    trainer.train(reader)
    with pytest.raises(
        ps.ReaderError, match=r"or is it an iterator that an earlier pass used up\?"
    ):
        trainer.train(reader)


def test_iterator_for_several_epochs_is_refused_before_anything_is_read(trainer):
    read = []

    def batches():
        read.append(True)
        yield linear_data(4)

    with pytest.raises(ps.ReaderError, match="reader got a generator for 2 epochs"):
        trainer.train(batches(), num_epochs=2)
    assert not read


def test_feed_order_that_does_not_fit_is_refused_before_anything_is_read(trainer):
    read = []
    for call in (trainer.train, trainer.test):
        with pytest.raises(ps.FeedError, match="unknown: 'z'; missing: 'y'"):
            call(lambda: read.append(True), feed_order=["x", "z"])
    assert not read


def test_test_uses_the_feed_order_of_train_unless_told_otherwise(trainer):
    data = linear_data(10)
    expected = trainer.test([data])
    trainer.train([data], num_epochs=0, feed_order=["y", "x"])
    assert trainer.test([(data["y"], data["x"])]) == expected
    assert trainer.test([(data["x"], data["y"])], feed_order=["x", "y"]) == expected
    assert trainer.test([(data["y"], data["x"])]) == expected


def test_program_needs_its_own_inputs_alone_and_takes_those_of_the_others():
    def program():
        loss = linear_program()
        name = "seen in training" if layers.is_training() else "seen in test"
        return loss, layers.mean(layers.data(name, shape=[1]))

    trainer, data = ps.Trainer(program, optax.sgd(0.01), place=one_device()), linear_data(4)
    twos = np.full((4, 1), 2.0, np.float32)
    for_training = {**data, "seen in training": twos}
    for_test = {**data, "seen in test": 2 * twos}
    recorder = Recorder()
    trainer.train([for_training], recorder, feed_order=["x", "y", "seen in training"])
    trainer.train([{**for_training, **for_test}], recorder)
    assert [event.metrics[1] for event in recorder.of(ps.EndStep)] == [2.0, 2.0]
    assert trainer.test([for_test], feed_order=["x", "y", "seen in test"])[1] == 4.0
    with pytest.raises(ps.FeedError, match="expected also 'seen in test'"):
        trainer.test([for_training])


def test_columns_that_no_program_declares_are_carried():
    """The numbers are those of a reader without them; of padded, stacked and tested batches."""
    data = linear_data(10)
    names = {"name": [f"{n}.png" for n in range(10)], "shape": "a word about all", "x_length": 3}
    results = []
    for extra in ({}, names):
        trainer = ps.Trainer(
            linear_program, optax.sgd(0.01), place=eight_devices(), steps_per_call=2
        )
        trainer.train([{**extra, **data}] * 3)
        results.append((trainer.test([{**extra, **data}]), trainer.parameters["fc_0/w"].tolist()))
    assert results[0] == results[1]


def test_strict_trainer_refuses_columns_that_no_program_declares():
    trainer = ps.Trainer(linear_program, optax.sgd(0.01), place=one_device(), strict=True)
    batch = {**linear_data(4), "name": np.arange(4)}
    for call in (trainer.train, trainer.test):
        with pytest.raises(ps.FeedError, match="feed got the unknown input 'name', expected 'x'"):
            call([batch])


@pytest.mark.parametrize(("num_devices", "steps_per_call"), [(1, 2), (3, 1)])
def test_generator_may_fill_one_array_for_all_of_its_batches(num_devices, steps_per_call):
    def fill():
        memory = np.empty(6 * 512 + 16, np.float32)
        first = -memory.ctypes.data % 64 // 4  # JAX copies what does not begin there
        x = memory[first : first + 6 * 512].reshape(6, 512)
        for number in range(4):
            x[:] = number
            yield {"x": x}

    def program():
        return layers.mean(layers.fc(layers.data("x", [512]), 1) ** 2)

    def run(reader):
        place = jax.devices()[:num_devices]
        trainer = ps.Trainer(program, optax.sgd(1e-5), place=place, steps_per_call=steps_per_call)
        trainer.train(reader)
        return float(trainer.test(reader))

    new_arrays = [{"x": np.full([6, 512], number, np.float32)} for number in range(4)]
    assert run(fill) == run(new_arrays)


def test_arrays_in_lists_tuples_and_arrays_are_copied_and_other_objects_are_not():
    word, thing = np.zeros(2, np.int32), object()
    things, rows = np.array([thing, None], object), np.array([word, word[:1]], object)
    objects = np.array([object(), threading.Lock()], object)  # a lock cannot be copied

    def fill():
        yield {"words": [(word, [word])], "rows": rows, "things": things, "others": objects}

    batch = dict[str, Any](next(iter(Pass(fill, Fields({}, None), 0))))
    word += 1
    things[0] = None
    ((first, (second,)),) = batch["words"]
    assert [array.tolist() for array in (first, second, *batch["rows"])] == [[0, 0]] * 3 + [[0]]
    assert batch["things"][0] is thing
    assert batch["others"].tolist() == objects.tolist()


def test_iterator_of_a_pass_is_closed_at_its_end_and_when_the_pass_is_dropped():
    closed = []

    class Iterator:
        def __init__(self):
            self.number = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.number += 1
            if self.number > 3:
                raise StopIteration
            return {"image": IMAGES}

        def close(self):
            closed.append(self.number)

    list(Pass(Iterator, Fields(ONE, None), 0))
    dropped = iter(Pass(Iterator, Fields(ONE, None), 0))
    next(dropped)
    dropped.close()
    assert closed == [4, 1]


def test_position_of_a_reader_that_cannot_tell_it_is_how_many_batches_it_has_yielded(caplog):
    """A process whose reader has ended has yielded fewer than there were steps."""
    read, fields = lambda: iter([{"x": number} for number in range(4)]), Fields({}, None)
    pass_ = Pass(read, fields, 0)
    states = [pass_.state(), *[pass_.state() for _ in pass_]]
    assert list(resume_pass(read, fields, 0, states[3], 7)) == [{"x": 3}]
    assert "3 batches were read over" in caplog.text
    assert list(resume_pass(read, fields, 0, states[4], 7)) == []
    # Of a checkpoint that says nothing of the reader.
    assert list(resume_pass(read, fields, 0, None, 2)) == [{"x": 2}, {"x": 3}]
    shorter = lambda: iter([{"x": 0}] * 3)  # noqa: E731
    with pytest.raises(
        ps.ReaderError, match="ended after 3 batches, expected at least the 4 before"
    ):
        resume_pass(shorter, fields, 0, states[4], 7)
