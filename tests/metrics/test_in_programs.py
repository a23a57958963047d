"""What a program function and handlers make of metrics, and what is refused."""

import csv
import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import penstock as ps
from penstock import handlers, layers, metrics, readers
from penstock._errors import ProgramError, UnknownNameError
from tests.networks import Recorder, eight_devices

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 3)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) + RNG.normal(size=(100, 1)) > 0).astype(np.int32)
READER = readers.arrays({"x": X, "y": Y}, batch_size=32)


def infer_program():
    return layers.fc(layers.data("x", shape=[3]), size=1, act="sigmoid", name="out")


def program():
    probability, label = infer_program(), layers.data("y", shape=[1], dtype="int32")
    loss = layers.mean((probability - label) ** 2)
    auc, f1 = metrics.AUC.of(probability, label), metrics.F1.of(probability, label)
    binned = metrics.BinnedAUC.of(probability, label)
    matrix = metrics.ConfusionMatrix.of(probability, label)
    return {"loss": loss, "auc": auc, "f1": f1, "binned": binned, "matrix": matrix}


def predict(trainer):
    """Return the probabilities of the parameters, `[100, 1]`."""
    logits = X @ trainer.parameters["out/w"] + trainer.parameters["out/b"]
    return 1 / (1 + np.exp(-logits))


def expect(trainer):
    """Return scikit-learn's AUC and F1 of the parameters."""
    scores = predict(trainer)
    return {
        "auc": sklearn.metrics.roc_auc_score(Y[:, 0], scores[:, 0]),
        "f1": sklearn.metrics.f1_score(Y[:, 0], scores[:, 0] > 0.5),
    }


def test_handlers_report_the_exact_metrics_of_the_test(tmp_path, capsys):
    trainer = ps.Trainer(program, optax.sgd(0.3), place=jax.devices()[:3])
    evaluate = handlers.Evaluate(READER, monitor="auc", mode="max", best_path=tmp_path / "best")
    stopping = handlers.EarlyStopping("auc", patience=50, mode="max", test=evaluate)
    board = handlers.TensorBoard(tmp_path / "board", test=evaluate)
    table = handlers.CSVLog(tmp_path / "log.csv", test=evaluate)
    expected = []

    def on_event(event):
        if isinstance(event, ps.EndEpoch):
            expected.append(expect(trainer))

    trainer.train(READER, [on_event, evaluate, stopping, board, table], num_epochs=3)
    for (_, results), values in zip(evaluate.results, expected, strict=True):
        assert {n: results[n] for n in values} == pytest.approx(values, abs=1e-6)
    best = json.loads((tmp_path / "best" / "test.json").read_text())
    assert best["metrics"]["auc"] == pytest.approx(max(row["auc"] for row in expected), abs=1e-6)
    with open(tmp_path / "log.csv") as file:
        results = [float(row["auc"]) for row in csv.DictReader(file) if row["kind"] == "test"]
    assert results == pytest.approx([row["auc"] for row in expected], abs=1e-6)
    events = EventAccumulator(str(tmp_path / "board" / "test"))
    events.Reload()
    results = [scalar.value for scalar in events.Scalars("epoch/auc")]
    assert results == pytest.approx([row["auc"] for row in expected], abs=1e-6)
    assert "auc = " in capsys.readouterr().out


def test_best_checkpoint_by_a_metric_of_sums_is_kept_and_one_that_keeps_rows_is_refused(tmp_path):
    def make(monitor):
        config = ps.CheckpointConfig(
            directory=tmp_path / monitor, num_best=1, monitor=monitor, mode="max"
        )
        return ps.Trainer(program, optax.sgd(0.3), checkpoint=config)

    make("binned").train(READER, num_epochs=2)
    with pytest.raises(UnknownNameError, match="monitor got 'auc', expected a metric of sums"):
        make("auc").train(READER)


def test_early_stopping_by_an_epoch_that_keeps_no_rows_says_what_to_give():
    trainer = ps.Trainer(program, optax.sgd(0.3), place="cpu")
    with pytest.raises(UnknownNameError, match="'auc' keeps rows, and an epoch keeps none: give a"):
        trainer.train(READER, handlers.EarlyStopping("auc", patience=1))


def test_infer_function_and_builder_return_metrics_too():
    builder = ps.ProgramBuilder(program, optax.sgd(0.1))
    returned = builder.test(builder.init(), {"x": X[:9], "y": Y[:9]})
    assert isinstance(returned["auc"], metrics.AUC)
    assert 0 <= returned["auc"].compute() <= 1


