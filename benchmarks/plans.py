"""What transformers of three sizes need on hardware that is not here, by `ps.plan`.

    python -m benchmarks plans --size 7b --topology v5p:4x4x4
    JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 JAX_PLATFORMS=cpu python -m benchmarks plans --topology h100:8

State split fully, blocks in a scan and computed again for the gradients, bfloat16, AdamW. Nothing
is allocated. `59m` and `7b` read words; `vit` has the size of ViT-B/16 on 14 x 14 patches.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import optax

import penstock as ps
from benchmarks import _timing
from penstock import layers
from penstock.program_builder import describe_devices


class Size(NamedTuple):
    """A transformer: examples of a batch are of one device."""

    num_layers: int
    num_heads: int
    features: int
    num_words: int
    vocabulary: int
    examples: int


SIZES = {
    "tiny": Size(2, 2, 32, 16, 64, 2),
    "59m": Size(4, 8, 1024, 512, 8192, 4),
    "vit": Size(12, 12, 768, 196, 1000, 128),
    "7b": Size(32, 32, 4096, 2048, 32000, 2),
}


def program(name: str) -> object:
    """Return the loss: of each next word, or of the class of an image."""
    size = SIZES[name]
    stack: Any = {"scan_layers": True, "rematerialize": True, "bias_attr": False}
    blocks = (size.num_layers, size.num_heads, 4 * size.features)
    if name == "vit":
        patches = layers.data("patches", shape=[size.num_words, 768])
        x = layers.transformer_encoder(
            layers.fc(patches, size.features, num_flatten_dims=2), *blocks, **stack
        )
        logits, label = (
            layers.fc(x.mean(axis=1), size.vocabulary),
            layers.data("label", [1], "int32"),
        )
    else:
        words = layers.data("words", shape=[size.num_words + 1], dtype="int32")
        x = layers.embedding(words[:, :-1], size=[size.vocabulary, size.features])
        x = layers.transformer_decoder(x, *blocks, norm="rms", rotary=True, **stack)
        logits = layers.fc(x, size.vocabulary, num_flatten_dims=2, bias_attr=False)
        logits = logits.reshape(-1, size.vocabulary)
        label = words[:, 1:].reshape(-1, 1)
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


SHOWN = ("topology", "batch size", "memory", "of", "parameters", "optimizer", "temporaries")
SHOWN += ("TFLOP", "messages", "sent", "step ms", "examples/s", "compiled in s")


def main(arguments: Sequence[str] = ()) -> None:
    """Print a row for each topology."""
    parser = argparse.ArgumentParser("python -m benchmarks plans")
    parser.add_argument("--size", default="59m", choices=SIZES)
    parser.add_argument("--topology", default="here", help="between commas")
    options = parser.parse_args(arguments)
    builder = ps.ProgramBuilder(
        functools.partial(program, options.size),
        optax.adamw(1e-4),
        precision="bfloat16",
        state_sharding="full",
    )
    print(f"{options.size}: {builder.summary().splitlines()[-1]}", flush=True)
    plans = []
    for name in options.topology.split(","):
        topology = None if name == "here" else name
        count = len(describe_devices(topology)) if topology else builder.mesh.size
        batch_size = SIZES[options.size].examples * count
        plans.append(ps.plan(builder, batch_size=batch_size, topology=topology))
    print(_timing.table([*SHOWN], [[each.facts[name] for name in SHOWN] for each in plans]))
