"""Report: what its page shows and asks, what it says of what is missing, and that nothing waits."""

import io
import re

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers, readers
from penstock.events import EndTraining
from penstock.handlers import Evaluate, Report
from penstock.handlers.report import run_page
from penstock.handlers.report.findings import Questions
from tests.handlers.driving import Source, drive, drive_killed, linear_trainer, two_objectives
from tests.html_pages import HtmlPage
from tests.networks import linear_reader

NAMES = ("bright", "dark", "striped")


def infer_program():
    return layers.fc(layers.data("image", shape=[4, 4, 1]), size=3, act="softmax")


def train_program():
    label = layers.data("label", shape=[1], dtype="int32")
    prediction = infer_program()
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": layers.accuracy(prediction, label)}


def image_data(num_images=24):
    """Return bright, dark and striped images, of which one that is dark is called bright."""
    random = np.random.default_rng(0)
    labels = np.arange(num_images, dtype=np.int32)[:, None] % 3
    images = 0.1 * random.random((num_images, 4, 4, 1), np.float32)
    images[labels[:, 0] == 0] += 0.8
    images[labels[:, 0] == 2, ::2] += 0.8
    labels[1] = 0
    return {"image": images, "label": labels}


def image_trainer(**options):
    return ps.Trainer(train_program, optax.sgd(0.5), infer_func=infer_program, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "digits" / "report.html"


@pytest.fixture
def drawn(monkeypatch):
    """Return the points of the curves of each page that is made, by name."""
    pages = []

    def draw_metrics(parent, metrics, num_left_out):
        points = {}
        for metric in metrics:
            for part in ("train", "test"):
                x, y = getattr(metric, part)
                if len(x) and metric.name != "examples_per_sec":
                    points[f"{part} {metric.name}"] = list(zip(x, y, strict=True))
        pages.append(points)

    monkeypatch.setattr(run_page, "draw_metrics", draw_metrics)
    return pages


def test_page_has_every_part_and_loads_nothing(path):
    reader = readers.arrays(image_data(), 6)
    evaluate = Evaluate(reader, file=io.StringIO())
    handler = Report(
        path,
        every_steps=1,
        test=evaluate,
        reader=reader,
        classes=NAMES,
        hyperparameters={"rate": 0.5, "net": {"depth": "<i>1</i>"}},
    )
    # Eight devices, and several steps in a launch.
    image_trainer(steps_per_call=2).train(reader, [evaluate, handler], num_epochs=5)
    page = HtmlPage(path)
    sections = ["what-was-run", "curves", "epochs-and-tests", "classes", "confusion-matrix"]
    sections += ["worst-mistakes", "calibration", "samples-of-each-class", "where-time-went"]
    assert [section["id"] for section in page.all("section")] == [*sections, "parameters-by-layer"]
    assert not page.all("script") + page.all("link") + page.all("iframe")
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert all(link["href"].startswith("#") for link in page.all("a"))
    assert "Report of digits" in page.said
    assert f"8 x cpu: {jax.devices()[0].device_kind}" in page.said
    assert "state complete epochs 5 of 5 steps 20" in page.said
    assert "net/depth <i>1</i>" in page.said
    assert "steps_per_call 2" in page.said
    assert "fc_0 51" in page.said
    labels = [svg["aria-label"] for svg in page.all("svg")]
    drawn_names = [label.split(" by step")[0] for label in labels]
    assert drawn_names[:2] == ["loss", "accuracy"]
    assert "accuracy by confidence" in labels
    assert page.all("img")[0]["alt"] == "bright, taken for dark"
    assert re.search(r"predicted: dark, \d+% true: bright, [\d.]+% #1 ", page.said)
    row = rf"epoch 5 20 [\d.]+ [\d.]+ {evaluate.last['loss']:.4g} {evaluate.last['accuracy']:.4g} "
    assert re.search(row, page.said)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "No reader was given. Pass Report(reader=test_reader) to add this part."),
        (
            {"label": "lable"},
            "ValueError: Report got label='lable', expected one of 'image', 'label'",
        ),
        ({"classes": ("a", "b")}, "ValueError: Report got 2 classes, expected 3."),
        ({"infer": lambda batch: {"a": 1}}, "ValueError: the network answered with a dict"),
        ({"infer": lambda batch: 1 / 0}, "ZeroDivisionError: division by zero"),
        ({"infer": lambda batch: np.zeros(6)}, "the network answered with the shape [6], expected"),
        ({"image": None, "num_samples": 0}, "Its images are neither gray nor RGB"),
        ({"num_samples": 0}, "None were asked for. Report(num_samples=6) shows them."),
    ],
    ids=["reader", "label", "classes", "dict", "fails", "shape", "image", "none"],
)
def test_part_that_cannot_be_made_says_why(path, options, reason):
    asked = {"infer": lambda batch: np.eye(3)[(batch["label"][:, 0] + 1) % 3]} | options
    if options:
        asked["reader"] = readers.arrays(image_data(6), 6)
    drive(Report(path, **(asked if options else {})))
    page = HtmlPage(path)
    assert reason in page.said
    assert "Parameters by layer No trainer came with the event BeginTraining." in page.said
    assert "loss" in page.said


