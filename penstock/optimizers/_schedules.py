"""Learning rate schedules: FastNN's, with its decay mended, and what is usual today.

A step leaves the learning rate in the optimizer's state, where it can be read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from penstock._errors import check_known, check_number

DecayType = Literal["fixed", "exponential", "polynomial", "cosine", "one_cycle"]
DecayScheme = Literal["", "luong234", "luong5", "luong10"]
WarmupScheme = Literal["t2t", "linear"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Describe how the learning rate changes in a run; `optimizers.schedule` makes the schedule.

    Names and defaults are those of FastNN's flags. `num_epochs_per_decay` is TF-Slim's. `linear`,
    `cosine` and `one_cycle` are new.

    Arguments:
      learning_rate: the highest learning rate of the run.
      end_learning_rate: the final learning rate of polynomial, cosine and one_cycle; the others
        ignore it.
      learning_rate_decay_type: how the learning rate changes. "fixed" is constant, without warmup;
        "exponential" multiplies it by learning_rate_decay_factor again and again; "polynomial"
        falls linearly; "cosine" falls on half a cosine; "one_cycle" rises on half a cosine from a
        25th and falls on another.
      learning_rate_decay_factor: the factor by which exponential multiplies the learning rate each
        time.
      warmup_steps: the length of the warmup in steps; one_cycle rises for as many, and with 0 for
        30 % of the run.
      warmup_scheme: how the learning rate grows in the warmup: "t2t" by an equal factor per step
        from a 100th, "linear" by an equal amount per step from 0.
      decay_scheme: when exponential and polynomial decay, as parts of the run. `"luong234"` from
        2/3 on four times, `"luong5"` and `"luong10"` from 1/2 on five and ten times. Luong's
        halving needs a factor of 0.5. Polynomial is at its end after the first of these times, as
        FastNN has it. `""`: from the end of the warmup on, exponential every
        `num_epochs_per_decay` epochs, polynomial until the end of the run.
      num_epochs_per_decay: the number of epochs between two decays of exponential.

    Raises:
      UnknownNameError: a name is not among those above.
      ValueError: a number is outside its range, or two options contradict each other.

    >>> ScheduleOptions(learning_rate_decay_type="cosine", warmup_scheme="linear").learning_rate
    0.01
    """

    learning_rate: float = 0.01
    end_learning_rate: float = 0.0001
    learning_rate_decay_type: DecayType = "exponential"
    learning_rate_decay_factor: float = 0.94
    warmup_steps: int = 0
    warmup_scheme: WarmupScheme = "t2t"
    decay_scheme: DecayScheme = ""
    num_epochs_per_decay: float = 2.0

    def __post_init__(self) -> None:
        decay_type = self.learning_rate_decay_type
        check_known("learning_rate_decay_type", decay_type, get_args(DecayType))
        check_known("warmup_scheme", self.warmup_scheme, get_args(WarmupScheme))
        check_known("decay_scheme", self.decay_scheme, get_args(DecayScheme))
        positive = ("learning_rate", "learning_rate_decay_factor", "num_epochs_per_decay")
        ranges = {name: (0 < getattr(self, name) < math.inf, "above 0") for name in positive}
        ranges["end_learning_rate"] = (0 <= self.end_learning_rate < math.inf, "of 0 or more")
        ranges["warmup_steps"] = (self.warmup_steps >= 0, "of 0 or more")
        problems = [
            f"{name}={getattr(self, name)!r}, expected a number {wanted}"
            for name, (is_right, wanted) in ranges.items()
            if not is_right
        ]
        if problems:
            raise ValueError(f"ScheduleOptions got {'; '.join(problems)}.")
        # Only of options that are right by themselves.
        has_end = decay_type in ("polynomial", "cosine", "one_cycle")
        if has_end and self.end_learning_rate > self.learning_rate:
            raise ValueError(
                f"ScheduleOptions got end_learning_rate={self.end_learning_rate!r} above "
                f"learning_rate={self.learning_rate!r}, expected at most that: {decay_type} would "
                "rise instead of decay. Lower end_learning_rate, to 0 for example."
            )
        if self.decay_scheme and decay_type in ("cosine", "one_cycle"):
            raise ValueError(
                f"ScheduleOptions got decay_scheme={self.decay_scheme!r} with "
                f"learning_rate_decay_type={decay_type!r}, expected it empty. It says when "
                f"exponential and polynomial decay; {decay_type} lasts the whole run."
            )


_LUONG = {"luong234": (2, 3, 4), "luong5": (1, 2, 5), "luong10": (1, 2, 10)}
"""The share of the run before the first decay, as a fraction, and the decays in the rest."""

_ONE_CYCLE_RISE = 0.3
_ONE_CYCLE_FACTOR = 25.0


_Window = tuple[int, int]
"""After how many steps decay begins, and how many one period of it takes."""


