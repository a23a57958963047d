"""A recurrent layer in torch: a training step for each line read, its seconds written back.

Runs in an interpreter of its own and imports nothing of penstock.
"""

from __future__ import annotations

import json
import os
import sys
import time

# Before torch is loaded. Its threads otherwise spin at every barrier, and where another process has
# one of the cores a step takes 1060 ms instead of 234.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import nn


def main(kind: str, batch_size: int, num_steps: int, size: int) -> None:
    """Answer each line with the seconds that a step took.

    Arguments:
      kind: `LSTM` or `GRU`.
    """
    network = getattr(nn, kind)(size, size, batch_first=True)
    words = torch.randn(batch_size, num_steps, size)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    for _ in sys.stdin:
        start = time.perf_counter()
        optimizer.zero_grad()
        hidden, _ = network(words)
        loss = (hidden**2).mean()
        loss.backward()
        optimizer.step()
        loss.item()
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
