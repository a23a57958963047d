"""TensorBoard: what its own readers find in the files, before and after a resume."""

import errno
import io

import cv2
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from penstock.events import BeginEpoch, BeginStep, BeginTraining, EndEpoch, EndStep, EndTraining
from penstock.handlers import TensorBoard, tensorboard
from tests.handlers.driving import Source, drive, linear_trainer
from tests.networks import linear_reader


def loaded(folder):
    """Return what TensorBoard reads in a run's folder, all of it."""
    everything = {"scalars": 0, "tensors": 0, "images": 0, "histograms": 0}
    accumulator = EventAccumulator(str(folder), size_guidance=everything)
    accumulator.Reload()
    return accumulator


def points(folder, tag):
    return [(event.step, event.value) for event in loaded(folder).Scalars(tag)]


def tensors(folder, tag):
    events = loaded(folder).Tensors(tag)
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in events]


def test_steps_epochs_and_tests_are_curves_by_steps_done(tmp_path):
    tested = iter([0.5, 0.25])
    source = Source(lambda step: {"loss": float(step), "a b": 1.0})
    board = TensorBoard(tmp_path, every_steps=3, test=lambda: {"loss": next(tested)})
    drive(board, num_epochs=2, num_steps=4, source=source)
    assert points(tmp_path / "train", "train/loss") == [(3, 2.0), (6, 5.0)]
    assert points(tmp_path / "train", "train/a b") == [(3, 1.0), (6, 1.0)]
    assert points(tmp_path / "train", "epoch/loss") == [(4, 3.0), (8, 7.0)]
    assert points(tmp_path / "test", "epoch/loss") == [(4, 0.5), (8, 0.25)]


def test_resumed_run_goes_on_with_its_curves_without_overlap(tmp_path):
    def on_step(step):
        if step == 21:
            raise KeyboardInterrupt

    test = {"test": lambda: 0.0, "every_steps": 2}
    killed = TensorBoard(tmp_path, **test)
    with pytest.raises(KeyboardInterrupt):
        drive(killed, num_epochs=4, source=Source(1.0), on_step=on_step)
    killed._close()  # as the system does
    drive(TensorBoard(tmp_path, **test), num_epochs=4, first=13, source=Source(2.0))
    drive(TensorBoard(tmp_path, **test), num_epochs=5, first=32, source=Source(3.0))
    curve = points(tmp_path / "train", "train/loss")
    assert [step for step, _ in curve] == list(range(2, 41, 2))
    assert [value for _, value in curve] == 6 * [1.0] + 10 * [2.0] + 4 * [3.0]
    assert [step for step, _ in points(tmp_path / "train", "epoch/loss")] == [8, 16, 24, 32, 40]
    assert [step for step, _ in points(tmp_path / "test", "epoch/loss")] == [8, 16, 24, 32, 40]


def test_parameter_table_is_text(tmp_path):
    trainer = linear_trainer()
    trainer.train(linear_reader(), TensorBoard(tmp_path))
    ((step, text),) = tensors(tmp_path / "train", "parameter_table")
    assert step == 0
    assert "| fc_0/w | [4, 1] | float32 | 4 |  |" in text.item().decode()
    assert trainer.builder.summary().splitlines()[-1] in text.item().decode()


def test_histograms_are_of_the_parameters_at_the_end_of_an_epoch(tmp_path):
    trainer = linear_trainer()
    board = TensorBoard(tmp_path, histograms_every_epochs=2)
    trainer.train(linear_reader(), board, num_epochs=5)
    assert [step for step, _ in tensors(tmp_path / "train", "parameters/fc_0/b")] == [6, 12]
    trainer = linear_trainer()
    trainer.train(linear_reader(), num_epochs=4)
    _, buckets = tensors(tmp_path / "train", "parameters/fc_0/w")[-1]
    weights = trainer.parameters["fc_0/w"].ravel()
    assert buckets.shape == (30, 3)
    assert (buckets[0, 0], buckets[-1, 1]) == pytest.approx((weights.min(), weights.max()))
    for left, right, count in buckets[:-1]:
        assert count == np.sum((weights >= left) & (weights < right))


@pytest.mark.parametrize("values", [[], [2.0, 2.0], [1.0, np.nan, np.inf]])
def test_histogram_of_odd_values_holds_the_finite_ones(values):
    value = tensorboard._histogram("a", np.array(values))
    counts = tensor_util.make_ndarray(value.tensor)[:, 2]
    assert counts.sum() == np.isfinite(values).sum()


@pytest.mark.parametrize(
    ("kind", "shape"), [("one", (4, 6, 1)), ("list", (4, 6, 3)), ("array", (4, 6, 4))]
)
def test_images_are_png_with_their_colours(tmp_path, kind, shape):
    random = np.random.default_rng(0)
    many = random.integers(0, 256, size=(2, *shape), dtype=np.uint8)
    images = {"one": many[0], "list": list(many), "array": many}[kind]
    drive(TensorBoard(tmp_path, images=lambda: {"digits": images}))
    ((step, values),) = tensors(tmp_path / "train", "images/digits")
    assert (step, list(values[:2])) == (8, [b"6", b"4"])
    assert len(values) == (3 if kind == "one" else 4)
    for data, image in zip(values[2:], many, strict=False):
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        decoded = decoded.reshape(shape)
        order = [0] if shape[2] == 1 else [2, 1, 0, 3][: shape[2]]
        np.testing.assert_array_equal(decoded[:, :, order], image)


