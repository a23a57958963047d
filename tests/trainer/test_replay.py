"""`trainer.replay`: the step that was not finite, again, and the line that made it so."""

import contextlib
import functools
import inspect
import re
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock._program.precision import INITIAL_LOSS_SCALE
from penstock.trainer import _replay
from tests.networks import (
    PLACES,
    PLACES_AND_CALLS,
    Recorder,
    assert_same_bits,
    eight_devices,
    host,
    linear_data,
    linear_program,
    linear_reader,
    one_device,
)
from tests.trainer import poisoned
from tests.trainer.poisoned import (
    BATCH_SIZE,
    batches,
    bent,
    infinite,
    light_program,
    program,
    rooted,
    sound,
)

FROM = pytest.mark.parametrize("is_saved", [False, True], ids=["initial values", "checkpoint"])


def line_of(function, text):
    """Return the number of the line of a function that contains a text."""
    lines, first = inspect.getsourcelines(function)
    [number] = [first + number for number, line in enumerate(lines) if text in line]
    return number


def raised_by(replay):
    """Return what a replay raised, and the step that it names."""
    with pytest.raises(FloatingPointError) as caught:
        replay()
    assert type(caught.value) is FloatingPointError
    numbers = re.match(r"replay of global step (\d+): [Ii]nvalid value \(\w+\)", str(caught.value))
    assert numbers, str(caught.value)
    return caught.value, int(numbers[1])


