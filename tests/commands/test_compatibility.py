"""`--fastnn_compat=True` brings back the mistakes that docs/fastnn_differences.md lists."""

import numpy as np
import optax
import pytest

import penstock as ps
from penstock import optimizers
from penstock.commands import train
from penstock.commands._failures import UsageError
from penstock.commands._run.network import make_network
from penstock.commands._run.plan import describe_unused
from tests.commands.flag_cases import Asked
from tests.commands.running import TINY
from tests.readers.convert.originals import write_mnist

COMPAT = "--fastnn_compat=True"
DIGITS = ("--dataset_name=digits", "--model_name=lenet", "--train_image_size=12")


def pair(folder, *words):
    """Return what words come to as it should be, and as FastNN has it."""
    return Asked(folder, *words), Asked(folder, COMPAT, *words)


@pytest.fixture
def mnist(tmp_path):
    write_mnist(tmp_path)
    return tmp_path


RESNET = ("--dataset_name=digits", "--model_name=resnet_cifar10", "--train_image_size=32")
MNIST = ("--dataset_name=mnist", "--dataset_dir={folder}", "--model_name=lenet")


@pytest.mark.parametrize(
    ("setting", "words", "ours", "fastnns"),
    [
        ("weight_decay", (*DIGITS, "--weight_decay=0.5"), 0.5, 0.0),
        # FastNN's running statistics stay at 0 and 1.
        ("batch_norm_decay", RESNET, 0.9, 1.0),
        ("batch_norm_warmup", RESNET, None, False),
        ("batch_norm_warmup", (*RESNET, "--batch_norm_decay=0.5"), False, False),
        # Over the batch, or over as many images as a device has.
        ("batch_norm_group_size", RESNET, None, 32),
        ("batch_norm_group_size", (*RESNET, "--batch_norm_group_size=4"), 4, 4),
    ],
)
def test_settings_of_the_network_are_its_own_or_fastnns(setting, words, ours, fastnns, tmp_path):
    settings = [getattr(run.model.settings, setting) for run in pair(tmp_path, *words)]
    assert settings == [ours, fastnns]


def test_luong_schemes_count_the_steps_of_the_run_or_stop_at_step(tmp_path):
    words = (*DIGITS, "--decay_scheme=luong5", "--num_epochs=1", "--stop_at_step=1000")
    assert [run.schedule["num_steps"] for run in pair(tmp_path, *words)] == [6, 1000]


def test_mnist_has_its_own_size_and_channels_or_those_of_the_page(mnist):
    ours, theirs = (run.data for run in pair(mnist, *MNIST))
    assert (ours.samples_per_epoch, theirs.samples_per_epoch) == (7, 3320)
    assert (ours.shape.image_shape, theirs.shape.image_shape) == ((28, 28, 1), (28, 28, 3))


def test_rate_without_a_decay_scheme_decays_or_does_not(tmp_path):
    ours, theirs = pair(tmp_path, *DIGITS)
    assert ours.rates()[-1] < 0.01
    assert set(theirs.rates()) == {0.01}
    assert "never decays" in optimizers.describe_schedule(**theirs.schedule)


@pytest.mark.slow
def test_accuracy_on_mnist_compares_each_with_its_own_label_or_with_all(mnist):
    ours, theirs = pair(mnist, *MNIST, *TINY[:2], "--num_classes=10")
    rng = np.random.default_rng(0)
    for asked in (ours, theirs):
        network = make_network(asked.flags, asked.data.shape)
        builder = ps.ProgramBuilder(
            network.train_program, optax.sgd(0.1), infer_func=network.infer_program
        )
        state = builder.init(seed=1)
        images = rng.integers(0, 256, (24, *asked.data.shape.image_shape)).astype(np.float32)
        predicted = builder.infer(state, {"image": images}).argmax(axis=1)
        labels = np.where(rng.random(24) < 0.75, predicted, 3).astype(np.int32)
        accuracy = builder.test(state, {"image": images, "label": labels})["accuracy"]
        own = np.mean(predicted == labels)
        broadcast = np.mean(predicted[:, None] == labels[None])
        expected = own if asked is ours else broadcast
        assert float(accuracy) == pytest.approx(expected, abs=1e-6)


def test_train_files_of_a_known_set_are_read_or_ignored(mnist):
    ours, theirs = pair(mnist, *MNIST, "--train_files=none.tfrecord")
    with pytest.raises(FileNotFoundError, match=r"none\.tfrecord"):
        ours.data.num_train  # noqa: B018
    assert theirs.data.num_train == 7


def test_flags_without_effect_are_taken_and_named():
    words = ["--ps_hosts=a:1", "--tensor_fusion_max_bytes=1", "--job_name=worker"]
    flags = train.read_flags(words)
    assert describe_unused(flags.unused) == [
        "no effect here: --tensor_fusion_max_bytes, --ps_hosts"
    ]
    with pytest.raises(UsageError):
        train.read_flags(["--tensor_fusion_max_bytes=x"])