def schedule(
    options: ScheduleOptions,
    *,
    num_steps: int,
    steps_per_epoch: float | None = None,
    fastnn_compat: bool = False,
) -> optax.Schedule:
    """Return the learning rate as a function of the number of updates done, for any optimizer.

    Arguments:
      options: the options of the schedule.
      num_steps: the number of steps of the run. After them, an exponential schedule goes on
        decaying, and the others stay at their last rate.
      steps_per_epoch: the examples in an epoch divided by those in a global batch. Exponential with
        an empty `decay_scheme` requires it.
      fastnn_compat: as in FastNN, never decay exponential and polynomial schedules with an empty
        `decay_scheme`.

    Returns:
      A traceable function, from an int32 scalar to a float32 scalar.

    Source: FastNN, with the warmup of tensor2tensor and the schemes of Luong's nmt; TF-Slim for the
    empty scheme.

    Raises:
      ValueError: the schedule does not fit into the run, or `steps_per_epoch` is missing.

    >>> luong = ScheduleOptions(
    ...     warmup_steps=100, decay_scheme="luong5", learning_rate_decay_factor=0.5
    ... )
    >>> rate = schedule(luong, num_steps=1000)
    >>> [round(float(rate(step)), 6) for step in (0, 50, 100, 599, 600, 999)]
    [0.0001, 0.001, 0.01, 0.01, 0.005, 0.000625]
    """
    decay_type, top = options.learning_rate_decay_type, options.learning_rate
    window = _window(options, num_steps, steps_per_epoch, fastnn_compat)
    if decay_type == "fixed":
        return optax.constant_schedule(top)
    if window is None:
        return lambda step: top * _warmup(options, step)
    if decay_type == "one_cycle":
        scales = {window[0]: _ONE_CYCLE_FACTOR, num_steps: options.end_learning_rate / top}
        return optax.piecewise_interpolate_schedule("cosine", top / _ONE_CYCLE_FACTOR, scales)
    share, floor = _share(options, window), options.end_learning_rate
    if decay_type == "exponential":
        floor = 0.0
    # Where a window of Luong's begins within the warmup both apply, as FastNN has it.
    return lambda step: (top * _warmup(options, step) - floor) * share(step) + floor


def describe_schedule(
    options: ScheduleOptions,
    *,
    num_steps: int,
    steps_per_epoch: float | None = None,
    fastnn_compat: bool = False,
) -> str:
    """Describe a schedule in one line of text; the arguments are those of `schedule`.

    >>> describe_schedule(ScheduleOptions(warmup_steps=50), num_steps=1000, steps_per_epoch=45)
    '0.01 after 50 steps of t2t warmup; x 0.94 every 90 steps from step 50 on'
    """
    window = _window(options, num_steps, steps_per_epoch, fastnn_compat)
    top, end = f"{options.learning_rate:g}", f"{options.end_learning_rate:g}"
    decay_type = options.learning_rate_decay_type
    if decay_type == "fixed":
        return f"{top} throughout"
    if decay_type == "one_cycle":
        first = options.learning_rate / _ONE_CYCLE_FACTOR
        peak = window[0] if window else 0
        return f"{first:g} rising to {top} at step {peak}, falling to {end} at step {num_steps}"
    warmup = f"{top} after {options.warmup_steps} steps of {options.warmup_scheme} warmup"
    begin = warmup if options.warmup_steps else top
    if window is None:
        return f"{begin}; never decays"
    start, period = window
    if decay_type == "exponential":
        factor = f"{options.learning_rate_decay_factor:g}"
        return f"{begin}; x {factor} every {period} steps from step {start} on"
    return f"{begin}; {decay_type} to {end} from step {start} to step {start + period}"