def test_words_of_sequences_count_each_and_padding_does_not():
    def words():
        scores = layers.data("scores", shape=[3], lod_level=1)
        label = layers.data("label", shape=[1], dtype="int32", lod_level=1)
        loss = layers.mean(scores)
        f1 = metrics.F1.of(scores, label, average="macro")
        auc = metrics.AUC.of(scores, label, average=None)
        edits = metrics.EditDistance.of(label, label)
        return {"loss": loss, "f1": f1, "auc": auc, "edits": edits}

    lengths = [2, 5, 1, 4, 3]
    scores = [RNG.normal(size=(n, 3)).astype(np.float32) for n in lengths]
    labels = [RNG.integers(0, 3, (n, 1)).astype(np.int32) for n in lengths]
    batches = [
        {"scores": scores[i : i + 2], "label": labels[i : i + 2]} for i in range(0, len(lengths), 2)
    ]
    results = ps.Trainer(words, place=eight_devices()).test(batches)
    truth, predicted = np.concatenate(labels)[:, 0], np.concatenate(scores)
    expected = sklearn.metrics.f1_score(truth, predicted.argmax(axis=1), average="macro")
    assert results["f1"] == pytest.approx(expected, abs=1e-6)
    for k in range(3):
        expected = sklearn.metrics.roc_auc_score(truth == k, predicted[:, k])
        assert results["auc"][k] == pytest.approx(expected, abs=1e-6)
    assert results["edits"] == 0


def test_rows_that_do_not_count_may_be_nan():
    scores, label = jnp.array([0.9, jnp.nan, 0.2]), jnp.array([1, -100, 0])
    for kind in (metrics.AUC, metrics.F1, metrics.LogLoss, metrics.Brier, metrics.Accuracy):
        assert np.isfinite(kind.of(scores, label).compute()), kind
    for kind in (metrics.MSE, metrics.R2, metrics.Pearson, metrics.Spearman):
        weight = jnp.array([1, 0, 1])
        assert np.isfinite(kind.of(scores, jnp.array([1.0, 3, 2]), sample_weight=weight).compute())


def test_score_that_is_nan_makes_the_area_nan():
    scores, label = jnp.array([0.9, jnp.nan, 0.2]), jnp.array([1, 0, 1])
    for kind in (metrics.AUC, metrics.AveragePrecision, metrics.Spearman):
        assert np.isnan(kind.of(scores, label).compute()), kind


def test_scores_may_be_bytes():
    scores, label = jnp.arange(4, dtype=jnp.uint8), jnp.array([0, 0, 1, 1])
    assert metrics.AUC.of(scores, label).compute() == 1.0
    assert metrics.AveragePrecision.of(scores, label).compute() == 1.0


def test_labels_may_be_bytes():
    # -100 is 156 in a byte.
    label = jnp.array([156, 1, 1], jnp.uint8)
    assert metrics.Accuracy.of(jax.nn.one_hot(jnp.array([156, 2, 2]), 200), label).compute() == (
        pytest.approx(1 / 3)
    )
    distance = metrics.EditDistance.of(label[None], label[None, 1:], normalized=True)
    assert (float(distance.distance), float(distance.count)) == (1, 2)


def test_weights_of_a_mean_are_those_of_its_values():
    values = jnp.array([1.0, 2.0, 6.0])
    for kind in (metrics.Mean, metrics.WeightedMean):
        assert kind.of(values, jnp.array([[1.0], [2.0], [1.0]])).compute() == 2.75
        assert kind.of(jnp.stack([values] * 2, axis=1), jnp.array([1, 2, 1])).compute() == 2.75
        assert kind.of(jnp.float32(3), jnp.int32(5)) == kind(jnp.float32(15), jnp.float32(5))


def test_confusion_matrix_counts_beyond_the_whole_numbers_of_float32():
    # As many as the pixels of seventeen masks of 1024 x 1024.
    classes = jnp.ones(17 * 2**20, jnp.int32)
    count = jax.jit(functools.partial(metrics.ConfusionMatrix.of, num_classes=2))
    assert count(classes, classes).compute().tolist() == [[0, 0], [0, len(classes)]]


@pytest.mark.parametrize(("num_rows", "num_devices"), [(9, 3), (513, 8), (4099, 1)])
def test_confusion_matrix_of_many_rows_is_that_of_scikit_learn(num_rows, num_devices):
    label, predicted = RNG.integers(0, 3, (2, num_rows, 1)).astype(np.int32)
    weights = RNG.random((num_rows, 1)).astype(np.float32)

    def count():
        ids = [layers.data(name, shape=[1], dtype="int32") for name in ("predicted", "label")]
        weight = layers.data("weight", shape=[1])
        matrix = metrics.ConfusionMatrix.of(*ids, num_classes=3, sample_weight=weight)
        return layers.mean(weight), matrix

    feed = {"predicted": predicted, "label": label, "weight": weights}
    _, counts = ps.Trainer(count, place=eight_devices()[:num_devices]).test([feed])
    expected = sklearn.metrics.confusion_matrix(
        label[:, 0], predicted[:, 0], sample_weight=weights[:, 0].astype(np.float64)
    )
    np.testing.assert_allclose(counts, expected, rtol=1e-6)


