"""What optimizers are given in a step, what becomes of their updates, and which are refused."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from optax import contrib

import penstock as ps
from penstock import layers, optimizers
from tests.networks import (
    assert_close,
    assert_same_bits,
    compile_warnings,
    host,
    linear_data,
    linear_program,
    one_device,
)

BATCH = linear_data(12)
WEIGHT_DECAY = 0.25


def attributed_program() -> Any:
    """Return the loss of a regression whose weights decay and whose offset learns slowly."""
    prediction = layers.fc(
        layers.data("x", shape=[4]),
        size=1,
        param_attr=layers.ParamAttr(regularizer=layers.L2Decay(WEIGHT_DECAY)),
        bias_attr=layers.ParamAttr(learning_rate=0.5),
    )
    return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))


def loss_of(params, batch=BATCH):
    """Return the regression's loss, worked out without penstock."""
    prediction = batch["x"] @ params["fc_0"]["w"] + params["fc_0"]["b"][None]
    return jnp.mean((prediction - batch["y"]) ** 2)


def builder_of(optimizer, program=linear_program, **options):
    return ps.ProgramBuilder(program, optimizer, place=one_device(), **options)


def params_of(state):
    return host(state.variables["params"])


def refusal(*args, **options):
    """Return the error that a builder of these arguments raises."""
    with pytest.raises(ps.ProgramError) as caught:
        builder_of(*args, **options)
    return str(caught.value)


def searching() -> Any:
    """Return a line search whose trace is short."""
    return optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10, store_grad=True))


def test_line_search_sees_the_loss_where_the_scaled_updates_lead():
    builder = builder_of(searching(), attributed_program)
    state = builder.init()._replace(update_scale=jnp.float32(0.5))
    params = params_of(state)
    rates = {"fc_0": {"w": 0.5, "b": 0.25}}

    def objective(params):
        return loss_of(params) + WEIGHT_DECAY / 2 * jnp.sum(params["fc_0"]["w"] ** 2)

    @jax.jit
    def step(params, opt_state):
        def value_fn(moved):
            return objective(jax.tree.map(lambda p, m, r: p + r * (m - p), params, moved, rates))

        value, gradients = jax.value_and_grad(objective)(params)
        scaled = jax.tree.map(jnp.multiply, gradients, rates)
        updates, opt_state = optimizer.update(
            gradients, opt_state, params, value=value, grad=scaled, value_fn=value_fn
        )
        return jax.tree.map(lambda p, u, r: p + r * u, params, updates, rates), opt_state, value

    optimizer = searching()
    opt_state, values = optimizer.init(params), []
    for _ in range(4):
        state, _ = builder.train(state, BATCH)
        params, opt_state, value = step(params, opt_state)
        values.append(float(value))
    assert_close(params_of(state), host(params), 1e-4)
    assert values == sorted(values, reverse=True)


@pytest.mark.slow
def test_line_search_over_parts_of_a_batch_goes_where_that_over_the_whole_goes():
    ends = []
    for parts in (1, 4):
        builder = builder_of(searching(), gradient_accumulation_steps=parts)
        state = builder.init()
        for _ in range(2):
            state, _ = builder.train(state, BATCH)
        ends.append(params_of(state))
    assert_close(ends[1], ends[0], 1e-4)


@pytest.mark.slow
def test_lookahead_trains_the_fast_parameters_and_its_slow_ones_are_evaluated(caplog):
    optimizer: Any = optax.lookahead(optax.sgd(0.1), sync_period=3, slow_step_size=0.5)
    builder = builder_of(optimizer)
    assert compile_warnings(caplog) == [
        "optax.lookahead is to be evaluated at other parameters than it trains: pass averaged=True "
        "to test, save_params and handlers.Evaluate"
    ]
    state = builder.init()
    pair = optax.LookaheadParams.init_synced(params_of(state))
    opt_state = optimizer.init(pair)
    for _ in range(5):
        state, _ = builder.train(state, BATCH)
        updates, opt_state = optimizer.update(jax.grad(loss_of)(pair.fast), opt_state, pair)
        pair = optax.apply_updates(pair, updates)
    assert_close(params_of(state), host(pair.fast))
    assert_close(params_of(builder.averaged(state)), host(pair.slow))


@pytest.mark.parametrize("is_opaque", [False, True])
def test_sam_takes_the_gradient_uphill(is_opaque):
    def adversary():
        return optax.chain(contrib.normalize(), optax.sgd(0.05))

    builder = builder_of(contrib.sam(optax.sgd(0.1), adversary(), opaque_mode=is_opaque))
    state = builder.init()
    params = params_of(state)
    for _ in range(1 if is_opaque else 2):
        state, _ = builder.train(state, BATCH)
    gradients = jax.grad(loss_of)(params)
    norm = optax.tree.norm(gradients)
    uphill = jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, gradients)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss_of)(uphill))
    assert_close(params_of(state), host(expected), 1e-4)


