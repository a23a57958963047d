"""What `Report` asks a network: forms of batches and answers, and what is shown of images."""

import numpy as np
import pytest

from penstock.handlers.report.questions import Questions


def test_batches_and_labels_of_another_form_are_named():
    def ask(batches):
        options = {"classes": None, "num_mistakes": 1, "num_samples": 1}
        shares = {"infer": lambda batch: np.full((1, 2), 0.5), "image": None, "label": "label"}
        return Questions(reader=batches, **options, **shares).ask(None)

    for batches, text in (
        ([([0], [1])], "the reader yielded a batch of 2 unnamed fields, expected names for them"),
        ([], "the reader yielded no batch, expected at least one"),
        ([{"label": np.array([2])}], "labels of int64 from 2 to 2, expected integers from 0 to 1"),
        ([{"label": np.eye(2, dtype=int)}], r"labels of shape \[2, 2\], expected the number of"),
        ([{"label": np.array([0, 1])}], "the network gave 1 answers, expected 2"),
    ):
        with pytest.raises(ValueError, match=text):
            ask(batches)


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
    options = {"classes": None, "num_mistakes": 1, "num_samples": 1}
    asked = Questions(
        reader=(lambda: iter([batch])) if form == "function" else [batch],
        infer=lambda feed: np.eye(2)[[0, 0, 1]] + 0 * feed["image"].sum(),
        image="image",
        label="label",
        **options,
    )
    found = asked.ask(None, ["image", "label"]).found
    np.testing.assert_array_equal(found.matrix, [[1, 0], [1, 1]])
    assert found.mistakes[0].process is None


def test_logits_count_as_the_probabilities_they_stand_for():
    batch = {"label": np.array([0, 1]), "image": np.zeros((2, 2, 2), np.float32)}
    shares = np.array([[0.8, 0.2], [0.4, 0.6]])

    def ask(infer):
        options = {"image": "image", "label": "label", "classes": None}
        found = Questions(
            reader=[batch], infer=infer, num_mistakes=1, num_samples=1, **options
        ).ask(None)
        return found.found.cross_entropy

    expected = -np.log([0.8, 0.6]).mean()
    assert ask(lambda batch: shares) == pytest.approx(expected)
    assert ask(lambda batch: np.log(shares) + 7) == pytest.approx(expected)


def test_images_of_any_range_are_shown_from_black_to_white():
    def show(image):
        batch = {"label": np.array([0]), "image": np.array(image).reshape(1, 1, 2, 1)}
        options = {"image": "image", "label": "label", "classes": None, "num_mistakes": 0}
        infer = {"infer": lambda batch: np.array([[1.0, 0.0]])}
        asked = Questions(reader=lambda: [batch], num_samples=1, **options, **infer).ask(None)
        return asked.found.samples[0][0].image.ravel().tolist()

    assert show([0.0, 0.5]) == [0, 128]
    assert show([-2.0, 2.0]) == [0, 255]
    assert show(np.array([0, 200], np.uint8)) == [0, 200]
    assert show([3.0, 250.0]) == [3, 250]
