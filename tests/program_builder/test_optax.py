"""Every optimizer of optax: it trains, alike on any number of devices, or is refused at once."""

from typing import Any

import jax
import jax.flatten_util
import numpy as np
import pytest

import penstock as ps
from penstock.program_builder import _optimizer
from tests.networks import assert_close, host, linear_data, linear_program
from tests.program_builder.optax_makers import make, names

# Some of optax's rules add [] to [4, 1] by way of [1].
pytestmark = pytest.mark.usefixtures("optax_broadcasts")

SHAPES = {
    "fc_0": {
        "w": jax.ShapeDtypeStruct((4, 1), np.float32),
        "b": jax.ShapeDtypeStruct((1,), np.float32),
    }
}
STANDS_STILL = {"optax.set_to_zero"}
NO_DESCENT = {"optax.contrib.hutchinson_estimator_diag_hessian"}  # a part of sophia
NEEDS = {
    "grad_fn": {"optax.contrib.sam"},
    "obj_fn": {"optax.contrib.sophia", "optax.contrib.hutchinson_estimator_diag_hessian"},
    "value_fn": {
        "optax.lbfgs",
        "optax.scale_by_backtracking_linesearch",
        "optax.scale_by_zoom_linesearch",
        "line search in a partition",
    },
}
REFUSED = {
    # Of matrices alone: optax.contrib.muon picks them.
    "optax.contrib.scale_by_muon": "optax.contrib.scale_by_muon raised ValueError",
    # optax's wrapper passes nothing on.
    "line search in MultiSteps": "optax.chain raised TypeError: scale_by_zoom_linesearch",
    "optax.measure_with_ema": "its update returns updates of structure PyTreeDef",
}
RUN = sorted(set(names()) - set(REFUSED))
TAKES_EXAMPLES = {"optax.contrib.differentially_private_aggregate", "optax.contrib.dpsgd"}


@pytest.fixture
def optax_broadcasts():
    with jax.numpy_rank_promotion("allow"):
        yield


def test_every_optimizer_of_optax_is_tried_without_data_and_runs():
    rules = {name: _optimizer.make_rule("it", make(name), SHAPES) for name in RUN}
    called = {need: {n for n, rule in rules.items() if need in rule.called} for need in NEEDS}
    assert called == NEEDS
    assert {name for name, rule in rules.items() if rule.takes_examples} == TAKES_EXAMPLES
    assert {name for name, rule in rules.items() if rule.is_slow} == {"optax.lookahead"}
    for name, problem in REFUSED.items():
        with pytest.raises(ps.ProgramError, match=f"Tried without data, {problem}"):
            ps.ProgramBuilder(linear_program, make(name))


def train(name: str, num_devices: int) -> Any:
    """Return builder, state and losses after some steps."""
    builder = ps.ProgramBuilder(linear_program, make(name), place=jax.devices()[:num_devices])
    batch, state, losses = linear_data(12), builder.init(), []
    for _ in range(10):
        state, loss = builder.train(state, batch)
        losses.append(float(loss))
    return builder, state, losses


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_loss_falls_alike_on_one_and_three_devices(name):
    (one, state, losses), (_, other, other_losses) = (train(name, n) for n in (1, 3))
    # Together: the offset is near 0, where the order of a sum shows.
    assert_close(*(jax.flatten_util.ravel_pytree(host(x.variables))[0] for x in (other, state)))
    # Polyak's rate is the loss over the gradient's square: each step multiplies what was rounded.
    assert_close(other_losses, losses, 1e-4 if "polyak" in name else 1e-5)
    assert one.num_compiles == {"train": 1}
    if name in STANDS_STILL:
        assert losses[-1] == losses[0]
    elif name not in NO_DESCENT:
        assert losses[-1] < losses[0]