@pytest.mark.parametrize("parts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_optimizer_of_examples_clips_the_gradient_of_each(parts):
    clip, batch = 0.5, linear_data(4)
    # The noise of the first update comes from the same key.
    optimizer: Any = contrib.differentially_private_aggregate(clip, 0.1, key=0)
    optimizer = optax.chain(optimizer, optax.sgd(0.1))
    examples = [{name: value[[i]] for name, value in batch.items()} for i in range(4)]
    builder = builder_of(optimizer, gradient_accumulation_steps=parts)
    state = builder.init()
    params = params_of(state)
    gradients = [jax.grad(loss_of)(params, example) for example in examples]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)
    updates, _ = optimizer.update(stacked, optimizer.init(params), params)
    state, _ = builder.train(state, batch)
    assert_close(params_of(state), host(optax.apply_updates(params, updates)))


@pytest.mark.parametrize("num_devices", [1, 3])
def test_optimizer_of_examples_takes_a_batch_of_any_size(num_devices):
    optimizer = contrib.differentially_private_aggregate(1e6, 0.0, key=0)
    trained = []
    for chosen in (optax.chain(optimizer, optax.scale(-0.1)), optax.sgd(0.1)):
        builder = ps.ProgramBuilder(linear_program, chosen, place=jax.devices()[:num_devices])
        state, _ = builder.train(builder.init(), linear_data(5))
        trained.append(params_of(state))
    # Nothing is clipped and no noise added: the mean of the examples' gradients.
    assert_close(*trained)


def normalized_program() -> Any:
    """Return the loss of a regression behind batch norm."""
    hidden = layers.batch_norm(layers.data("x", shape=[4]))
    return layers.mean(layers.fc(hidden, size=1) ** 2)


def decayed_program() -> Any:
    """Return a loss with a regularizer that tells no loss."""
    attr = layers.ParamAttr(regularizer=lambda w: 0.1 * w, learning_rate=0.5)
    return layers.mean(layers.fc(layers.data("x", shape=[4]), size=1, param_attr=attr) ** 2)


def two_layers() -> Any:
    """Return the loss of two layers with parameters of the same names and numbers of axes."""
    return layers.mean(layers.fc(layers.fc(layers.data("x", shape=[4]), size=3), size=1) ** 2)


