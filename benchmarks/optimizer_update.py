"""An optimizer's update alone, against the bytes that it must move.

    python -m benchmarks optimizer_update
    python -m benchmarks optimizer_update --network mobilenet_v2 --rounds 5

Parameters and gradients have the shapes of a network of the library; the state is donated, as in a
training step. `floor` is one addition that reads and writes as many bytes: SGD reads two arrays and
writes one; momentum and Adam also move their moments. They alternate; the ratio is per round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

import penstock as ps
from benchmarks import _timing
from penstock import models, optimizers

RULES: dict[str, Callable[[], optax.GradientTransformation]] = {
    "optax.sgd": lambda: optax.sgd(1e-3),
    "sgd": lambda: optimizers.get("sgd", 1e-3),
    "optax.sgd, momentum": lambda: optax.sgd(1e-3, momentum=0.9),
    "momentum": lambda: optimizers.get("momentum", 1e-3),
    "optax.adam": lambda: optax.adam(1e-3),
    "adam": lambda: optimizers.get("adam", 1e-3),
    "rmsprop": lambda: optimizers.get("rmsprop", 1e-3),
}


def _make_update(rule: optax.GradientTransformation, params: Any) -> tuple[Callable[[], None], int]:
    """Return what updates once, and how many bytes it must move."""

    def update(params: Any, state: Any, gradients: Any) -> Any:
        updates, state = rule.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    step = jax.jit(update, donate_argnums=(0, 1))
    gradients = jax.tree.map(jnp.ones_like, params)
    held = [jax.tree.map(jnp.copy, params), rule.init(params)]
    sizes = [x.nbytes for x in jax.tree.leaves(held)]

    def run() -> None:
        held[:] = step(*held, gradients)
        jax.block_until_ready(held)

    # Compiled twice: a state that was made is of weak types, one that was computed is not.
    run()
    run()
    # What is kept is read and written, the gradients are read.
    return run, 2 * sum(sizes) + sum(x.nbytes for x in jax.tree.leaves(gradients))


def _make_floor(num_bytes: int) -> Callable[[], None]:
    # a + 1 in place: as many bytes are read as are written.
    held = [jnp.zeros(max(num_bytes // 8, 1))]
    step = jax.jit(lambda a: a + 1, donate_argnums=0)

    def run() -> None:
        held[0] = jax.block_until_ready(step(held[0]))

    return run


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks optimizer_update")
    parser.add_argument("--network", default="resnet_v1_50")
    parser.add_argument("--rounds", type=int, default=15)
    flags = parser.parse_args(list(arguments))
    print(f"{_timing.environment()}\n")
    network = models.classifier(flags.network, num_classes=1000)
    builder = ps.ProgramBuilder(network.train_program, optax.sgd(0.1), place=jax.devices()[:1])
    params = builder.init().variables["params"]
    count = sum(x.size for x in jax.tree.leaves(params))
    arrays = len(jax.tree.leaves(params))
    rows = []
    for name, make in RULES.items():
        run, num_bytes = _make_update(make(), params)
        contenders = {"update": run, "floor": _make_floor(num_bytes)}
        seconds = _timing.alternate(contenders, rounds=flags.rounds, units=1)
        medians = [f"{sorted(each)[len(each) // 2] * 1e3:.4g}" for each in seconds.values()]
        ratio = _timing.ratio(seconds, "update", "floor")
        rows.append([name, f"{num_bytes / 1e6:.4g}", *medians, f"{ratio:.2f}"])
    print(f"{flags.network}: {count / 1e6:.3g} million parameters in {arrays} arrays\n")
    print(_timing.table(["rule", "MB moved", "update, ms", "floor, ms", "ratio"], rows))


if __name__ == "__main__":
    main()