def last_line_in(error, file):
    """Return function and number of the last line of a file in the traceback of an exception."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return frames[-1].name, frames[-1].lineno


def trainer_of(program=program, place=one_device, steps_per_call=1, **options):
    return ps.Trainer(
        program, optax.sgd(0.05), place=place(), steps_per_call=steps_per_call, **options
    )


def train_to_the_end(trainer, reader, *, num_epochs=1):
    with pytest.raises(ps.NonFiniteError):
        trainer.train(reader, num_epochs=num_epochs)


@pytest.mark.parametrize(
    ("place", "steps_per_call", "is_saved"),
    [
        pytest.param(eight_devices, 4, True, id="checkpoint"),
        pytest.param(one_device, 1, False, id="initial values", marks=pytest.mark.slow),
    ],
)
def test_replay_names_the_step_and_the_line_of_the_program_function(
    place, steps_per_call, is_saved, tmp_path
):
    folder = {"checkpoint": tmp_path} if is_saved else {}
    trainer = trainer_of(place=place, steps_per_call=steps_per_call, **folder)
    reader = lambda: iter(batches(9, {6: bent} if trainer.epoch else {}))  # noqa: E731
    train_to_the_end(trainer, reader, num_epochs=2)
    # Without a checkpoint it goes through the first epoch, which now holds the bad batch too.
    error, step = raised_by(lambda: trainer.replay(batches(9, {6: bent})))
    assert step == (15 if is_saved else 6)
    number = line_of(program, "jnp.log")
    assert last_line_in(error.__cause__, poisoned.__file__) == ("program", number)
    assert f"This line made it: {poisoned.__file__}:{number}, in program: bent = " in str(error)


@pytest.mark.slow
@PLACES_AND_CALLS
def test_replay_of_a_bad_gradient_names_the_line_it_is_the_gradient_of(place, steps_per_call):
    trainer = trainer_of(place=place, steps_per_call=steps_per_call)
    train_to_the_end(trainer, batches(9, {8: rooted}))
    error, step = raised_by(lambda: trainer.replay(batches(9, {8: rooted})))
    assert step == 8
    number = line_of(program, "jnp.sqrt")
    assert last_line_in(error.__cause__.__cause__, poisoned.__file__) == ("program", number)
    assert f"The gradient of this line made it: {poisoned.__file__}:{number}" in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [bent, rooted, infinite])
def test_replay_finds_the_first_step_that_was_skipped(poison):
    trainer = trainer_of(on_non_finite="skip")
    reader = batches(9, {4: poison, 6: bent})
    trainer.train(reader)
    assert raised_by(lambda: trainer.replay(reader))[1] == 4


def steep_program():
    """Return a loss whose gradients float16 cannot hold at the first loss scales."""
    return 1e3 * light_program()["loss"]


@pytest.mark.parametrize("action", ["stop", pytest.param("skip", marks=pytest.mark.slow)])
def test_replay_passes_over_what_a_dynamic_loss_scale_left_out(action):
    options = {"place": one_device(), "precision": "float16", "on_non_finite": action}
    trainer, reader = ps.Trainer(steep_program, optax.sgd(1e-5), **options), batches(6, {5: bent})
    with pytest.raises(ps.NonFiniteError) if action == "stop" else contextlib.nullcontext():
        trainer.train(reader)
    assert trainer.loss_scale < INITIAL_LOSS_SCALE
    assert raised_by(lambda: trainer.replay(reader))[1] == 5


@pytest.mark.slow
def test_replay_of_a_named_step_goes_from_the_checkpoint_before_it(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=2, max_to_keep=9)
    trainer = trainer_of(light_program, checkpoint=config, on_non_finite="skip")
    taken = []
    trainer.train(batches(9, {2: bent, 5: bent}))

    def read():
        for number, batch in enumerate(batches(9, {2: bent, 5: bent})):
            taken.append(number)
            yield batch

    for step in (2, 5):
        taken.clear()
        assert raised_by(lambda step=step: trainer.replay(read, step=step))[1] == step
        assert taken == list(range(step + 1))
    with pytest.raises(FloatingPointError) as caught:
        trainer.replay(read, step=4)
    assert str(caught.value) == (
        "replay of global step 4 made neither a nan nor an infinity when its operations ran one by "
        "one. Pass step=... of another step, or see whether the reader yields the batches of the "
        "run."
    )


@pytest.mark.slow
def test_replay_in_a_new_trainer_goes_from_the_newest_checkpoint(tmp_path):
    config = ps.CheckpointConfig(directory=tmp_path, save_interval_steps=3)
    train_to_the_end(trainer_of(light_program, checkpoint=config), batches(9, {7: bent}))
    trainer = trainer_of(light_program, checkpoint=config)
    assert trainer.global_step == 6
    error, step = raised_by(lambda: trainer.replay(batches(9, {7: bent})))
    assert step == 7
    assert "jnp.log" in str(error)


@pytest.mark.slow
@FROM
def test_replay_reads_a_shuffled_reader_in_the_order_of_the_run(is_saved, tmp_path):
    data = {name: np.tile(value, (6, 1)) for name, value in sound().items()}
    data["bend"][17] = -1

    bad = []

    def look(event):
        if isinstance(event, ps.EndStep) and not np.isfinite(event.metrics["loss"]):
            bad.append(event.global_step)

    reader = readers.arrays(data, BATCH_SIZE, shuffle=True, seed=3)
    folder = {"checkpoint": tmp_path} if is_saved else {}
    trainer = trainer_of(light_program, on_non_finite="skip", **folder)
    trainer.train(reader, look, num_epochs=3)
    assert len({step % 6 for step in bad}) > 1
    for step in bad:
        assert raised_by(lambda step=step: trainer.replay(reader, step=step))[1] == step


@pytest.mark.slow
@PLACES_AND_CALLS
def test_replay_leaves_the_trainer_as_it_is(place, steps_per_call):
    trainers = [
        trainer_of(light_program, place, steps_per_call, on_non_finite="skip") for _ in range(2)
    ]
    reader = batches(9, {4: bent})
    for trainer in trainers:
        trainer.train(reader)
    state = host(trainers[0]._engine.state)
    raised_by(lambda: trainers[0].replay(reader))
    assert_same_bits(host(trainers[0]._engine.state), state)
    assert (trainers[0].epoch, trainers[0].global_step) == (1, 9)
    recorders = [Recorder(), Recorder()]
    for trainer, recorder in zip(trainers, recorders, strict=True):
        trainer.train(batches(9), recorder)
    assert recorders[0].lines == recorders[1].lines
    assert_same_bits(*(host(trainer._engine.state) for trainer in trainers))


def scoped(name, program_func, **options):
    return ps.Objective(layers.scope(name)(program_func), optax.sgd(0.1), updates=name, **options)


def everything():
    """Return a loss of convolution, batch norm, dropout and a loop, bent at its end."""
    image = jnp.reshape(layers.data("x", shape=[4]), (-1, 2, 2, 1))
    hidden = layers.conv2d(image, num_filters=3, filter_size=2, padding=1)
    hidden = layers.dropout(layers.batch_norm(hidden, act="relu"), 0.3)
    prediction = layers.fc(hidden, size=1)
    cost = layers.square_error_cost(prediction, layers.data("y", shape=[1]))
    return layers.mean(cost * (1 + jnp.log(layers.data("bend", shape=[1]))))


@pytest.mark.slow
@PLACES
def test_replay_of_a_batch_that_is_nan_itself_names_the_input_and_the_line_that_uses_it(place):
    data = linear_data(40)
    data["y"][27] = np.nan
    reader, trainer = readers.arrays(data, batch_size=8), trainer_of(linear_program, place)
    train_to_the_end(trainer, reader)
    error, step = raised_by(lambda: trainer.replay(reader))
    assert step == 3
    assert "The batch has values that are not finite, in 'y'. This line made it:" in str(error)
    assert ", in linear_program: return layers.mean(layers.square_error_cost(" in str(error)


def test_replay_uses_the_feed_order_of_the_run():
    trainer, order = trainer_of(light_program), ["x", "y", "bend", "root"]
    reader = [tuple(batch[name] for name in order) for batch in batches(3, {1: bent})]
    with pytest.raises(ps.NonFiniteError):
        trainer.train(reader, feed_order=order)
    assert raised_by(lambda: trainer.replay(reader))[1] == 1


@pytest.mark.slow
def test_replay_of_an_iterator_that_was_used_up_is_refused():
    trainer = trainer_of()
    iterator = iter(batches(3, {1: bent}))
    train_to_the_end(trainer, iterator)
    with pytest.raises(ps.ReaderError) as caught:
        trainer.replay(iterator)
    assert str(caught.value) == (
        "the reader yielded no batch to replay, expected at least one. Is its data empty, or is it "
        "an iterator that an earlier pass used up?"
    )


def test_replay_of_a_run_that_is_finite_ends(monkeypatch):
    monkeypatch.setattr(_replay, "_MOST_STEPS", 20)
    trainer = trainer_of(linear_program)
    with pytest.raises(ps.ReaderError, match="replay got 20 steps that are all finite") as caught:
        trainer.replay(linear_reader())
    assert "Pass step=... where the step is known to be later." in str(caught.value)


@jax.custom_vjp
def lost(x):
    """Return its argument, and a nan where that is 0."""
    return x


def lost_forward(x):
    return jnp.where(x == 0, jnp.nan, x), None


lost.defvjp(lost_forward, lambda _, gradient: (gradient,))


def lost_program():
    unused = linear_program() + layers.mean(layers.data("root", shape=[1]))
    return layers.mean(lost(layers.data("bend", shape=[1]) + 0 * unused))


def make_objectives(place, schedule):
    objectives = {"sound": scoped("a", linear_program), "bent": scoped("b", light_program)}
    return ps.Trainer(objectives, place=place(), schedule=schedule)


def make_with_an_infinity():
    """Return a trainer whose optimizer holds the best value so far: infinity before a step."""
    optimizer = optax.chain(optax.sgd(0.05), optax.contrib.reduce_on_plateau())
    return ps.Trainer(light_program, optimizer, place=one_device())


MICRO = functools.partial(trainer_of, gradient_accumulation_steps=2)
LIGHT, LINES = (light_program, "jnp.log"), "This line made it"
WAYS = {
    "micro-batches": (MICRO, {2: bent}, (program, "jnp.log"), LINES),
    "gradient of micro-batches": (
        *(MICRO, {2: rooted}, (program, "jnp.sqrt")),
        "The gradient of this line made it",
    ),
    "objectives": (lambda: make_objectives(one_device, None), {3: bent}, LIGHT, LINES),
    "one objective": (lambda: make_objectives(one_device, {"bent": 1}), {3: bent}, LIGHT, LINES),
    "objectives on eight devices": (
        *(lambda: make_objectives(eight_devices, {"bent": 2, "sound": 1}), {3: bent}),
        *(LIGHT, LINES),
    ),
    "layers of every kind": (
        *(lambda: trainer_of(everything), {4: bent}),
        *((everything, "jnp.log"), LINES),
    ),
    "infinity in the optimizer": (make_with_an_infinity, {0: infinite}, LIGHT, LINES),
    "custom gradient": (
        *(lambda: trainer_of(lost_program), {1: infinite}),
        *((lost_forward, "jnp.where"), LINES),
    ),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.slow] * (way != "micro-batches")) for way in WAYS]
)
def test_replay_names_the_line_however_the_trainer_is_made(way, capsys):
    make, bad, (function, call), text = WAYS[way]
    trainer, reader = make(), batches(5, bad)
    train_to_the_end(trainer, reader)
    with pytest.raises(FloatingPointError) as caught:
        trainer.replay(reader)
    message = str(caught.value)
    assert re.match(rf"replay of global step {min(bad)}: [Ii]nvalid value \(\w+\)", message)
    file, number = inspect.getsourcefile(function), line_of(function, call)
    assert f"{text}: {file}:{number}, in {function.__name__}: " in message
    assert capsys.readouterr().out == ""


def spoilt_program():
    root = layers.mean(layers.data("root", shape=[1]))
    return linear_program() * root * layers.mean(jnp.log(layers.data("bend", shape=[1])))


@pytest.mark.slow
def test_replay_of_a_step_that_no_run_has_is_refused():
    with pytest.raises(ValueError, match="replay step got -1, expected"):
        ps.Trainer(linear_program, optax.sgd(0.1)).replay(linear_reader(), step=-1)


def test_replay_of_a_step_after_the_first_bad_one_says_so():
    trainer = trainer_of(spoilt_program)
    train_to_the_end(trainer, batches(4, {1: bent}))
    with pytest.raises(
        FloatingPointError, match=r"Before it 'fc_0/.* step=\.\.\. of an earlier one"
    ):
        trainer.replay(batches(4, {1: bent}), step=2)


def named_program():
    """Return the loss of two inputs of integers, each with a range of its own."""
    # Changed, since ids of a feed are checked before a step.
    word = layers.embedding(0 + layers.data("word", shape=[1], dtype="int32"), size=[7, 3])
    label = layers.data("label", shape=[1], dtype="int32")
    prediction = layers.fc(word, size=5, act="softmax")
    return layers.mean(layers.cross_entropy(prediction, label))


@pytest.mark.quick("word")
@pytest.mark.parametrize(("name", "value"), [("label", 5), ("label", -1), ("word", 7)])
def test_replay_names_the_label_or_id_that_is_out_of_range(name, value):
    batch = {
        "word": np.arange(BATCH_SIZE, dtype=np.int32)[:, None] % 7,
        "label": np.arange(BATCH_SIZE, dtype=np.int32)[:, None] % 5,
    }
    wrong = {**batch, name: batch[name].copy()}
    wrong[name][3] = value
    with pytest.raises(FloatingPointError) as caught:
        trainer_of(named_program).replay([batch, wrong])
    assert str(caught.value).endswith(
        f"The input {name!r} holds {value} in row 3 of the batch; with 0 there all is finite: it "
        "is out of range. Ids and labels count from 0, and are less than the number of classes, or "
        "of rows of the embedding."
    )
