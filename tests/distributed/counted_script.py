"""Runs a script, and keeps what it trained on: `python -m tests.distributed.counted_script SCRIPT`.

Beside the script, 0.npz then has the images that process 0 read to train on, batch by batch, and so
on for each process.
"""

import runpy
import sys
from pathlib import Path

import numpy as np

from penstock import readers


def main(script):
    """Run a script with a `readers.dataset` that notes the batches of the training split."""
    seen, dataset = [], readers.dataset

    def note(batch):
        seen.append(np.array(batch["image"]))
        return batch

    def dataset_with_notes(name, split="train", **options):
        own = {"transform": note} if split == "train" else {}
        return dataset(name, split, **options, **own)

    readers.dataset = dataset_with_notes
    runpy.run_path(script, run_name="__main__")

    import jax  # after the script, which joins the others before anything of JAX

    np.savez(Path(script).with_name(f"{jax.process_index()}.npz"), *seen)


if __name__ == "__main__":
    main(sys.argv[1])
