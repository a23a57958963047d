"""What a run that is killed runs: `python -m tests.checkpoints.held_run DIR`.

Trains an epoch, says so, and waits to be killed.
"""

import sys
import threading

import penstock as ps
from tests.checkpoints.runs import train_line
from tests.networks import linear_reader


def main(directory: str) -> None:
    def wait(event: object) -> None:
        if isinstance(event, ps.BeginEpoch) and event.epoch == 1:
            print("training", flush=True)
            threading.Event().wait()

    train_line(directory).train(linear_reader(), wait, num_epochs=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
