"""Every optimizer of the optax that is installed, made so that it lowers a loss."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jax
import optax
from optax import contrib

RATE = 0.05
NO_OPTIMIZERS = {"schedule_free_eval_params"}
DEPRECATED = {"optax.optimistic_adam"}  # optax warns of it, and a warning is an error here


def _is_matrix(params: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim == 2, params)


def _labels(params: Any) -> Any:
    return jax.tree.map(lambda x: "matrix" if x.ndim == 2 else "vector", params)


def _sgd() -> optax.GradientTransformation:
    return optax.sgd(RATE)


def _adversary() -> optax.GradientTransformation:
    return optax.chain(contrib.normalize(), optax.sgd(0.02))


_PARTS = {"matrix": _sgd(), "vector": optax.adam(RATE)}

# What an optimizer needs beside a learning rate.
_MADE: dict[str, Callable[[], Any]] = {
    "optax.adaptive_grad_clip": lambda: optax.adaptive_grad_clip(10.0),
    "optax.add_noise": lambda: optax.add_noise(0.001, 0.5, key=0),
    "optax.apply_if_finite": lambda: optax.apply_if_finite(_sgd(), 3),
    "optax.chain": lambda: optax.chain(optax.clip(10.0), _sgd()),
    "optax.clip": lambda: optax.clip(10.0),
    "optax.clip_by_block_rms": lambda: optax.clip_by_block_rms(10.0),
    "optax.clip_by_global_norm": lambda: optax.clip_by_global_norm(10.0),
    "optax.conditionally_mask": lambda: optax.conditionally_mask(_sgd(), lambda step: step < 3),
    "optax.conditionally_transform": lambda: optax.conditionally_transform(
        optax.scale(0.5), lambda step: step < 3
    ),
    "optax.ema": lambda: optax.ema(0.5),
    "optax.flatten": lambda: optax.flatten(_sgd()),
    "optax.freeze": lambda: optax.chain(
        optax.freeze(lambda p: jax.tree.map(lambda x: x.ndim == 1, p)), _sgd()
    ),
    "optax.lookahead": lambda: optax.lookahead(_sgd(), 3, 0.5),
    "optax.masked": lambda: optax.chain(optax.masked(optax.scale(0.5), _is_matrix), _sgd()),
    "optax.measure_with_ema": lambda: optax.measure_with_ema(optax.tree.norm, 0.9),
    "optax.multi_transform": lambda: optax.multi_transform(_PARTS, _labels),
    "optax.named_chain": lambda: optax.named_chain(("clip", optax.clip(10.0)), ("sgd", _sgd())),
    "optax.noisy_sgd": lambda: optax.noisy_sgd(RATE, 0.001, key=0),
    "optax.partition": lambda: optax.partition(_PARTS, _labels),
    "optax.scale": lambda: optax.scale(0.5),
    "optax.scale_by_backtracking_linesearch": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10, store_grad=True)
    ),
    "optax.scale_by_rprop": lambda: optax.scale_by_rprop(RATE),
    "optax.scale_by_schedule": lambda: optax.scale_by_schedule(optax.linear_schedule(1, 0.5, 5)),
    "optax.scale_by_zoom_linesearch": lambda: optax.chain(
        optax.sgd(1.0), optax.scale_by_zoom_linesearch(10)
    ),
    "optax.selective_transform": lambda: optax.selective_transform(_sgd(), freeze_mask=False),
    "optax.snapshot": lambda: optax.snapshot("norm", optax.tree.norm),
    "optax.stateless": lambda: optax.stateless(lambda updates, params: updates),
    "optax.stateless_with_tree_map": lambda: optax.stateless_with_tree_map(lambda g, p: g),
    "optax.trace": lambda: optax.trace(0.5),
    "optax.with_extra_args_support": lambda: optax.with_extra_args_support(_sgd()),
    "optax.contrib.differentially_private_aggregate": lambda: (
        contrib.differentially_private_aggregate(10.0, 0.001, key=0)
    ),
    "optax.contrib.dog": lambda: contrib.dog(1.0),
    "optax.contrib.dowg": lambda: contrib.dowg(1.0),
    # optax warns of its own seed.
    "optax.contrib.dpsgd": lambda: optax.chain(
        contrib.differentially_private_aggregate(10.0, 0.001, key=0), optax.sgd(RATE, 0.5)
    ),
    "optax.contrib.mechanize": lambda: contrib.mechanize(_sgd()),
    "optax.contrib.sam": lambda: contrib.sam(_sgd(), _adversary(), opaque_mode=True),
    "optax.contrib.schedule_free": lambda: contrib.schedule_free(_sgd(), RATE),
    "optax.contrib.split_real_and_imaginary": lambda: contrib.split_real_and_imaginary(_sgd()),
    "sam, one gradient an update": lambda: contrib.sam(_sgd(), _adversary()),
    "line search in a partition": lambda: optax.partition(
        {"matrix": optax.lbfgs(), "vector": _sgd()}, _labels, mask_compatible_extra_args=True
    ),
    "line search in MultiSteps": lambda: optax.MultiSteps(
        optax.lbfgs(), 2
    ).gradient_transformation(),
    "MultiSteps": lambda: optax.MultiSteps(_sgd(), 2).gradient_transformation(),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(RATE),
    "weight decay": lambda: optax.adamw(RATE, weight_decay=0.5),
}

# What gives a direction, whose sign and size a learning rate is to give.
_DIRECTIONS = (
    *("scale_by_", "clip", "adaptive_grad_clip", "centralize", "ema", "identity", "normalize"),
    *("add_decayed_weights", "add_noise", "apply_every", "conditionally_transform"),
    *("keep_params_nonnegative", "measure_with_ema", "scale", "snapshot", "stateless", "trace"),
    *("zero_nans", "differentially_private_aggregate", "reduce_on_plateau"),
)
_WHOLE = {
    *("scale_by_zoom_linesearch", "scale_by_backtracking_linesearch", "set_to_zero"),
    *("scale_by_cocob", "scale_by_madgrad"),
}


def names() -> list[str]:
    """Return the names of every optimizer, as users write them, and of some made of several."""
    optimizers = []
    for module in (optax, contrib):
        for name, value in sorted(vars(module).items()):
            if not isinstance(value, FunctionType) or name.startswith("_"):
                continue
            told = inspect.signature(value).return_annotation
            returns = told if isinstance(told, str) else getattr(told, "__name__", "")
            # Some of contrib are not annotated.
            is_bare = module is contrib and told is inspect.Signature.empty
            if "GradientTransformation" in returns or (is_bare and name not in NO_OPTIMIZERS):
                optimizers.append(f"{module.__name__}.{name}")
    return sorted({*optimizers, *_MADE} - DEPRECATED)


def make(name: str) -> optax.GradientTransformation:
    """Return the optimizer; of one that only gives a direction, with a learning rate after it."""
    short = name.rpartition(".")[2]
    if name in _MADE:
        optimizer = _MADE[name]()
    else:
        module = contrib if name.startswith("optax.contrib.") else optax
        function = getattr(module, short)
        takes_rate = "learning_rate" in inspect.signature(function).parameters
        has_own = short in ("polyak_sgd", "lbfgs", "scale_by_polyak", "prodigy", "dadapt_adamw")
        own = takes_rate and not has_own and not short.startswith("scale_by_learning")
        optimizer = function(learning_rate=RATE) if own else function()
    if short.startswith(_DIRECTIONS) and short not in _WHOLE:
        optimizer = optax.chain(optimizer, optax.sgd(RATE))
    return optimizer