def label_layers(params: Any) -> Any:
    """Return the name of each parameter's layer."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[0].key, params)


class Bare:
    """Optimizers that no program can run."""

    needs_more = optax.GradientTransformationExtraArgs(
        lambda params: (), lambda updates, state, params=None, *, curvature: (updates, state)
    )
    grows = optax.GradientTransformation(
        lambda params: jnp.zeros(2), lambda updates, state, params=None: (updates, state[:1])
    )


@pytest.mark.parametrize(
    ("optimizer", "program", "expected"),
    [
        (
            Bare.needs_more,
            linear_program,
            "the optimizer of the train program of linear_program got Bare.<lambda>, expected one "
            "that a train program can run. Tried without data, it raised TypeError: "
            "Bare.<lambda>() missing 1 required keyword-only argument: 'curvature'. It is given "
            "gradients, the parameters that are trained ('fc_0/w', 'fc_0/b') and, where it takes "
            "them, value, grad, value_fn, grad_fn, obj_fn, regularized.",
        ),
        (
            Bare.grows,
            linear_program,
            "Tried without data, its update returns a state of float32[1] at its top, "
            "its initial state has float32[2].",
        ),
        (
            optax.masked(optax.sgd(0.1), {"fc_0": {"w": True}}),
            linear_program,
            "got optax.masked, expected one that a train program can run. Tried without data, "
            "optax.masked raised ValueError: pytree structure error: different numbers of pytree "
            "children at key path. It is given",
        ),
        (
            optax.partition({"fc_0": optax.sgd(0.1)}, label_layers),
            two_layers,
            "Tried without data, optax.partition raised ValueError: Some parameters have no "
            "corresponding transformation. It is given",
        ),
        (
            contrib.dpsgd,
            normalized_program,
            "got the running statistics 'batch_norm_0/mean' and the optimizer optax.chain(optax."
            "contrib.differentially_private_aggregate, optax.scale), expected none.",
        ),
        (
            contrib.dpsgd,
            decayed_program,
            "got a regularizer for 'fc_0/w' and the optimizer optax.chain(",
        ),
        (
            optax.lbfgs(),
            decayed_program,
            "for 'fc_0/w' and the optimizer optax.chain(optax.scale_by_lbfgs, optax.scale, optax."
            "scale_by_zoom_linesearch), expected L1Decay or L2Decay. The "
            "optimizer compares losses, and the regularizer gives a gradient alone.",
        ),
        (
            optax.lookahead(optax.sgd(0.1), 5, 0.5),
            decayed_program,
            "the train program of decayed_program got learning_rate=0.5 for 'fc_0/w' and the "
            "optimizer optax.lookahead, expected 1. The optimizer keeps where its updates lead "
            "(LookaheadState), and a part of an update leads elsewhere.",
        ),
    ],
)
def test_optimizer_that_cannot_run_is_refused_by_name_before_any_data(optimizer, program, expected):
    if optimizer is contrib.dpsgd:
        private = contrib.differentially_private_aggregate(1.0, 0.1, key=0)
        optimizer = optax.chain(private, optax.scale(-0.1))
    assert expected in refusal(optimizer, program)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.lookahead(optax.sgd(0.1), 5, 0.5),
        contrib.sam(optax.sgd(0.1), optax.sgd(0.1)),
        contrib.schedule_free(optax.sgd(0.1), 0.1),
        contrib.mechanize(optax.sgd(0.1)),
        contrib.cocob(),
        contrib.madgrad(0.1),
    ],
)
def test_updates_that_lead_to_a_place_are_not_scaled(optimizer):
    trainer = ps.Trainer(linear_program, optimizer, place=one_device())
    with pytest.raises(ps.ProgramError, match=r"update_scale got 0.5, expected 1 with the optimi"):
        trainer.update_scale = 0.5
    trainer.update_scale = 1.0


def test_parameters_that_are_loaded_are_those_that_an_optimizer_keeps(tmp_path):
    optimizer = optax.lookahead(optax.sgd(0.0, momentum=0.9), sync_period=1, slow_step_size=0.5)
    trainer = ps.Trainer(linear_program, optimizer, place=one_device())
    trainer.train(lambda: iter([BATCH]))
    momentum = host(optax.tree.get(trainer._engine.state, "trace"))
    ps.Trainer(linear_program, optimizer, place=one_device(), seed=1).save_params(tmp_path)
    trainer.load_params(tmp_path)
    loaded = host(trainer._engine.state.variables["params"])
    assert_same_bits(host(trainer._engine.state.opt_state["train"].slow), loaded)
    assert_same_bits(host(optax.tree.get(trainer._engine.state.opt_state, "trace")), momentum)
    trainer.train(lambda: iter([BATCH]))
    assert_same_bits(host(trainer._engine.state.variables["params"]), loaded)


def test_schedule_free_is_evaluated_where_it_says():
    optimizer: Any = contrib.schedule_free(optax.sgd(0.1), 0.1)
    builder = builder_of(optimizer, freeze="fc_0/b")
    state = builder.init()
    for _ in range(3):
        state, _ = builder.train(state, BATCH)
    trained = {"fc_0": {"w": state.variables["params"]["fc_0"]["w"]}}
    expected = contrib.schedule_free_eval_params(state.opt_state["train"], trained)
    averaged = params_of(builder.averaged(state))
    assert_close({"fc_0": {"w": averaged["fc_0"]["w"]}}, host(expected))
    assert_same_bits(averaged["fc_0"]["b"], params_of(state)["fc_0"]["b"])


def test_moving_average_around_a_lookahead_is_of_the_fast_parameters():
    inner = optax.lookahead(optax.sgd(0.1), 2, 0.5)
    builder = builder_of(optimizers.with_moving_average(inner, 0.0, is_ramped=False))
    state = builder.init()
    for _ in range(3):
        state, _ = builder.train(state, BATCH)
    assert_close(params_of(builder.averaged(state)), params_of(state))


@pytest.mark.slow
def test_random_key_of_an_optimizer_goes_through_a_checkpoint(tmp_path):
    def train(folder, num_epochs):
        trainer = ps.Trainer(
            linear_program,
            optax.noisy_sgd(0.1, 0.1, key=3),
            place=one_device(),
            checkpoint=folder,
        )
        trainer.train(lambda: iter([BATCH, BATCH]), num_epochs=num_epochs)
        return params_of(trainer._engine.state)

    whole = train(tmp_path / "whole", 2)
    train(tmp_path / "parts", 1)
    assert_same_bits(train(tmp_path / "parts", 2), whole)
