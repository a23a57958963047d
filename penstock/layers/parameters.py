"""Parameters: their attributes, their regularizers, and parameters of one's own."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import dtypes
from jax.nn import initializers

from penstock._errors import ProgramError
from penstock.layers import _frame


@dataclasses.dataclass(frozen=True)
class L1Decay:
    """Add `coefficient * sign(parameter)` to a parameter's gradient.

    The loss that a program reports does not include it. Source: Fluid's `L1Decay`.

    >>> float(L1Decay(0.5)(jnp.float32(-3.0)))
    -0.5
    """

    coefficient: float

    def __call__(self, parameter: jax.Array) -> jax.Array:
        """Return what is added to the gradient, of the parameter's shape."""
        return self.coefficient * jnp.sign(parameter)

    def penalty(self, parameter: jax.Array) -> jax.Array:
        """Return what it stands for in the loss, a scalar: an optimizer may compare losses."""
        return self.coefficient * jnp.sum(jnp.abs(parameter))


@dataclasses.dataclass(frozen=True)
class L2Decay:
    """Add `coefficient * parameter` to a parameter's gradient.

    This is the gradient of `coefficient / 2 * sum(parameter ** 2)`; the loss that a program
    reports does not include it. Source: Fluid's `L2Decay`.

    >>> float(L2Decay(0.5)(jnp.float32(-3.0)))
    -1.5
    """

    coefficient: float

    def __call__(self, parameter: jax.Array) -> jax.Array:
        """Return what is added to the gradient, of the parameter's shape."""
        return self.coefficient * parameter

    def penalty(self, parameter: jax.Array) -> jax.Array:
        """Return what it stands for in the loss, a scalar: an optimizer may compare losses."""
        return self.coefficient / 2 * jnp.sum(parameter**2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParamAttr:
    """How one parameter is named, initialised and trained. Source: Fluid's `ParamAttr`.

    Layers take it as `param_attr` and `bias_attr`. In its place they also take an initialiser, a
    string (the name) and, where the parameter can be left out, `False`.

    Arguments:
      name: stands for the parameter itself, directly in the current scope and not below the
        layer's name: two layers that give the same name share the parameter.
      initializer: `(key, shape, dtype) -> array`, as in `jax.nn.initializers`.
      learning_rate: multiplies the optimizer's update of this parameter.
      regularizer: maps the parameter to what is added to its gradient, e.g. `L2Decay(1e-4)`.
      trainable: `False` leaves the parameter as it is, and out of the optimizer's state.

    >>> attr = ParamAttr(initializer=initializers.zeros, learning_rate=0.1, trainable=True)
    >>> attr.learning_rate
    0.1
    """

    name: str | None = None
    initializer: _frame.Initializer | None = None
    learning_rate: float = 1.0
    regularizer: Callable[[jax.Array], jax.Array] | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        if self.name is not None:
            _frame.check_name("ParamAttr", self.name)
        for name in ("initializer", "regularizer"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TypeError(
                    f"ParamAttr got {name}={value!r}, expected a function, e.g. "
                    "jax.nn.initializers.zeros or L2Decay(1e-4)."
                )
        if self.learning_rate < 0:
            raise ValueError(
                f"ParamAttr got learning_rate={self.learning_rate}, expected 0 or more. It "
                "multiplies the optimizer's update. Use trainable=False to freeze a parameter."
            )


# One object each: what is drawn alike, from equal initialisers at equal shapes, compiles once.
XAVIER: _frame.Initializer = initializers.glorot_uniform()


@functools.cache
def normal(stddev: float) -> _frame.Initializer:
    """Return the initialiser of normally distributed parameters."""
    return initializers.normal(stddev)


Attr = ParamAttr | _frame.Initializer | str | bool | None
"""What `param_attr` and `bias_attr` accept; see `ParamAttr`."""


def create_parameter(
    shape: Sequence[int],
    dtype: Any = "float32",
    name: str | None = None,
    attr: Attr = None,
    is_bias: bool = False,
    default_initializer: _frame.Initializer | None = None,
) -> jax.Array:
    """Create a trainable parameter of one's own.

    Its path is the scope's path and its name (`parameter_0` and so on without one). Source: Fluid's
    `create_parameter`.

    Arguments:
      shape: the shape, without a batch axis.
      is_bias: initialise with zeros when nothing else is said.
      default_initializer: used when `attr` names none; Xavier uniform for 2 or more axes without.

    Returns:
      The parameter, of `shape`.

    >>> import penstock as ps
    >>> from penstock import layers
    >>> def program():
    ...     x = layers.data("x", shape=[3])
    ...     return x * layers.create_parameter([1, 3], name="gain", attr=initializers.ones)
    >>> ps.ProgramBuilder(infer_func=program).init().variables["params"]["gain"].shape
    (1, 3)
    """
    frame = _frame.current("create_parameter")
    resolved = resolve("create_parameter", "attr", attr)
    name = name or resolved.name
    path = frame.layer("parameter", name)
    fallback = default_initializer or (initializers.zeros if is_bias or len(shape) < 2 else XAVIER)
    return _request(frame, path, shape, dtype, resolved, fallback)


def resolve(layer: str, argument: str, attr: Attr) -> ParamAttr:
    """Return the `ParamAttr` that an accepted form stands for; `True` and `None` mean defaults."""
    if attr is None or attr is True:
        return ParamAttr()
    if isinstance(attr, ParamAttr):
        return attr
    if isinstance(attr, str):
        return ParamAttr(name=attr)
    if callable(attr):
        return ParamAttr(initializer=attr)
    raise ProgramError(
        f"layers.{layer} got {argument}={attr!r}, expected a ParamAttr, an initializer, a name or "
        "None."
    )


def parameter(
    layer_path: tuple[str, ...],
    leaf: str,
    shape: Sequence[int],
    default: _frame.Initializer,
    attr: Attr,
    *,
    layer: str,
    dtype: Any = "float32",
) -> jax.Array:
    """Return the parameter `leaf` of the layer at `layer_path`; for the layers' own use."""
    frame = _frame.current(layer)
    argument = "bias_attr" if leaf in ("b", "bias") else "param_attr"
    resolved = resolve(layer, argument, attr)
    path = (*layer_path, leaf)
    if resolved.name is not None:
        path = (*frame.scope.path, resolved.name)
    return _request(frame, path, shape, dtype, resolved, default)


def _request(
    frame: _frame.Frame,
    path: tuple[str, ...],
    shape: Sequence[int],
    dtype: Any,
    attr: ParamAttr,
    default: _frame.Initializer,
) -> jax.Array:
    if any(size != int(size) or size < 1 for size in shape):
        raise ProgramError(
            f"parameter {'/'.join(path)!r} got shape {tuple(shape)}, expected positive integers. "
            "Every axis has at least one element. Check the sizes given to the layer."
        )
    return frame.parameter(
        _frame.ParameterSpec(
            path=path,
            collection="params",
            shape=tuple(int(size) for size in shape),
            dtype=dtypes.canonicalize_dtype(dtype),
            initializer=default if attr.initializer is None else attr.initializer,
            trainable=attr.trainable,
            learning_rate=attr.learning_rate,
            regularizer=attr.regularizer,
        )
    )


def scaled(y: jax.Array, path: tuple[str, ...], attr: Attr, *, axis: int, layer: str) -> jax.Array:
    """Multiply by a parameter `scale` along `axis`, or not if `attr` is `False`."""
    if attr is False:
        return y
    scale = parameter(path, "scale", [y.shape[axis]], initializers.ones, attr, layer=layer)
    return y * _frame.along(_in_precision(scale, y, layer), y.ndim, axis)


def shifted(
    y: jax.Array,
    path: tuple[str, ...],
    attr: Attr,
    *,
    axis: int,
    layer: str,
    leaf: Literal["b", "bias"] = "bias",
) -> jax.Array:
    """Add a parameter `leaf` along `axis`, or not if `attr` is `False`."""
    if attr is False:
        return y
    bias = parameter(path, leaf, [y.shape[axis]], initializers.zeros, attr, layer=layer)
    return y + _frame.along(_in_precision(bias, y, layer), y.ndim, axis)


def _in_precision(value: jax.Array, y: jax.Array, layer: str) -> jax.Array:
    """Return a vector in the dtype of what it meets, in a program of less than full precision."""
    has_precision = _frame.current(layer).compute_dtype is not None
    return value.astype(y.dtype) if has_precision and _is_floating(y) else value


def _is_floating(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating)
