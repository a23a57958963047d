"""Parameters whose initial values are at hand: trees of arrays that another library made."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.tree_util import KeyPath

from penstock._errors import ProgramError
from penstock._parameter_names import spell
from penstock._program.frame import ParameterSpec, current_frame

T = TypeVar("T")


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

    >>> import numpy as np
    >>> import penstock as ps
    >>> from penstock import layers
    >>> weights = {"scale": np.ones([1, 2], np.float32), "act": "relu"}
    >>> def program():
    ...     return layers.data("x", [2]) * layers.create_parameters(weights, name="net")["scale"]
    >>> jax.tree.map(np.shape, ps.ProgramBuilder(infer_func=program).init().variables["params"])
    {'net': {'scale': (1, 2)}}
    """
    frame = current_frame("create_parameters")
    path = frame.names.layer("parameters", name)

    def create(keys: KeyPath, leaf: Any) -> Any:
        if not _is_weight(leaf):
            return leaf
        # A key such as "mlp/linear_0" of Haiku's is a path by itself.
        steps = [jax.tree_util.keystr((key,), simple=True) for key in keys]
        parts = [part for step in steps for part in step.split("/") if part]
        spec = weight_spec((*path, *(parts or ["value"])), leaf)
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
        dtype=value.dtype,
        initializer=initial,
        # Running statistics of nnx modules come this way too.
        trainable=collection == "params",
    )


def _is_weight(value: Any) -> bool:
    is_array = isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))
    return is_array and jnp.issubdtype(value.dtype, jnp.floating)
