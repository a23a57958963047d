"""What holds for all programs of a builder: precision, micro-batches, what is frozen or split."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_choice, listed, nearest
from penstock._mesh import AXIS, WHOLE, StateSharding, lay_out, split_further
from penstock._parameter_names import Path, Selection, spell
from penstock._program.frame import ParameterSpec

PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]
_DTYPES: dict[str, DTypeLike | None] = {
    "float32": None,
    "bfloat16": jnp.bfloat16,
    "float16": jnp.float16,
}
SHARDINGS = ("optimizer", "full")

MeshAxes: TypeAlias = Sequence[str | None]
"""Over which axis of the mesh each dimension of an array is split, None for none."""

ParameterSharding: TypeAlias = Sequence[tuple[str, MeshAxes]]

_FIRST_WITH_BFLOAT16 = 8.0  # the compute capability of NVIDIA's first GPUs that multiply in it

INITIAL_LOSS_SCALE = 2.0**15
_FACTOR = 2.0
_STEPS_BEFORE_GROWTH = 2000
_SMALLEST, _LARGEST = 2.0**-14, 2.0**24


@dataclasses.dataclass(frozen=True)
class Precision:
    """What layers compute products in, and what the loss is multiplied by for its gradients.

    Parameters, optimizer state, batch norm's statistics, softmax and losses are float32 in any
    case. Float16 holds numbers from 6e-8 to 65,504: gradients are smaller, and so the loss is
    multiplied before they are taken and they are divided afterwards.

    Arguments:
      compute: `"auto"` is bfloat16 where the accelerator multiplies in it, else float32.
      loss_scale: a number, or `"dynamic"`: it begins at 2**15, doubles after 2000 updates, and is
        halved by an update whose gradients overflow, which is left out. By default dynamic for
        float16, 1 for the others.

    Raises:
      ProgramError: there is no such precision, or the scale is not a positive number.

    >>> Precision("float16").loss_scale, Precision("bfloat16").loss_scale
    ('dynamic', 1.0)
    """

    compute: PrecisionName = "auto"
    loss_scale: float | Literal["dynamic"] | None = None

    def __post_init__(self) -> None:
        if self.compute not in ("auto", *_DTYPES):
            raise ProgramError(
                f"precision got {self.compute!r}, expected one of {listed(['auto', *_DTYPES])}."
                + nearest(str(self.compute), ["auto", *_DTYPES])
            )
        if self.loss_scale is None:
            # In float16 alone gradients vanish: its smallest number is 6e-8.
            object.__setattr__(self, "loss_scale", "dynamic" if self.compute == "float16" else 1.0)
        elif self.loss_scale != "dynamic" and not (
            isinstance(self.loss_scale, int | float)
            and not isinstance(self.loss_scale, bool)
            and 0 < self.loss_scale < math.inf
        ):
            raise ProgramError(
                f"loss_scale got {self.loss_scale!r}, expected a positive number, or 'dynamic'."
            )

    @functools.cached_property  # not a call in each step that is traced
    def compute_dtype(self) -> DTypeLike | None:
        """The dtype of products; None leaves them in the dtype of their operands."""
        return _DTYPES[self.compute]

    @property
    def is_dynamic(self) -> bool:
        """Whether the loss scale changes by itself."""
        return self.loss_scale == "dynamic"

    def on(self, mesh: Mesh) -> Precision:
        """Return the precision with `"auto"` decided for the devices of a mesh."""
        if self.compute != "auto":
            return self
        device = mesh.devices.flat[0]
        if device.platform == "gpu":
            capability = str(getattr(device, "compute_capability", ""))
            number = capability.replace(".", "", 1).isdigit()
            has_it = not number or float(capability) >= _FIRST_WITH_BFLOAT16
        else:
            has_it = device.platform == "tpu"
        return dataclasses.replace(self, compute="bfloat16" if has_it else "float32")

    def __str__(self) -> str:
        if self.loss_scale == 1.0:
            return self.compute
        return f"{self.compute}, loss scale {self.loss_scale}"


class LossScale(NamedTuple):
    """A scale that falls where gradients overflow, and grows after many updates that did not.

    Source: Micikevicius et al. 2018; factors and interval as in PyTorch's `GradScaler`.
    """

    scale: jax.Array
    num_finite: jax.Array

    @classmethod
    def initial(cls) -> LossScale:
        return cls(jnp.float32(INITIAL_LOSS_SCALE), jnp.zeros((), jnp.int32))

    @property
    def is_smallest(self) -> jax.Array:
        """Whether it falls no further: what is not finite now is so at any scale."""
        return self.scale <= _SMALLEST

    def after(self, is_finite: jax.Array) -> LossScale:
        """Return the scale after an update whose gradients were finite, or were not."""
        num_finite = self.num_finite + 1
        grows = num_finite >= _STEPS_BEFORE_GROWTH
        grown = jnp.where(grows, jnp.minimum(self.scale * _FACTOR, _LARGEST), self.scale)
        fallen = jnp.maximum(self.scale / _FACTOR, _SMALLEST)
        return LossScale(
            jnp.where(is_finite, grown, fallen),
            jnp.where(is_finite & ~grows, num_finite, 0),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The options of a builder; `ProgramBuilder` documents each."""

    precision: Precision
    skips_non_finite: bool
    freeze: tuple[str, ...]
    num_micro_batches: int
    strict: bool
    state_sharding: StateSharding = None
    parameter_sharding: ParameterSharding = ()

    def __post_init__(self) -> None:
        if self.state_sharding is not None:
            check_choice("ProgramBuilder got state_sharding=", self.state_sharding, SHARDINGS)
        number = self.num_micro_batches
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ProgramError(
                f"gradient_accumulation_steps got {number!r}, expected a whole number of 1 or more."
            )

    def split(
        self, path: Path, shape: Sequence[int], mesh: Mesh, axes: MeshAxes = ()
    ) -> PartitionSpec:
        """Return over which axes a parameter is split where a layer reads it."""
        names = set(mesh.axis_names)
        for pattern, chosen in self.parameter_sharding:
            if not Selection(include=(pattern,)).takes(spell(path)):
                continue
            sizes = [mesh.shape.get(axis, 0) if axis else 1 for axis in chosen]
            if len(chosen) > len(shape) or 0 in sizes or AXIS in chosen:
                axis_names = listed(sorted(names - {AXIS}))
                raise ProgramError(
                    f"parameter_sharding got {chosen!r} for {spell(path)!r} of shape "
                    f"{list(shape)}, expected for each dimension None or one of the mesh's axes "
                    f"beside {AXIS!r}: {axis_names}. state_sharding splits over {AXIS!r}."
                )
            uneven = [k for k, size in enumerate(sizes) if shape[k] % size]
            if uneven:
                raise ProgramError(
                    f"parameter_sharding got {chosen!r} for {spell(path)!r} of shape "
                    f"{list(shape)}, expected dimension {uneven[0]} to be a multiple of the "
                    f"{sizes[uneven[0]]} devices along {chosen[uneven[0]]!r}."
                )
            return PartitionSpec(*chosen)
        if not names.intersection(axes):
            return WHOLE
        # A layer's own choice holds as far as it divides.
        return PartitionSpec(
            *[
                axis if axis in names and size % mesh.shape[axis] == 0 else None
                for axis, size in zip(axes, shape, strict=False)
            ]
        )

    def lay_out(
        self, mesh: Mesh, spec: ParameterSpec, value: jax.Array, *, is_split: bool
    ) -> jax.Array:
        """Return a parameter as it lies while a layer uses it: whole, or split as rules say."""
        split = self.split(spec.path, spec.shape, mesh, spec.axes) if is_split else WHOLE
        # In the dtype of products, which halves what the devices send each other.
        used = self._narrow(value) if self.state_sharding == "full" else value
        return lay_out(used, mesh, split).astype(value.dtype)

    def stack(
        self, mesh: Mesh, specs: Sequence[ParameterSpec], values: Sequence[jax.Array]
    ) -> jax.Array:
        """Return a parameter of layers alike, stacked, which lies on the mesh as each of them."""
        spec = specs[0]
        split = self.split(spec.path, spec.shape, mesh, spec.axes)
        if self.state_sharding == "full":
            split = split_further(spec.shape, split, mesh)
        stacked = jnp.stack([self._narrow(value) for value in values])
        return lay_out(stacked, mesh, PartitionSpec(None, *split))

    def _narrow(self, value: jax.Array) -> jax.Array:
        """Return a weight in the dtype of the products that it is for."""
        compute = self.precision.compute_dtype
        is_weight = value.ndim > 1 and jnp.issubdtype(value.dtype, jnp.floating)
        return value.astype(compute) if compute is not None and is_weight else value

    def is_frozen(self, path: Sequence[str]) -> bool:
        return bool(self.freeze) and Selection(include=self.freeze).takes(spell(path))