def _share(options: ScheduleOptions, window: _Window) -> optax.Schedule:
    """Return what decay leaves of the rate above its floor."""
    start, period = window
    if options.learning_rate_decay_type == "cosine":
        cosine = optax.cosine_decay_schedule(1.0, period)
        return lambda step: cosine(jnp.maximum(jnp.asarray(step) - start, 0))
    # Integers, where optax divides floats: compiled, XLA multiplies by 1 / 83 instead, and of 83
    # steps the floor is then 0.
    if options.learning_rate_decay_type == "exponential":
        factor = options.learning_rate_decay_factor
        return lambda step: factor ** (jnp.maximum(jnp.asarray(step) - start, 0) // period)
    return lambda step: (period - jnp.clip(jnp.asarray(step) - start, 0, period)) / period


def _warmup(options: ScheduleOptions, step: jax.typing.ArrayLike) -> jax.Array:
    """Return the share of the full rate that the warmup gives a step; 1 after it."""
    num_steps = options.warmup_steps
    if not num_steps:
        return jnp.ones((), jnp.float32)
    # `t2t` begins at a hundredth of the rate and grows by a constant factor.
    left = jnp.maximum(num_steps - jnp.asarray(step), 0) / num_steps
    return 0.01**left if options.warmup_scheme == "t2t" else 1 - left


def _window(
    options: ScheduleOptions,
    num_steps: int,
    steps_per_epoch: float | None,
    fastnn_compat: bool,
) -> _Window | None:
    """Return when the rate decays; None where it never does."""
    # A quotient of numbers of samples may be a float.
    check_number("schedule got num_steps=", num_steps, "[1, inf]", "It counts the run's steps.")
    decay_type, warmup_steps = options.learning_rate_decay_type, options.warmup_steps
    if decay_type == "fixed":
        return None
    if options.decay_scheme:
        return _luong(options.decay_scheme, num_steps)
    # FastNN never decays without a scheme, though its flags ask for it; TF-Slim does.
    if decay_type in ("exponential", "polynomial") and fastnn_compat:
        return None
    if decay_type == "exponential":
        return warmup_steps, _epochs(options.num_epochs_per_decay, steps_per_epoch)
    # The rise of a one-cycle is its warmup.
    if decay_type == "one_cycle" and not warmup_steps:
        warmup_steps = max(1, int(_ONE_CYCLE_RISE * num_steps))
    if warmup_steps >= num_steps:
        raise ValueError(
            f"schedule got warmup_steps={options.warmup_steps} and num_steps={num_steps}, expected "
            f"fewer steps of warmup than steps: {decay_type} decays in the rest of the run. Lower "
            "warmup_steps or train longer."
        )
    return warmup_steps, num_steps - warmup_steps


def _luong(decay_scheme: str, num_steps: int) -> _Window:
    numerator, denominator, times = _LUONG[decay_scheme]
    start = num_steps * numerator // denominator
    # A period of 0 steps would divide by 0.
    if num_steps - start < times:
        raise ValueError(
            f"schedule got num_steps={num_steps} with decay_scheme={decay_scheme!r}, expected at "
            f"least {times} steps after step {start}: it decays that often. Train longer, or leave "
            "decay_scheme empty."
        )
    return start, (num_steps - start) // times


def _epochs(num_epochs: float, steps_per_epoch: float | None) -> int:
    if steps_per_epoch is None or steps_per_epoch * num_epochs < 1:
        raise ValueError(
            f"schedule got steps_per_epoch={steps_per_epoch!r}, expected a number that times "
            f"num_epochs_per_decay={num_epochs:g} is at least 1. An exponential decay with an "
            "empty decay_scheme counts epochs. Pass examples per epoch over examples per step, or "
            "choose a decay_scheme."
        )
    # 404 / 12 * 30 is 1009.99..., since the first number is rounded.
    return int(round(steps_per_epoch * num_epochs, 6))


LearningRate = float | optax.Schedule
"""A number, or an optax schedule: a traceable function of the number of updates done."""


def with_learning_rate(
    make: Callable[[float | jax.Array], optax.GradientTransformation], learning_rate: LearningRate
) -> optax.GradientTransformationExtraArgs:
    """Return `make(learning_rate)`, its state holding the rate of the last update.

    A number travels as a schedule that is constant: a run may then be resumed with another
    schedule, because the state's structure is the same. Against optax's own scheduling that is one
    scalar more in the state, or three where the rate never changes.

    Raises:
      ValueError: the number is negative or not finite.
    """
    if not callable(learning_rate):
        remedy = "Or pass a schedule such as optimizers.schedule(...)."
        check_number("learning_rate", learning_rate, "[0, inf)", remedy)
        learning_rate = optax.constant_schedule(float(learning_rate))

    # One argument of a known name, which is the key in the state that `learning_rate` reads.
    def make_with_rate(learning_rate: float | jax.Array) -> optax.GradientTransformation:
        return make(learning_rate)

    injected = optax.inject_hyperparams(make_with_rate, hyperparam_dtype=jnp.float32)(learning_rate)  # pyright: ignore

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        updates, new_state = injected.update(updates, state, params, **extra_args)
        # The rate is float32 and would turn bfloat16 moments into that: a second compile.
        return updates, optax.tree.cast_like(new_state, state)

    return optax.GradientTransformationExtraArgs(injected.init, update)


def learning_rate(opt_state: optax.OptState | None) -> jax.Array | None:
    """Return the learning rate of the last update, or of the first before there is one.

    It is an array in the optimizer's state, and returning it does not wait for the device. The
    factors `State.update_scale` and `ParamAttr.learning_rate` are not included.

    Arguments:
      opt_state: one objective's optimizer state, such as `state.opt_state["train"]`.

    Returns:
      A float32 scalar, or None if the state holds no learning rate or several. Optimizers from
      `optimizers.get` and `optax.inject_hyperparams` hold one.

    >>> from penstock import optimizers
    >>> optimizer = optimizers.get("sgd", optax.linear_schedule(0.5, 0.0, transition_steps=2))
    >>> params = {"w": jnp.ones(2)}
    >>> _, opt_state = optimizer.update(params, optimizer.init(params), params)
    >>> _, opt_state = optimizer.update(params, opt_state, params)
    >>> float(learning_rate(opt_state))
    0.25
    """
    kind = optax.InjectStatefulHyperparamsState
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, kind))
    rates: list[Any] = []
    for node in nodes:
        if isinstance(node, kind) and "learning_rate" in node.hyperparams:
            rates.append(node.hyperparams["learning_rate"])
    # Of several nobody knows which is meant.
    return rates[0] if len(rates) == 1 else None
