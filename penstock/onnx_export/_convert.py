"""The conversion of a function of JAX to an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from penstock._errors import ExportError, check_installed

if TYPE_CHECKING:
    import onnx


def convert(
    function: Callable[[Any, dict[str, Any]], Sequence[Any]],
    weights: Any,
    inputs: Mapping[str, tuple[Sequence[int | str], Any]],
    output_names: Sequence[str],
    *,
    batch: str = "batch",
) -> onnx.ModelProto:
    """Convert a function of JAX to an ONNX model that takes batches of any size.

    What depends on the weights alone is computed once and kept. Numbers of bfloat16 and float16
    become float32, which runtimes on CPUs need.

    Arguments:
      function: takes weights and a dict of arrays `[B, ...]`; returns a flat tuple of arrays.
      weights: a nested dict of arrays.
      inputs: shape without the batch axis, and dtype, of each input. A size that is a name, such as
        `["length", 8]`, is free too.
      output_names: of what the function returns, in order.
      batch: the name of the batch axis in the model.

    Raises:
      ExportError: the function has an operation that is not converted, or asks for a free size
        as a number; says which.

    >>> import jax.numpy as jnp
    >>> def double(weights, feed):
    ...     return (feed["x"] * weights["scale"],)
    >>> model = convert(double, {"scale": jnp.float32(2)}, {"x": ([3], "float32")}, ["y"])
    >>> [node.op_type for node in model.graph.node], model.graph.output[0].name
    (['Mul', 'Identity'], 'y')
    """
    check_installed("onnx", "onnx", "the export to ONNX")
    from penstock.onnx_export._walk import Graph, add_line, walk

    shapes = {name: (batch, *shape) for name, (shape, _) in inputs.items()}
    # The first axis of each size that is free, whose name it has.
    places: dict[Any, tuple[str, int]] = {}
    for name, shape in shapes.items():
        for axis, size in enumerate(shape):
            if isinstance(size, str):
                places.setdefault(size, (name, axis))
    free = dict(zip(places, jax.export.symbolic_shape(", ".join(places)), strict=True))
    feed = {
        name: jax.ShapeDtypeStruct([free.get(size, size) for size in shapes[name]], dtype)
        for name, (_, dtype) in inputs.items()
    }
    leaves, tree = jax.tree_util.tree_flatten_with_path(weights)
    # Numpy's arrays lie on no device, so that constants are computed on the default one.
    arrays = [np.asarray(leaf) for _, leaf in leaves]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    taken = {
        name: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))
        for name, x in feed.items()
    }
    trace = _trace(function, tree.unflatten(arrays), taken)
    graph = Graph(walk, places, zip(names, arrays, strict=True), [*inputs, *output_names])
    # The leaves of a dict are in the order of its keys. JAX takes int64 for int32.
    fed = [
        name if feed[name].dtype == var.aval.dtype else graph.cast(name, var.aval.dtype)
        for name, var in zip(sorted(feed), trace.jaxpr.invars[len(arrays) :], strict=True)
    ]
    try:
        results = walk(graph, trace, [*arrays, *fed])
    except Exception as error:
        add_line(error, graph)
        raise
    avals = [var.aval for var in trace.jaxpr.outvars]
    outputs = dict(zip(output_names, avals, strict=True))
    return graph.build({name: feed[name] for name in inputs}, outputs, results)


def _trace(function: Callable[[Any, dict[str, Any]], Sequence[Any]], *operands: Any) -> Any:
    try:
        return jax.make_jaxpr(function)(*operands)
    except Exception as error:
        is_asked = isinstance(error, jax.errors.InconclusiveDimensionOperation)
        if not is_asked and "_DimExpr" not in str(error):
            raise
        raise ExportError(
            "the export to ONNX got a function that asks for a free size as a number "
            f"({str(error).strip().splitlines()[0]}), expected one that is the same for all sizes. "
            "The file takes any. Use x.shape[0] for len(x), and no `if` or `range` of it; or fix "
            "the length of sequences."
        ) from error
