"""The inferencer: the network that was trained, in another process and on other devices."""

import jax
import numpy as np
import optax
import pytest

import penstock as ps
from penstock import layers
from tests.networks import (
    PLACES,
    assert_same_bits,
    class_data,
    classifier,
    classifier_program,
    linear_data,
    one_device,
)


@pytest.fixture(scope="module")
def trainer():
    trainer = ps.Trainer(
        classifier_program, optax.adam(0.05), infer_func=classifier, place=one_device()
    )
    trainer.train([class_data(16)], num_epochs=3)
    return trainer


@pytest.fixture(scope="module")
def folder(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inferencer") / "classifier.params"
    trainer.save_params(folder)
    return folder


@PLACES
def test_inferencer_answers_what_the_trainer_answers(trainer, folder, place):
    inferencer = ps.Inferencer(classifier, folder, place=place())
    for size in (1, 5, 16):
        feed = {"x": linear_data(size)["x"]}
        answer = inferencer.infer(feed)
        assert answer.shape == (size, 3)
        np.testing.assert_allclose(answer, trainer.infer(feed), rtol=1e-5, atol=1e-6)


def test_parameters_of_an_inferencer_are_read_and_set_by_name(trainer, folder):
    inferencer = ps.Inferencer(classifier, folder, place=one_device())
    assert_same_bits(dict(inferencer.parameters), dict(trainer.parameters))
    inferencer.parameters["fc_1/w"] = np.zeros((8, 3))
    inferencer.parameters["fc_1/b"] = np.zeros(3)
    answer = inferencer.infer({"x": linear_data(2)["x"]})
    np.testing.assert_allclose(answer, np.full((2, 3), 1 / 3), rtol=1e-6)


def test_infer_function_of_a_part_of_the_network_uses_that_part(trainer, folder):
    def hidden_program():
        return layers.fc(layers.data("x", shape=[4]), size=8, act="relu")

    inferencer = ps.Inferencer(hidden_program, folder, place=one_device(), ignore_extra=True)
    x = linear_data(3)["x"]
    params = trainer.parameters
    expected = np.maximum(x @ params["fc_0/w"] + params["fc_0/b"], 0)
    np.testing.assert_allclose(inferencer.infer({"x": x}), expected, rtol=1e-5, atol=1e-6)


def test_inferencer_learns_of_a_broken_function_before_it_reads_the_file():
    with pytest.raises(ps.ProgramError, match="the infer program of <lambda> returned None"):
        ps.Inferencer(lambda: None, "no such folder")


def test_feed_to_an_inferencer_is_checked(folder):
    inferencer = ps.Inferencer(classifier, folder, place=one_device(), strict=True)
    with pytest.raises(ps.FeedError, match="feed got the unknown input 'y', expected 'x'"):
        inferencer.infer(linear_data(2))
    with pytest.raises(ps.FeedError, match=r"feed 'x' got shape \[2, 3\], expected \[batch, 4\]"):
        inferencer.infer({"x": np.zeros((2, 3), np.float32)})
    # In a program function, where a network that teaches another was to be asked.
    with pytest.raises(ps.FeedError, match=r"feed 'x' got an array that is traced, expected one"):
        jax.eval_shape(lambda x: inferencer.infer({"x": x}), np.zeros((2, 4), np.float32))
