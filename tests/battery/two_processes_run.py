"""What each of two processes runs: all programs of the battery, and what they gave into a file."""

import json
import sys

import jax

import penstock as ps

ps.distributed.initialize()

from tests.battery.harness import CASES, FULL_AND_UNEVEN, UNEVEN, find_losses, run  # noqa: E402
from tests.battery.test_battery import THEMES  # noqa: E402, F401

file, names = sys.argv[1], sys.argv[2:] or list(CASES)
index, number = jax.process_index(), jax.process_count()


def share(feed):
    """Return the part of a batch of this process: its first or its second half."""
    size = len(next(iter(feed.values())))
    middle = -(-size // number)
    part = slice(0, middle) if index == 0 else slice(middle, size)
    return {name: value[part] for name, value in feed.items()}


losses = {}
for name in names:
    made = run(CASES[name], None, FULL_AND_UNEVEN, UNEVEN, share)
    # The losses: rows are of each process its own.
    losses[name] = {size: find_losses(result) for size, result in made.items()}
if index == 0:
    with open(file, "w") as written:
        json.dump(losses, written)
