"""What a new process runs: `python -m tests.checkpoints.resume FOLDER NAME...`.

Resumes each run from its folder and leaves its last state, and what was seen, beside it.
"""

import json
import sys
from pathlib import Path

import numpy as np

from tests.checkpoints.runs import RUNS, every_step, leaves

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        trainer, seen = RUNS[name].trained(every_step(folder / name))
        np.savez(folder / f"{name}.npz", *leaves(trainer))
        said = [list(seen.steps.items()), list(seen.epochs.items())]
        (folder / f"{name}.json").write_text(json.dumps(said))
