"""What a process with too little disk runs: `python -m tests.checkpoints.full_disk DIR REPORT`.

Trains four epochs with a checkpoint after each, from the second one on with files limited to
1 KB, and leaves a report in JSON.
"""

import json
import resource
import sys
from pathlib import Path

import penstock as ps
from tests.checkpoints.runs import train_line
from tests.networks import linear_reader


def main(directory: str, report: str) -> None:
    trainer = train_line(ps.CheckpointConfig(directory=directory))
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(event: object) -> None:
        if isinstance(event, ps.BeginEpoch) and event.epoch == 1:
            trainer._saver._writer.wait()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
        elif isinstance(event, ps.EndTraining):
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    try:
        trainer.train(linear_reader(), limit, num_epochs=4)
    finally:
        found = {"epoch": trainer.epoch, "global_step": trainer.global_step}
        Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
