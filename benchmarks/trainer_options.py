"""What options of a Trainer cost per step of the conv net, compared with none.

    python -m benchmarks trainer_options

Micro-batches should cost little for the memory that they save: the table has the temporary memory
of a step beside its time. Half precision pays off only on accelerators: CPUs have no units for it.
"""

from __future__ import annotations

import statistics

import jax
import optax

import penstock as ps
from benchmarks import _timing, _workloads
from penstock import optimizers

NUM_BATCHES = 20


def main(rounds: int = 8) -> None:
    """Print the time and the temporary memory of a step with each option, and without."""
    workload = next(each for each in _workloads.WORKLOADS if "conv" in each.name)
    batches = (workload.batches() * 3)[:NUM_BATCHES]
    size = len(next(iter(batches[0].values())))

    def made(
        optimizer: optax.GradientTransformation | None = None, **options: object
    ) -> ps.Trainer:
        chosen = optimizer or optax.adam(1e-3)
        options = {"precision": "float32", **options}
        return ps.Trainer(workload.train_program, chosen, place=jax.devices()[:1], **options)  # pyright: ignore

    averaging = optimizers.with_moving_average(optax.adam(1e-3), 0.999)
    trainers = {
        "plain": made(),
        "4 micro-batches": made(gradient_accumulation_steps=4),
        "bfloat16": made(precision="bfloat16"),
        "float16, dynamic scale": made(precision="float16"),
        "moving average": made(averaging),
        "on_non_finite='skip'": made(on_non_finite="skip"),
    }
    seconds = _timing.alternate(
        {
            name: lambda trainer=trainer: trainer.train(batches, lambda event: None)
            for name, trainer in trainers.items()
        },
        rounds=rounds,
        units=NUM_BATCHES,
    )
    rows = [
        [
            name,
            f"{statistics.median(each) * 1e3:.2f} ms",
            f"{_timing.ratio(seconds, name, 'plain'):.2f}x",
            _memory(trainers[name], size),
        ]
        for name, each in seconds.items()
    ]
    print(_timing.environment(), "\n")
    title = f"{workload.name}, batch {size}"
    print(_timing.table([title, "time per step", "ratio", "temporary memory"], rows))


def _memory(trainer: ps.Trainer, batch_size: int) -> str:
    inspection = trainer.builder.inspect("train", batch_size=batch_size)
    return f"{inspection.memory_bytes['temporary'] / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
