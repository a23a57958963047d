"""Parameters: their attributes, their regularizers, parameters of your own, and whole trees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, dtypes
from jax.nn import initializers
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

from penstock._errors import ProgramError, check_number, check_type
from penstock._parameter_names import Path, spell
from penstock._program.frame import Frame, Initializer, ParameterSpec, check_name, current_frame
from penstock.layers.initializers import XAVIER

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class L1Decay:
    """Add `coefficient * sign(parameter)` to a parameter's gradient.

    This is the gradient of the penalty `coefficient * sum(abs(parameter))`. The loss that a
    program reports does not include the penalty. Source: Fluid's `L1Decay`.

    >>> float(L1Decay(0.5)(jnp.float32(-3.0)))
    -0.5
    """

    coefficient: float

    def __call__(self, parameter: jax.Array) -> jax.Array:
        """Return the term to add to the gradient, in the shape of `parameter`."""
        return self.coefficient * jnp.sign(parameter)

    def penalty(self, parameter: jax.Array) -> jax.Array:
        """Return the penalty `coefficient * sum(abs(parameter))`, a scalar.

        It is added to the loss for optimizers that compare losses, such as a line search.
        """
        return self.coefficient * jnp.sum(jnp.abs(parameter))


@dataclasses.dataclass(frozen=True)
class L2Decay:
    """Add `coefficient * parameter` to a parameter's gradient.

    Like `L1Decay`, for the penalty `coefficient / 2 * sum(parameter ** 2)`. Source: Fluid's
    `L2Decay`.

    >>> float(L2Decay(0.5)(jnp.float32(-3.0)))
    -1.5
    """

    coefficient: float

    def __call__(self, parameter: jax.Array) -> jax.Array:
        """Return the term to add to the gradient, in the shape of `parameter`."""
        return self.coefficient * parameter

    def penalty(self, parameter: jax.Array) -> jax.Array:
        """Return the penalty `coefficient / 2 * sum(parameter ** 2)`, a scalar; see `L1Decay`."""
        return self.coefficient / 2 * jnp.sum(parameter**2)


# Not keyword-only: this is Fluid's order.
@dataclasses.dataclass(frozen=True)
class ParamAttr:
    """Describe how one parameter is named, initialised and trained. Source: Fluid's `ParamAttr`.

    Layers take it as `param_attr` and `bias_attr`. These arguments also accept an initialiser, a
    string (the name) and, where the parameter is optional, `False` to leave it out.

    Arguments:
      name: the parameter's name in the current scope. The layer's own name is then not part of
        the path: two layers that give the same name share the parameter.
      initializer: `(key, shape, dtype) -> array`, as in `jax.nn.initializers`.
      learning_rate: a factor for the optimizer's updates of this parameter.
      regularizer: maps the parameter to the term that is added to its gradient, e.g.
        `L2Decay(1e-4)`.
      trainable: `False` freezes the parameter, and leaves it out of the optimizer's state.

    >>> attr = ParamAttr(initializer=initializers.zeros, learning_rate=0.1, trainable=True)
    >>> attr.learning_rate
    0.1
    """

    name: str | None = None
    initializer: Initializer | None = None
    learning_rate: float = 1.0
    regularizer: Callable[[jax.Array], jax.Array] | None = None
    trainable: bool = True

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name("ParamAttr", self.name)
        for name in ("initializer", "regularizer"):
            expected = "a function, e.g. jax.nn.initializers.zeros or L2Decay(1e-4)."
            check_type(f"ParamAttr got {name}=", getattr(self, name), Callable | None, expected)
        why = "It multiplies the optimizer's update. Use trainable=False to freeze a parameter."
        check_number("ParamAttr got learning_rate=", self.learning_rate, "[0, inf]", why)


Attr = ParamAttr | Initializer | str | bool | None
"""What `param_attr` and `bias_attr` accept; see `ParamAttr`."""


def create_parameter(
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    name: str | None = None,
    attr: Attr = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> jax.Array:
    """Create a parameter for your own layer.

    Its path is the path of the current scope followed by its name, by default `parameter_0`,
    `parameter_1` and so on. Source: Fluid's `create_parameter`.

    Arguments:
      shape: the shape; there is no batch axis.
      name: the name; by default the name in `attr`, if it has one.
      is_bias: initialise with zeros by default.
      default_initializer: used if `attr` has no initialiser. By default Xavier uniform for two or
        more axes, and zeros for fewer.

    Returns:
      The parameter, of `shape`.

    >>> def program():
    ...     x = layers.data("x", shape=[3])
    ...     return x * layers.create_parameter([1, 3], name="gain", attr=initializers.ones)
    >>> ps.ProgramBuilder(infer_func=program).init().variables["params"]["gain"].shape
    (1, 3)
    """
    frame = current_frame("create_parameter")
    resolved = resolve("create_parameter", "attr", attr)
    *above, leaf = frame.names.layer("parameter", name or resolved.name)
    # A vector has no fan for Xavier's.
    usual = initializers.zeros if is_bias or len(shape) < 2 else XAVIER
    fallback = ParamAttr(initializer=default_initializer).initializer or usual
    unnamed = dataclasses.replace(resolved, name=None)
    return parameter(
        frame, tuple(above), leaf, shape, fallback, unnamed, layer="create_parameter", dtype=dtype
    )


_DEFAULTS = ParamAttr()


def resolve(layer: str, argument: str, attr: Attr) -> ParamAttr:
    """Return the `ParamAttr` that an accepted form stands for; `True` and `None` mean defaults."""
    if attr is None or attr is True:
        return _DEFAULTS
    if isinstance(attr, ParamAttr):
        return attr
    if isinstance(attr, str):
        return ParamAttr(name=attr)
    if callable(attr):
        return ParamAttr(initializer=attr)
    raise ProgramError(
        f"layers.{layer} got {argument}={attr!r}, expected a ParamAttr, initializer, name or None."
    )


def add_to_name(layer: str, argument: str, attr: Attr, part: str) -> Attr:
    """Return an attribute for one of several parameters that it stands for."""
    if attr is False:
        return attr
    resolved = resolve(layer, argument, attr)
    # One name for all would make one parameter of them.
    is_named = resolved.name is not None
    return dataclasses.replace(resolved, name=f"{resolved.name}_{part}") if is_named else resolved


def parameter(
    frame: Frame,
    layer_path: Path,
    leaf: str,
    shape: Sequence[int],
    default: Initializer,
    attr: Attr,
    *,
    layer: str,
    dtype: DTypeLike = "float32",
    axes: tuple[str | None, ...] = (),
) -> jax.Array:
    """Return the parameter `leaf` of the layer at `layer_path`; for the layers' own use.

    Arguments:
      axes: the mesh axis that each dimension is split over, where a mesh has it.
    """
    argument = "bias_attr" if leaf in ("b", "bias") else "param_attr"
    resolved = resolve(layer, argument, attr)
    path = (*layer_path, leaf)
    if resolved.name is not None:
        # Not below the layer's name: two layers that give one name share the parameter.
        path = (*frame.names.scope.path, resolved.name)
    if tuple(map(int, shape)) != tuple(shape) or min(shape, default=1) < 1:
        raise ProgramError(
            f"parameter {spell(path)!r} got shape {tuple(shape)}, expected positive integers. "
            "Every axis has at least one element. Check the sizes given to the layer."
        )
    return frame.parameter(
        ParameterSpec(
            path=path,
            collection="params",
            shape=tuple(map(int, shape)),
            dtype=dtypes.canonicalize_dtype(dtype),
            initializer=default if resolved.initializer is None else resolved.initializer,
            trainable=resolved.trainable,
            learning_rate=resolved.learning_rate,
            regularizer=resolved.regularizer,
            layer=layer,
            axes=axes,
        )
    )


def apply_scale(
    frame: Frame, y: jax.Array, path: Path, attr: Attr, *, axis: int, layer: str
) -> jax.Array:
    """Multiply by a parameter `scale` along `axis`, or not if `attr` is `False`."""
    if attr is False:
        return y
    ones = initializers.ones
    factor = parameter(frame, path, "scale", [y.shape[axis]], ones, attr, layer=layer)
    return y * frame.align(factor, y, axis)


def apply_shift(
    frame: Frame,
    y: jax.Array,
    path: Path,
    attr: Attr,
    *,
    axis: int,
    layer: str,
    leaf: str = "bias",
    axes: tuple[str | None, ...] = (),
) -> jax.Array:
    """Add a parameter `leaf` along `axis`, or not if `attr` is `False`."""
    if attr is False:
        return y
    shape, zeros = [y.shape[axis]], initializers.zeros
    bias = parameter(frame, path, leaf, shape, zeros, attr, layer=layer, axes=axes)
    return y + frame.align(bias, y, axis)


def create_parameters(tree: T, name: str | None = None) -> T:
    """Create a parameter for each floating array of a tree, such as the weights of another library.

    The values in the tree are the initial values, whatever the seed. An Equinox module is such a
    tree, and so are the parameters that `init` returns in Haiku or flax; see
    `penstock docs other_modules`. Two calls with the same explicit name in the same scope share
    their parameters.

    Arguments:
      tree: any pytree. Leaves that are not floating arrays stay as they are.
      name: the scope at the start of the parameters' paths; by default `parameters_0` and so on.

    Returns:
      The tree, with its floating arrays replaced by the program's parameters.

    >>> weights = {"scale": np.ones([1, 2], np.float32), "act": "relu"}
    >>> def program():
    ...     return layers.data("x", [2]) * layers.create_parameters(weights, name="net")["scale"]
    >>> jax.tree.map(np.shape, ps.ProgramBuilder(infer_func=program).init().variables["params"])
    {'net': {'scale': (1, 2)}}
    """
    frame = current_frame("create_parameters")
    path, paths = frame.names.layer("parameters", name), set[Path]()

    def create(keys: KeyPath, leaf: Any) -> Any:
        if not _is_weight(leaf):
            return leaf
        # A key such as "mlp/linear_0" of Haiku's is a path by itself.
        steps = [jax.tree_util.keystr((key,), simple=True) for key in keys]
        parts = [part for step in steps for part in step.split("/") if part]
        spec = weight_spec((*path, *(parts or ["value"])), leaf)
        if spec.path in paths:
            raise ProgramError(
                f"layers.create_parameters got two arrays of the name {spec.name!r}, expected one. "
                "A slash in a key separates names, as between a dict and its entries. Rename one."
            )
        paths.add(spec.path)
        return frame.cast(frame.parameter(spec))

    # Paths of the tree are names of the parameters: another library's files keep theirs.
    return jax.tree_util.tree_map_with_path(create, tree)


def weight_spec(path: tuple[str, ...], value: Any, collection: str = "params") -> ParameterSpec:
    """Return the spec of a parameter whose initial value is an array at hand, or only its shape.

    Raises:
      ProgramError: the value was made inside the program function.
    """
    if isinstance(value, core.Tracer):
        raise ProgramError(
            f"parameter {spell(path)!r} got a value made inside the program function, expected "
            "an array made outside. Inside, there are no values yet to start from. Make the "
            "module, or the tree, before the programs."
        )

    def initial(key: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
        if isinstance(value, jax.ShapeDtypeStruct):
            raise ProgramError(
                f"parameter {spell(path)!r} got a shape without values, expected an array. "
                "A new network starts from them. Load parameters, or make the module outside "
                "jax.eval_shape."
            )
        # By way of the host: an array on one device would not do for a program on others.
        return jnp.asarray(np.asarray(value), dtype)

    return ParameterSpec(
        path=path,
        collection=collection,
        shape=tuple(value.shape),
        dtype=dtypes.canonicalize_dtype(value.dtype),
        initializer=initial,
        # Running statistics of nnx modules come this way too.
        trainable=collection == "params",
    )


def _is_weight(value: Any) -> bool:
    is_array = isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))
    return is_array and jnp.issubdtype(value.dtype, jnp.floating)
