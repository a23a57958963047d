"""The networks of `cpu_networks` in torch: one step for each line read, its seconds written back.

Runs in an interpreter of its own and imports nothing of penstock.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch import nn


def _conv_net() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 10),
    )


def _mobilenet_v1() -> Any:
    def convolution(inputs: int, outputs: int, size: int, stride: int, groups: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(),
        )

    layers, inputs = [convolution(3, 32, 3, 2)], 32
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]
    widths = [64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024]
    for stride, outputs in zip(strides, widths, strict=True):
        layers.append(convolution(inputs, inputs, 3, stride, inputs))
        layers.append(convolution(inputs, outputs, 1, 1))
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def _make(name: str) -> Any:
    if name == "conv_net":
        return _conv_net()
    if name == "mobilenet_v1":
        return _mobilenet_v1()
    import torchvision

    if name == "inception_v3":
        return torchvision.models.inception_v3(aux_logits=False, dropout=0.0, init_weights=True)
    if name in ("mobilenet_v2", "vgg_16"):
        name = name.replace("vgg_", "vgg")
        return getattr(torchvision.models, name)(dropout=0.0)
    return getattr(torchvision.models, name)()


def main(name: str, size: int, batch_size: int, dtype: str) -> None:
    """Answer each line, `train` or `infer`, with the seconds it took."""
    # The faster of torch's two orders for convolutions on a CPU.
    network = _make(name).to(memory_format=torch.channels_last)
    channels = 1 if name == "conv_net" else 3
    images = torch.rand(batch_size, channels, size, size) * 2 - 1
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch_size,))
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    precision = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")
    for line in sys.stdin:
        start = time.perf_counter()
        if line.strip() == "train":
            network.train()
            optimizer.zero_grad()
            with precision:
                loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            loss.item()
        else:
            network.eval()
            with torch.inference_mode(), precision:
                network(images[:1]).sum().item()
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
