"""Networks on the CPU: a training step and a prediction, with convolutions as penstock runs them.

    python -m benchmarks cpu_networks
    python -m benchmarks cpu_networks --network resnet50 --torch_python ~/torch/bin/python \
        --tensorflow_python ~/tensorflow/bin/python

They are compared with the same network on XLA's plain convolutions and with Keras on JAX,
alternately in one process, and with Keras on TensorFlow and torchvision in their own processes,
which wait for their turn in every round: `--tensorflow_python` and `--torch_python` name
interpreters that have them; without these they are left out. All use float32 and the same images,
but torch's bfloat16 is its autocast. Training is plain SGD, batch 16; a prediction is
of one image. Dropout, weight decay and auxiliary heads are off everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import numpy as np

from benchmarks import _networks, _timing
from benchmarks._networks import CONV_NET, Network, OtherInterpreter

NETWORKS = (
    Network(name="resnet50", size=224, keras="ResNet50"),
    Network(name="inception_v3", size=299, keras="InceptionV3"),
    Network(name="mobilenet_v1", size=224, keras="MobileNet"),
    Network(name="mobilenet_v2", size=224, keras="MobileNetV2"),
    Network(name="vgg_16", size=128, keras="VGG16"),
    Network(name=CONV_NET, size=28, num_channels=1),
)

TF, BFLOAT16 = "Keras, TensorFlow", "torch, bfloat16"
CONTENDERS = ("penstock", "plain", "Keras", TF, "torch", BFLOAT16)

Contender = dict[str, Callable[[], float]]
"""What trains a step and what predicts, each returning the seconds that it took."""


def _clock(run: Callable[[], object]) -> Callable[[], float]:
    def timed() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return timed


def _penstock(network: Network, images: np.ndarray, labels: np.ndarray) -> Contender:
    builder = _networks.make_builder(network)
    image, label = network.input_names
    holder = [builder.init()]

    def train() -> None:
        holder[0], values = builder.train(holder[0], {image: images, label: labels})
        jax.block_until_ready((holder[0], values))

    def infer() -> None:
        builder.infer(holder[0], {image: images[:1]})

    train()
    infer()
    return {"train": _clock(train), "infer": _clock(infer)}


@contextlib.contextmanager
def plain_convolutions() -> Iterator[None]:
    """Build and compile networks as accelerators run them: each convolution is XLA's."""
    from penstock.layers import _convolution
    from penstock.program_builder import _compilation

    def convolve(*operands: Any, is_on_cpu: bool) -> jax.Array:
        # Those of single channels were never left to XLA.
        is_depthwise = operands[2].groups > 1 and operands[1].shape[2] == 1
        return _convolution.convolve(*operands, is_on_cpu=is_on_cpu and is_depthwise)

    with (
        mock.patch("penstock.layers.conv.convolve", convolve),
        mock.patch.object(_compilation, "_CONVOLUTION_OPTIONS", ()),
        mock.patch.object(_compilation, "_WIDE_CONVOLUTION_OPTIONS", ()),
    ):
        yield


def _plain(network: Network, images: np.ndarray, labels: np.ndarray) -> Contender:
    with plain_convolutions():
        return _penstock(network, images, labels)


def _keras(network: Network, images: np.ndarray, labels: np.ndarray) -> Contender:
    model = _networks.make_keras(network)

    def train() -> None:
        model.train_on_batch(images, labels)

    def infer() -> None:
        # Its own compiled call: `predict` adds a loop, a reader and callbacks to one image.
        model.predict_on_batch(images[:1])

    train()
    infer()
    return {"train": _clock(train), "infer": _clock(infer)}


def _measure(network: Network, flags: argparse.Namespace) -> list[list[str]]:
    rng = np.random.default_rng(0)
    shape = (flags.batch_size, network.size, network.size, network.num_channels)
    images = rng.uniform(-1, 1, shape).astype(np.float32)
    labels = rng.integers(0, 10, (flags.batch_size, 1)).astype(np.int32)
    makers = {"penstock": _penstock, "plain": _plain, "Keras": _keras}
    contenders = {
        name: make(network, images, labels)
        for name, make in makers.items()
        if name not in flags.without
    }
    name, sizes = network.name, (network.size, flags.batch_size)
    torch, tensorflow = flags.torch_python, flags.tensorflow_python
    others = {
        TF: (tensorflow, "_keras_networks.py", network.keras or name, *sizes),
        "torch": (torch, "_torch_networks.py", name, *sizes, "float32"),
        BFLOAT16: (torch, "_torch_networks.py", name, *sizes, "bfloat16"),
    }
    processes = {name: OtherInterpreter(*asked) for name, asked in others.items() if asked[0]}
    for name, process in processes.items():
        contenders[name] = {
            what: lambda ask=process.ask, what=what: ask(what) for what in ("train", "infer")
        }
    rows = []
    for what, repeats in (("train", 1), ("infer", 5)):
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        names = list(contenders)
        for number in range(flags.rounds + 1):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                taken = statistics.median(contenders[name][what]() for _ in range(repeats))
                # The first round warms up.
                if number:
                    seconds[name].append(taken)
        row = [network.name, what]
        for name in CONTENDERS:
            row.append(_milliseconds(seconds[name]) if name in seconds else "-")
        for name in CONTENDERS[1:]:
            known = name in seconds
            row.append(f"{_timing.ratio(seconds, 'penstock', name):.2f}" if known else "-")
        rows.append(row)
        print("  ".join(row), flush=True)
    for process in processes.values():
        process.close()
    return rows


def _milliseconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.4g}"


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cpu_networks")
    names = [network.name for network in NETWORKS]
    parser.add_argument("--network", nargs="*", default=names, choices=names)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--torch_python", default="", help="an interpreter that has torchvision")
    python = "an interpreter that has TensorFlow and Keras"
    parser.add_argument("--tensorflow_python", default="", help=python)
    others = ("plain", "Keras")
    parser.add_argument("--without", nargs="*", default=[], choices=others, help="to leave out")
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}\n")
    rows = []
    for network in NETWORKS:
        if network.name in flags.network:
            rows += _measure(network, flags)
    header = ["network", "what", *CONTENDERS, *(f"to {name}" for name in CONTENDERS[1:])]
    print(f"\nbatch {flags.batch_size}; infer at 1; milliseconds, medians; ratios by round\n")
    print(_timing.table(header, rows))


if __name__ == "__main__":
    main()
