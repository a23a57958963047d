"""Checks of what a `Trainer` is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from penstock._errors import CheckpointError, UnknownNameError, listed, nearest
from penstock.trainer._non_finite import OnNonFinite
from penstock.trainer._shared_batches import OnUnequal

if TYPE_CHECKING:
    from penstock._checkpoint import CheckpointConfig
    from penstock.program_builder import Objective, ProgramBuilder, State


def check_action(on_non_finite: object, checkpoint: object) -> None:
    """Raise unless `on_non_finite` is one of its values, and can be done."""
    actions = get_args(OnNonFinite)
    if on_non_finite not in actions:
        raise ValueError(
            f"on_non_finite got {on_non_finite!r}, expected one of {listed(actions)}."
            + nearest(str(on_non_finite), actions)
        )
    if on_non_finite == "roll_back" and checkpoint is None:
        raise ValueError(
            "on_non_finite got 'roll_back' without checkpoints, expected checkpoint=... beside it: "
            "it returns to the last of them."
        )


def check_on_unequal(on_unequal: OnUnequal) -> OnUnequal:
    """Return `on_unequal` if it is one of its values."""
    if on_unequal not in get_args(OnUnequal):
        raise ValueError(
            f"on_unequal got {on_unequal!r}, expected one of {listed(get_args(OnUnequal))}."
            + nearest(str(on_unequal), get_args(OnUnequal))
        )
    return on_unequal


def check_folder(directory: Path | None) -> None:
    """Raise unless there is a folder for a checkpoint."""
    if directory is None:
        raise CheckpointError(
            "save_checkpoint got no folder to write to, expected "
            "Trainer(..., checkpoint='runs/a') or a ps.CheckpointConfig."
        )


def choose_update_order(
    objectives: Mapping[str, Objective], schedule: Mapping[str, int] | None
) -> tuple[str, ...]:
    """Return the objectives' names in the order of their updates of one batch."""
    if schedule is None:
        return tuple(objectives)
    for name, count in schedule.items():
        if name not in objectives:
            raise UnknownNameError(
                f"schedule got the objective {name!r}, expected one of {listed(objectives)}."
                + nearest(str(name), objectives)
            )
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise ValueError(f"schedule got {name!r}: {count!r}, expected a count of 0 or more.")
    # All updates of one objective in a row: as many critic steps, then one generator step.
    order = tuple(name for name, count in schedule.items() for _ in range(count))
    if not order:
        raise ValueError(f"schedule got {dict(schedule)}, expected at least one update.")
    return order


def read_scale(value: float) -> np.ndarray:
    """Return the scale of updates that a value stands for, float32 without axes.

    Raises:
      ValueError: it is no finite number of at least 0.
    """
    try:
        # A string of digits would become a number, and an array of one element too.
        scale = float(value) if np.ndim(value) == 0 and not isinstance(value, str) else np.nan
    except (TypeError, ValueError):
        scale = np.nan
    if not np.isfinite(scale) or scale < 0:
        raise ValueError(
            f"update_scale got {value!r}, expected a finite number of 0 or more. It multiplies "
            "every update."
        )
    return np.asarray(scale, np.float32)


def list_arguments(
    builder: ProgramBuilder,
    update_order: Sequence[str],
    steps_per_call: int,
    on_non_finite: OnNonFinite,
    config: CheckpointConfig | None,
) -> dict[str, object]:
    """Return what a trainer was made with, as JSON; all but its seed."""
    options = builder.programs.options
    return {
        "objectives": list(builder.objectives),
        "schedule": list(update_order),
        "steps_per_call": steps_per_call,
        "on_non_finite": on_non_finite,
        "precision": str(options.precision),
        "gradient_accumulation_steps": options.num_micro_batches,
        "freeze": list(options.freeze),
        "checkpoint": None if config is None else config.as_json(),
    }


def read_loss_scales(builder: ProgramBuilder, state: State) -> Any:
    """Return what the loss is multiplied by; by objective, where there are several."""
    fixed = builder.programs.options.precision.loss_scale
    live = {name: float(each.scale) for name, each in state.loss_scale.items()}
    scales = {name: live.get(name, fixed) for name in builder.objectives}
    return next(iter(scales.values())) if len(scales) == 1 else scales
