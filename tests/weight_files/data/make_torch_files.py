"""Write the torch files beside this script. Needs torch, which no extra of penstock installs.

    python tests/weight_files/data/make_torch_files.py

The files in the repository are of torch 2.15.0.
"""

from collections import OrderedDict
from pathlib import Path

import torch

FOLDER = Path(__file__).parent


def state_dict() -> OrderedDict[str, torch.Tensor]:
    """Return a tensor of each kind that occurs; tests/weight_files/test_torch.py has the values."""
    shared = torch.arange(12, dtype=torch.float32)
    return OrderedDict(
        {
            "conv.weight": torch.arange(24, dtype=torch.float32).reshape(2, 3, 2, 2) / 8,
            "transposed": torch.arange(6, dtype=torch.float64).reshape(2, 3).t(),
            "rows": shared.reshape(4, 3)[1:3],
            "every_other": shared[1::2],
            "half": torch.tensor([0.5, -2.0], dtype=torch.float16),
            "brain": torch.tensor([1.0, -3.0, 256.0], dtype=torch.bfloat16),
            "num_batches_tracked": torch.tensor(7),
            "mask": torch.tensor([True, False, True]),
            "bytes": torch.tensor([0, 255], dtype=torch.uint8),
            "empty": torch.zeros(0, 4),
            "parameter": torch.nn.Parameter(torch.ones(2)),
        }
    )


def main() -> None:
    """Write every file."""
    torch.save(state_dict(), FOLDER / "state_dict.pth")
    torch.save(state_dict(), FOLDER / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    for tensor in network.state_dict().values():
        tensor.fill_(3)
    weights = torch.nn.DataParallel(network).state_dict()
    checkpoint = {"epoch": 5, "state_dict": weights, "optimizer": optimizer.state_dict()}
    torch.save(checkpoint, FOLDER / "checkpoint.pth")
    torch.save(network, FOLDER / "module.pth")


if __name__ == "__main__":
    main()
