"""The moving average of parameters, against TensorFlow's rule written out in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from penstock import optimizers
from tests.optimizers.running import square

ATOL = 1e-6


def expected(history, decay, *, is_ramped):
    """Return the average over parameters from before the first to after the last update."""
    average = history[0]
    for number, value in enumerate(history[1:], start=1):
        kept = min(decay, (1 + number) / (10 + number)) if is_ramped else decay
        average = kept * average + (1 - kept) * value
    return average


@pytest.mark.quick("0-0.9-True", "5-0.9-False", "1000-0.9999")
@pytest.mark.parametrize("is_ramped", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.9, 0.9999])
@pytest.mark.parametrize("num_updates", [0, 1, 5, 1000])
def test_average_is_tensorflows_after_any_number_of_updates(decay, is_ramped, num_updates):
    optimizer: Any = optimizers.with_moving_average(optax.sgd(0.01), decay, is_ramped=is_ramped)

    def body(carry, _):
        params, state = carry
        updates, state = optimizer.update(square(params, 0), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    start = jnp.float32([1.0, -2.0])
    (params, state), rows = jax.lax.scan(body, (start, optimizer.init(start)), length=num_updates)
    history = np.concatenate([np.asarray(start)[None], np.asarray(rows)]).astype(np.float64)
    average = optimizers.averaged_params(state, params)
    wanted = expected(history, decay, is_ramped=is_ramped)
    np.testing.assert_allclose(average, wanted, rtol=0, atol=ATOL)
    assert int(state.num_updates) == num_updates


def test_average_follows_what_became_of_the_updates_outside():
    optimizer: Any = optimizers.with_moving_average(optax.sgd(1.0), 0.5, is_ramped=False)
    params = jnp.float32([8.0])
    state = optimizer.init(params)
    history = [params]
    for scale in (0.5, 0.0, 0.25):
        updates, state = optimizer.update(params, state, params)
        params = params + scale * updates
        history.append(params)
    average = optimizers.averaged_params(state, params)
    assert float(average[0]) == pytest.approx(float(expected(history, 0.5, is_ramped=False)[0]))


def test_average_begins_at_parameters_loaded_after_the_start():
    optimizer: Any = optimizers.with_moving_average(optax.sgd(0.0), 0.9999)
    state = optimizer.init(jnp.float32([100.0]))
    loaded = jnp.float32([1.0])
    assert float(optimizers.averaged_params(state, loaded)[0]) == 1.0
    for _ in range(3):
        _, state = optimizer.update(jnp.float32([0.0]), state, loaded)
    assert float(optimizers.averaged_params(state, loaded)[0]) == 1.0


def test_average_covers_what_is_trained_and_leaves_the_rest():
    whole = {
        "head": {"w": jnp.float32([1.0]), "b": jnp.float32([2.0])},
        "body": {"w": jnp.float32([3.0])},
    }
    trained = {"head": {"w": whole["head"]["w"]}}
    optimizer: Any = optimizers.with_moving_average(optax.sgd(1.0), 0.5, is_ramped=False)
    _, state = optimizer.update(trained, optimizer.init(trained), trained)
    after = {**whole, "head": {**whole["head"], "w": jnp.float32([0.0])}}
    average = optimizers.averaged_params({"train": state}, after)
    assert jax.tree.map(lambda x: x.tolist(), average) == {
        "head": {"w": [0.5], "b": [2.0]},
        "body": {"w": [3.0]},
    }


def test_averages_of_several_objectives_are_read_together():
    params = {"a": {"w": jnp.float32([2.0])}, "b": {"w": jnp.float32([4.0])}}
    state = {}
    for name, decay in (("a", 0.5), ("b", 0.75)):
        optimizer: Any = optimizers.get("sgd", 1.0, moving_average_decay=decay)
        part = {name: params[name]}
        state[name] = optimizer.update(part, optimizer.init(part), part)[1]
    zeros = jax.tree.map(jnp.zeros_like, params)
    average = optimizers.averaged_params(state, zeros)
    # After one update the ramp allows for no more than 2 / 11.
    assert float(average["a"]["w"][0]) == pytest.approx(2 * 2 / 11)
    assert float(average["b"]["w"][0]) == pytest.approx(4 * 2 / 11)


def test_averages_inside_a_partition_are_of_its_parts():
    params = {"a": {"w": jnp.float32([2.0])}, "b": {"w": jnp.float32([4.0])}}
    labels = {"a": "averaged", "b": {"w": "plain"}}
    averaged = optimizers.get("sgd", 1.0, moving_average_decay=0.5)
    optimizer: Any = optax.partition({"averaged": averaged, "plain": optax.sgd(1.0)}, labels)
    _, state = optimizer.update(params, optimizer.init(params), params)
    average = optimizers.averaged_params(state, jax.tree.map(jnp.zeros_like, params))
    assert float(average["a"]["w"][0]) == pytest.approx(2 * 2 / 11)
    assert float(average["b"]["w"][0]) == 0.0


def test_average_of_one_objective_leaves_what_the_optimizer_of_another_evaluates():
    params = {name: {"w": jnp.float32([2.0])} for name in ("ema", "free", "slow")}
    of = lambda name: {name: params[name]}  # noqa: E731
    average: Any = optimizers.with_moving_average(optax.sgd(1.0), 0.5)
    state = {
        "ema": average.update(of("ema"), average.init(of("ema")), of("ema"))[1],
        "free": optax.contrib.schedule_free_sgd(1.0).init(of("free")),
        "slow": optimizers.SlowParamsState(of("slow"), optax.EmptyState()),
    }
    after = jax.tree.map(jnp.ones_like, params)
    together = optimizers.averaged_params(state, after)
    for name in ("ema", "free", "slow"):
        alone = optimizers.averaged_params(state[name], after)
        assert together[name]["w"].tolist() == alone[name]["w"].tolist() != [1.0]


def test_average_of_bfloat16_parameters_is_kept_in_float32():
    params = {"w": jnp.ones(2, jnp.bfloat16)}
    optimizer: Any = optimizers.with_moving_average(optax.sgd(0.1), 0.999)
    state = optimizer.init(params)
    assert state.average["w"].dtype == jnp.float32
    assert optimizers.averaged_params(state, params)["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ValueError, match=r"decay=.*, expected a number from 0 to below 1"):
        optimizers.with_moving_average(optax.sgd(0.1), decay)


def test_state_without_an_average_is_refused():
    params = {"w": jnp.ones(2)}
    state = optimizers.get("adam", 0.1).init(params)
    with pytest.raises(ValueError, match="without a moving average, expected one"):
        optimizers.averaged_params(state, params)