def test_own_metric_that_keeps_rows_and_one_that_holds_a_batch_axis():
    @dataclasses.dataclass(frozen=True)
    class Median(metrics.RowMetric):
        values: jax.Array

        def compute(self):
            return np.median(self.values)

    def returning(metric):
        return lambda: {"loss": layers.mean(infer_program()), "own": metric(layers.data("y", [1]))}

    reader = readers.arrays({"x": X, "y": X[:, :1]}, batch_size=32)
    assert ps.Trainer(returning(Median), place="cpu").test(reader)["own"] == np.median(X[:, 0])
    with pytest.raises(ProgramError, match="keeps rows as returned value 'own', with shapes"):
        ps.Trainer(returning(lambda y: Median(jnp.sum(y))), place="cpu")
    with pytest.raises(ProgramError, match=r"derive it from RowMetric\..* by their of\("):
        ps.Trainer(returning(lambda y: metrics.Mean(y, y)), place="cpu")


def test_metric_that_is_made_of_settings_is_told_of_its_of():
    with pytest.raises(TypeError) as error:
        metrics.MeanIoU(num_classes=3)  # pyright: ignore[reportCallIssue]
    assert error.value.__notes__ == [
        "A program makes one of its batch: MeanIoU.of(input, label, ...)"
    ]


def test_metric_without_a_value_is_refused():
    with pytest.raises(TypeError, match=r"abstract class Nothing with.*compute"):
        dataclasses.dataclass(frozen=True)(type("Nothing", (metrics.Metric,), {}))()


LABEL = jnp.array([0, 1, 2])
SCORES = jnp.ones([3, 3]) / 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.F1.of(SCORES, LABEL), "got 3 classes and average='binary'"),
        (lambda: metrics.F1.of(LABEL, LABEL), "got integers as classes, expected num_classes"),
        (lambda: metrics.F1.of(SCORES, LABEL, average="mean"), "average='mean', expected one of"),  # pyright: ignore[reportArgumentType]
        (lambda: metrics.MSE.of(jnp.ones(4), jnp.ones(5)), "input of shape .4,. and labels"),
        (lambda: metrics.MSE.of(SCORES, LABEL), "metrics.MSE got 3 numbers for each label"),
        (
            lambda: metrics.TopK.of(LABEL, LABEL),
            "TopK got 1 numbers for each label",
        ),
        (
            lambda: metrics.ConfusionMatrix.of(LABEL, LABEL),
            "expected num_classes too",
        ),
        (lambda: metrics.AUC.of(SCORES, LABEL, sample_weight=jnp.ones(2)), "a sample_weight of"),
        (lambda: metrics.Mean.of(jnp.ones(3), jnp.ones([1, 3])), "Mean got a sample_weight of"),
        (lambda: metrics.RetrievalRecall.of(LABEL, LABEL), "no indexes, expected .B, D."),
    ],
)
def test_inputs_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ProgramError, match=message):
        make()


# Labels that do not count, in layers.


def test_accuracy_counts_each_label_once_that_is_not_ignored():
    label = np.where(RNG.uniform(size=Y.shape) < 0.4, -100, Y)
    label[:20] = -100

    def program():
        probability, y = infer_program(), layers.data("y", shape=[1], dtype="int32")
        both = jnp.concatenate([1 - probability, probability], axis=1)
        return {"loss": layers.mean(probability), "accuracy": layers.accuracy(both, y)}

    reader = readers.arrays({"x": X, "y": label}, batch_size=16)
    options = {"place": jax.devices()[:3], "gradient_accumulation_steps": 3}
    trainer, recorder = ps.Trainer(program, optax.sgd(0.0), **options), Recorder()
    predicted = predict(trainer) > 0.5
    expected = np.mean((predicted == label)[label != -100])
    assert trainer.test(reader)["accuracy"] == pytest.approx(expected, abs=1e-6)
    trainer.train(reader, recorder)
    assert recorder.of(ps.EndEpoch)[0].metrics["accuracy"] == pytest.approx(expected, abs=1e-6)
    step = recorder.of(ps.EndStep)[1]
    right, counts = (predicted == label)[16:32], label[16:32] != -100
    assert step.metrics["accuracy"] == pytest.approx(np.mean(right[counts]), abs=1e-6)
    assert recorder.of(ps.EndStep)[0].metrics["accuracy"] == 0  # no label counts


def test_losses_of_ignored_labels_are_0():
    x, label = jnp.array([[0.5], [2.0]]), jnp.array([[-100.0], [1.0]])
    assert layers.sigmoid_cross_entropy_with_logits(x, label)[0] == 0
    for loss in (
        layers.square_error_cost(x, label, ignore_index=-100),
        layers.huber_loss(x, label, 1.0, ignore_index=-100),
    ):
        assert loss[0] == 0
        assert loss[1] > 0
    assert layers.square_error_cost(x, label)[0] > 0  # any number may be a label
