"""What each of two processes runs: a test and an epoch of all metrics, as JSON into a file.

python -m penstock launch --num_processes=2 -- tests/metrics/two_processes_run.py FILE
"""

import functools
import json
import sys

import jax
import optax

import penstock as ps
from penstock import readers

ps.distributed.initialize()

from tests.metrics import cases  # noqa: E402

data = cases.make_data()
shard = readers.Shard(jax.process_index(), jax.process_count())
reader = readers.arrays(data, batch_size=64, shard=shard)
trainer = ps.Trainer(functools.partial(cases.program, cases.QUICK), optax.sgd(0.01))
shown = {"test": trainer.test(reader)}
intervals = trainer.test(reader, confidence=0.95)
shown["ends"] = {name: [interval.low, interval.high] for name, interval in intervals.items()}


def on_event(event):
    if isinstance(event, ps.EndStep) and event.step == 0:
        shown["step"] = event.metrics
    elif isinstance(event, ps.EndEpoch):
        shown["epoch"] = event.metrics


trainer.train(reader, on_event)
# Of each process its own: they must be the same.
with open(f"{sys.argv[1]}.{jax.process_index()}", "w") as file:
    json.dump(shown, file, default=lambda array: array.tolist())