def test_steps_and_tests_are_drawn_by_steps_done(path, drawn):
    source = Source(lambda step: (1.0 / (1 + step), float(step)))
    names = ("cost", "accuracy")
    handler = Report(path, every_steps=4, names=names, test=lambda: (0.5, 9.0))
    drive(handler, num_steps=10, source=source)
    assert drawn[-1]["train cost"] == [(4, 1 / 4), (8, 1 / 8)]
    assert drawn[-1]["train accuracy"] == [(4, 3.0), (8, 7.0)]
    assert drawn[-1]["test cost"] == [(10, 0.5)]


def test_without_steps_the_means_of_epochs_are_drawn(path, drawn):
    source = drive(Report(path, every_steps=0), num_epochs=2, num_steps=4)
    assert source.steps == []
    assert drawn[-1] == {"train loss": [(4, 0.5), (8, 0.5)]}


def test_several_objectives_have_curves_of_their_own(path, drawn):
    trainer = ps.Trainer(two_objectives(), place="cpu", steps_per_call=2)
    trainer.train(linear_reader(), Report(path, every_steps=1), num_epochs=2)
    assert {"train one", "train two"} <= set(drawn[-1])
    assert len(drawn[-1]["train one"]) == 6


def test_resumed_run_has_the_page_of_an_uninterrupted_one(path, drawn):
    source = Source(lambda step: float(step) if step != 5 else float("nan"))

    def make():
        return Report(path, every_steps=2, test=lambda: 7.0)

    whole = make()
    drive(whole, num_epochs=3, source=source)
    other, state = drive_killed(make, saved_at=12, killed_at=15, num_epochs=3, source=source)
    assert drawn[-1] == drawn[0]
    assert len(drawn[-1]["train loss"]) == 11
    text = HtmlPage(path).said
    assert [f"epoch {number} {8 * number} " in text for number in range(1, 5)] == [True] * 3 + [
        False
    ]
    assert other.get_state()["secs"]["steps"] > state["secs"]["steps"] > 0
    assert other.get_state()["num_left_out"] == whole.get_state()["num_left_out"] == 1


def test_new_training_begins_a_new_page_and_another_call_goes_on(path, drawn):
    handler = Report(path, every_steps=1)
    trainer = linear_trainer()
    for num_epochs in (2, 1):
        trainer.train(linear_reader(), handler, num_epochs=num_epochs)
    assert [step for step, _ in drawn[-1]["train loss"]] == list(range(1, 10))
    linear_trainer().train(linear_reader(), handler, num_epochs=1)
    assert [step for step, _ in drawn[-1]["train loss"]] == [1, 2, 3]
    assert HtmlPage(path).said.count("epoch 1 ") == 1


@pytest.mark.parametrize("reason", ["interrupted", "failed"])
def test_training_that_is_cut_short_has_a_page_and_keeps_its_error(path, reason):
    error = KeyboardInterrupt() if reason == "interrupted" else ValueError("the first\nmore")
    asked = []
    handler = Report(path, reader=lambda: asked, infer=asked.append)
    drive(handler, end=EndTraining(reason, error, 8))
    text = HtmlPage(path).said
    expected = {"interrupted": "interrupted: KeyboardInterrupt", "failed": "ValueError: the first"}
    assert f"{expected[reason]} epochs" in text
    assert "so this part was not made." in text