@pytest.mark.parametrize(
    ("image", "error", "text"),
    [
        (np.zeros([4, 4, 3]), TypeError, "the image 'images/a' got dtype float64, expected uint8"),
        (np.zeros([4, 4], "u1"), ValueError, r"got shape \[4, 4\], expected \[H, W, C\]"),
        (np.zeros([4, 4, 2], "u1"), ValueError, r"got shape \[4, 4, 2\], expected \[H, W, C\]"),
    ],
)
def test_image_of_another_type_or_shape_is_refused(image, error, text):
    with pytest.raises(error, match=text):
        tensorboard._images("images/a", image)


def test_speed_leaves_out_compiling_and_what_is_between_epochs(tmp_path, clock):
    board = TensorBoard(tmp_path, every_steps=2)
    board(BeginTraining(0, 2, 0))
    for epoch in range(2):
        board(BeginEpoch(epoch, 4 * epoch))
        for step in range(4):
            board(BeginStep(epoch, step, 4 * epoch + step))
            clock.now += 60 if epoch == step == 0 else 2
            board(EndStep(epoch, step, 4 * epoch + step, 10, lambda: 1.0))
        board(EndEpoch(epoch, 4 * epoch + 4, data_wait=0.25))
        clock.now += 1000
    board(EndTraining("completed"))
    speeds = points(tmp_path / "train", "speed/examples_per_sec")
    # Readings come a step late: the window is of the time until then, of the steps before.
    assert [step for step, _ in speeds] == [2, 4, 6, 8]
    assert all(2.5 <= speed <= 10 for _, speed in speeds)
    assert points(tmp_path / "train", "speed/data_wait") == [(4, 0.25), (8, 0.25)]


def test_points_are_on_the_disk_before_training_ends(tmp_path):
    board = TensorBoard(tmp_path, every_steps=1)
    board(BeginTraining(0, 1, 0))
    for step in range(2):
        board(BeginStep(0, step, step))
        board(EndStep(0, step, step, 1, lambda: 2.0))
    assert points(tmp_path / "train", "train/loss") == [(1, 2.0)]
    board(EndTraining("stopped"))


class FullDisk(io.FileIO):
    """A file that has room for so many bytes more, and writes what fits."""

    room = 10_000

    def write(self, data):
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = super().write(data[: self.room])
        self.room -= written
        return written


def test_full_disk_leaves_a_gap_and_a_warning_and_is_an_error_at_the_end(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(tensorboard, "FileIO", FullDisk)
    board = TensorBoard(tmp_path, every_steps=1)

    def on_step(step):
        file = board._files["train"]._file
        file.room = {3: 20, 4: 0, 5: 10_000}.get(step, file.room)

    with pytest.raises(OSError, match=r"expected one that can be written \(No space left"):
        drive(board, on_step=on_step)
    assert len([r for r in caplog.records if "Training goes on" in r.getMessage()]) == 1
    steps = [step for step, _ in points(tmp_path / "train", "train/loss")]
    assert steps == [1, 2, 5, 6, 7, 8]


def sessions(folder):
    """Return what the HParams tab shows of the runs under a folder: names, values, curves, end."""
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, str(folder))
    tab = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = context.RequestContext()
    metadata = tab.hparams_metadata(request, "")
    columns = tab.experiment_from_metadata(request, "", True, metadata, [])
    asked = api_pb2.ListSessionGroupsRequest(slice_size=9, allowed_statuses=[0, 1, 2, 3])
    for hparam in columns.hparam_infos:
        asked.col_params.add(hparam=hparam.name)
    for metric in columns.metric_infos:
        asked.col_params.add(metric=metric.name)
    for group in list_session_groups.Handler(request, tab, "", asked).run().session_groups:
        values = {name: value.WhichOneof("kind") for name, value in group.hparams.items()}
        values = {name: getattr(group.hparams[name], f"{kind}") for name, kind in values.items()}
        curves = {f"{m.name.group} {m.name.tag}": m.value for m in group.metric_values}
        yield group.name, values, curves, api_pb2.Status.Name(group.sessions[0].status)


def test_hyperparameters_of_runs_are_a_table_beside_their_curves(tmp_path):
    for rate in (0.5, 0.25):
        hyperparameters = {"rate": rate, "flag": True, "net": {"kind": "fc"}}
        board = TensorBoard(tmp_path / f"{rate}", test=lambda: 3.0, hyperparameters=hyperparameters)
        linear_trainer().train(linear_reader(), board)
    low, high = sorted(sessions(tmp_path))
    name, values, curves, end = high
    assert (name, values["rate"], low[1]["rate"]) == ("0.5", 0.5, 0.25)
    assert (values["flag"], values["net/kind"]) == (True, "fc")
    assert values["configuration/precision"] == "float32"
    assert curves["test epoch/loss"] == 3.0
    assert "train epoch/loss" in curves
    assert end == "STATUS_SUCCESS"


def test_session_that_is_resumed_ends_when_it_is_done(tmp_path):
    ends = []
    for first, reason in ((0, "interrupted"), (8, "completed")):
        board = TensorBoard(tmp_path / "run", hyperparameters={"rate": 1})
        drive(board, num_epochs=2, first=first, end=EndTraining(reason))
        ((_, values, _, end),) = sessions(tmp_path)
        ends.append(end)
        assert values["rate"] == 1
    assert ends == ["STATUS_UNKNOWN", "STATUS_SUCCESS"]
