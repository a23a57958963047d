"""One convolution of `convolutions` in torch for each line read, its milliseconds written back.

Runs in an interpreter of its own and imports nothing of penstock.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch


def main() -> None:
    """Answer `[image, kernel, strides, spread, pads, dilations, groups, what, rounds]`."""
    for line in sys.stdin:
        asked = json.loads(line)
        image, kernel, strides, spread, pads, dilations, groups, what, rounds = asked
        height, width, inputs, outputs = kernel
        (top, bottom), (left, right) = pads
        x = torch.randn(image[0], image[3], image[1], image[2])
        is_transposed = spread != [1, 1]
        shape, extra = (outputs, inputs), (0, 0)
        if is_transposed:
            extra = (bottom - top, right - left)
            strides, shape = spread, (inputs, outputs)
            top, left = height - 1 - top, width - 1 - left
        # Padding that is not the same on both sides is a copy, here as in torch's users' networks.
        elif (top, left) != (bottom, right):
            x, top, left = torch.nn.functional.pad(x, (left, right, top, bottom)), 0, 0
        x = x.to(memory_format=torch.channels_last)
        w = torch.randn(*shape, height, width).to(memory_format=torch.channels_last)
        options: Any = (None, strides, (top, left), dilations, is_transposed, extra, groups)
        dy = torch.convolution(x, w, *options)
        mask = [what == "dX", what == "dW", False]
        least = float("inf")
        for _ in range(rounds + 1):
            start = time.perf_counter()
            if what == "y":
                torch.convolution(x, w, *options)
            else:
                torch.ops.aten.convolution_backward(dy, x, w, None, *options[1:], mask)
            least = min(least, time.perf_counter() - start)
        print(json.dumps(least * 1e3), flush=True)


if __name__ == "__main__":
    main()