def test_page_is_there_while_it_trains_and_says_so(path, clock):
    pages = []

    def on_step(step):
        clock.now += 1
        if path.exists():
            pages.append(HtmlPage(path).said)

    handler = Report(path, every_steps=1, reader=[], infer=lambda batch: batch)
    drive(handler, num_steps=12, on_step=on_step)
    assert "state running when this page was written; it may have been killed since" in pages[0]
    assert "This part is made when training ends." in pages[0]
    assert len(set(pages)) == 2  # after 5 and 10 seconds


def test_page_is_there_when_the_network_is_asked(path):
    texts = []

    def reader():
        texts.append(HtmlPage(path).said)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(Report(path, reader=reader, infer=lambda batch: batch))
    assert "state complete" in texts[0]
    assert "This part was being made." in HtmlPage(path).said


@pytest.mark.parametrize("order", [None, ["label", "image"]], ids=["training's", "its own"])
def test_tuples_are_named_by_the_order_of_training_or_by_one_of_its_own(path, order):
    data = image_data(6)
    batch = (data["image"], data["label"])
    asked = [batch if order is None else batch[::-1]]
    handler = Report(path, reader=asked, feed_order=order, classes=NAMES)
    image_trainer().train([batch], handler, 1, feed_order=["image", "label"])
    assert "6 images" in HtmlPage(path).said


def test_trainer_without_infer_func_is_refused_before_training(path):
    reader = linear_reader()
    text = r"Report got a reader and a trainer without infer_func, .* or Report\(infer=\.\.\.\)"
    with pytest.raises(ValueError, match=text):
        linear_trainer().train(reader, Report(path, reader=reader), num_epochs=1)


def ask(reader, infer, feed_order=None, **options):
    """Return what is found out of a network, which shows one mistake and one sample."""
    options = {"image": "image", "num_mistakes": 1, "num_samples": 1, **options}
    asked = Questions(reader=reader, infer=infer, label="label", classes=None, **options)
    return asked.ask(None, feed_order).findings


def test_batches_and_labels_of_another_form_are_named():
    for batches, text in (
        ([([0], [1])], "the reader yielded a batch of 2 unnamed fields, expected names for them"),
        ([], "the reader yielded no batch, expected at least one"),
        ([{"label": np.array([2])}], "labels of int64 from 2 to 2, expected integers from 0 to 1"),
        ([{"label": np.eye(2, dtype=int)}], r"labels of shape \[2, 2\], expected the number of"),
        ([{"label": np.array([0, 1])}], "the network gave 1 answers, expected 2"),
    ):
        with pytest.raises(ValueError, match=text):
            ask(batches, lambda batch: np.full((1, 2), 0.5), image=None)


@pytest.mark.parametrize("form", ["dict", "tuple", "samples", "dicts", "function"])
def test_batches_are_of_any_form_that_a_test_takes(form):
    labels, images = np.array([[0], [1], [1]]), np.zeros((3, 2, 2, 1), np.float32)
    rows = list(zip(images, labels, strict=True))
    batch = {
        "dict": {"image": images, "label": labels, "more": 1},
        "tuple": (images, labels),
        "samples": rows,
        "dicts": [{"image": image, "label": label} for image, label in rows],
        "function": (images, labels),
    }[form]
    findings = ask(
        (lambda: iter([batch])) if form == "function" else [batch],
        lambda feed: np.eye(2)[[0, 0, 1]] + 0 * feed["image"].sum(),
        ["image", "label"],
    )
    np.testing.assert_array_equal(findings.matrix, [[1, 0], [1, 1]])
    assert findings.mistakes[0].process is None


def test_logits_count_as_the_probabilities_they_stand_for():
    batch = {"label": np.array([0, 1]), "image": np.zeros((2, 2, 2), np.float32)}
    shares = np.array([[0.8, 0.2], [0.4, 0.6]])
    for infer in (lambda batch: shares, lambda batch: np.log(shares) + 7):
        assert ask([batch], infer).cross_entropy == pytest.approx(-np.log([0.8, 0.6]).mean())


def test_images_of_any_range_are_shown_from_black_to_white():
    def show(image):
        batch = {"label": np.array([0]), "image": np.array(image).reshape(1, 1, 2, 1)}
        findings = ask(lambda: [batch], lambda batch: np.array([[1.0, 0.0]]), num_mistakes=0)
        return findings.samples[0][0].image.ravel().tolist()

    assert show([0.0, 0.5]) == [0, 128]
    assert show([-2.0, 2.0]) == [0, 255]
    assert show(np.array([0, 200], np.uint8)) == [0, 200]
    assert show([3.0, 250.0]) == [3, 250]
