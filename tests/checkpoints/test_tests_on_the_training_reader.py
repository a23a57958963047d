"""A run that tests on its own training reader: the training of one without, and same bits."""

import itertools

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import handlers, layers, readers
from penstock.readers import Shard
from tests.checkpoints.runs import as_killed_at, every_step, whole_state
from tests.networks import assert_same_bits, one_device
from tests.readers.cases import ALL
from tests.readers.samples import NUM_SAMPLES, ids

NUM_EPOCHS = 3
CASES = {case.name: case for case in ALL}
KINDS = ("arrays-shuffled", "all-together", "tfrecord", "image_folder")


def program():
    """Return a loss whose one weight depends on the order of the samples, and their numbers."""
    x, label = layers.data("x", shape=[1]), layers.data("label", shape=[1], dtype="int32")
    weight = layers.create_parameter([1, 1], name="weight")
    loss = layers.mean(layers.square_error_cost(x * weight, 1.0 - x))
    return {"loss": loss, "x": x, "label": label}


def as_batch(item):
    numbers = np.asarray(ids(item))
    return {
        "x": numbers[:, None].astype(np.float32) / NUM_SAMPLES,
        "label": (numbers % 2).astype(np.int32),
    }


def ask_nothing(batch):
    return np.zeros([len(batch["x"]), 2])


class TestInHandler:
    """A handler of a user's: it tests after some steps, and so in the middle of a pass."""

    __test__ = False  # no class of pytest's

    def __init__(self, reader):
        self.reader, self.losses, self.trainer = reader, {}, None

    def __call__(self, event):
        if isinstance(event, ps.BeginTraining):
            self.trainer = event.trainer
        elif isinstance(event, ps.EndStep) and event.global_step % 3 == 0:
            self.losses[event.global_step] = self.trainer.test(self.reader)["loss"]


READING = {
    "evaluate": lambda reader, _: handlers.Evaluate(reader),
    "evaluate in the epoch": lambda reader, _: handlers.Evaluate(reader, every_steps=2),
    "evaluate the best": lambda reader, path: handlers.Evaluate(reader, best_path=path / "best"),
    "early stopping": lambda reader, _: handlers.EarlyStopping(reader=reader, patience=9),
    "reduce on plateau": lambda reader, _: handlers.ReduceOnPlateau(reader=reader, patience=9),
    "report": lambda reader, path: handlers.Report(
        path / "report.html", reader=reader, infer=ask_nothing, image=None
    ),
    "test in a handler": lambda reader, _: TestInHandler(reader),
}


def trained(make_reader, checkpoint, make_handler=None, path=None):
    """Return the state after a run, and the numbers of the samples of each step."""
    reader, seen = make_reader(), {}

    def look(event):
        if isinstance(event, ps.EndStep):
            numbers = np.rint(event.metrics["x"][:, 0] * NUM_SAMPLES).astype(int)
            seen[event.global_step] = numbers.tolist()

    trainer = ps.Trainer(program, optax.sgd(0.3), place=one_device(), checkpoint=checkpoint)
    more = [] if make_handler is None else [make_handler(reader, path)]
    trainer.train(reader, [look, *more], num_epochs=NUM_EPOCHS)
    return whole_state(trainer), seen


def check_resumed_at(places, kind, make_handler, folder):
    """Compare a run that tests with one that does not, and with runs killed after some steps."""

    def make_reader():
        return readers.map_readers(as_batch, CASES[kind].make(Shard()))

    _, plain = trained(make_reader, None)
    whole, seen = trained(make_reader, every_step(folder / "all"), make_handler, path=folder)
    assert seen == plain
    for step in places(len(plain) // NUM_EPOCHS):
        left = as_killed_at(folder / "all", step, folder / f"at {step}")
        state, rest = trained(make_reader, every_step(left), make_handler, path=left)
        assert rest == {k: numbers for k, numbers in plain.items() if k >= step}
        assert_same_bits(state, whole)


# Each way to test with one kind of reader and at two places, and each place in some way.
WAYS = [
    pytest.param(number, kind, READING[how], id=f"{kind}, {how}", marks=CASES[kind].marks)
    for number, (kind, how) in enumerate(zip(itertools.cycle(KINDS), READING, strict=False))
]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kind", "make_handler"), WAYS)
def test_run_killed_anywhere_resumes_as_one_without_tests_trains(
    number, kind, make_handler, tmp_path
):
    def choose_places(epoch):
        first, second = 2 * epoch - 1, 2 * epoch
        places = [epoch, 1, epoch - 1, epoch + 1, first, second, second + 1, 3 * epoch - 1]
        return (places * 2)[number : number + 6 : 3]

    check_resumed_at(choose_places, kind, make_handler, tmp_path)


def numbers_of(reader, epoch):
    return [ids(item) for item in reader.iterate(epoch)]


def test_further_call_with_another_reader_goes_on_at_the_next_epoch():
    reader = readers.arrays({"id": np.arange(NUM_SAMPLES)}, 6, shuffle=True, seed=3)
    seen = []

    def look(event):
        if isinstance(event, ps.EndStep):
            seen.append(np.rint(event.metrics["x"][:, 0] * NUM_SAMPLES).astype(int).tolist())

    trainer = ps.Trainer(program, optax.sgd(0.3), place=one_device())
    for _ in range(2):
        new = readers.arrays({"id": np.arange(NUM_SAMPLES)}, 6, shuffle=True, seed=3)
        trainer.train(readers.map_readers(as_batch, new), look, num_epochs=2)
    assert seen == [numbers for epoch in range(4) for numbers in numbers_of(reader, epoch)]


def test_test_reads_epoch_0_and_moves_no_reader():
    reader = readers.indexed(
        [{"x": np.float32(k), "label": np.int32(0)} for k in range(NUM_SAMPLES)],
        6,
        shuffle=True,
        augment=lambda sample, random: {**sample, "x": sample["x"] + random.normal()},
    )
    trainer = ps.Trainer(program, optax.sgd(0.3), place=one_device())
    losses = [trainer.test(source)["loss"] for source in (reader, reader, lambda: reader)]
    assert len(set(losses)) == 1
    assert reader.next_epoch == 0


class Numbered:
    """A user's reader that knows of epochs."""

    def __init__(self):
        self.epochs = []

    def __iter__(self):
        raise AssertionError("the trainer says which pass")

    def iterate(self, epoch):
        self.epochs.append(epoch)
        return iter([as_batch([{"id": 1}])])


def test_reader_of_a_users_own_is_told_the_epoch():
    reader = Numbered()
    trainer = ps.Trainer(program, optax.sgd(0.3), place=one_device())
    trainer.train(reader, num_epochs=2)
    trainer.test(reader)
    trainer.train(reader)
    assert reader.epochs == [0, 1, 0, 2]
