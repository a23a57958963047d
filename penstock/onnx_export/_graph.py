"""An ONNX graph that is being written: its nodes, its constants, and the size of the batch."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from penstock._errors import ExportError

OPSET = 18
IR_VERSION = 8  # the first that has this opset: older runtimes refuse files of a later one

Value: TypeAlias = Any
"""The name of a tensor that depends on an input, or an array: what it is whatever the inputs."""


Equation: TypeAlias = Any
"""A JaxprEqn. For checkers of types its variables have no shapes."""


class Graph:
    """Nodes in order, and constants by name.

    Arguments:
      walk: adds the nodes of a jaxpr, from its constants and inputs; returns its results.
      batch: the name of the batch size in shapes.
      source: the name of an input, of whose first axis the batch size is taken.
      names: of the weights, by the ids of their arrays.
    """

    def __init__(
        self,
        walk: Callable[[Graph, Any, Sequence[Value], Sequence[Value]], list[Value]],
        batch: str,
        source: str,
        names: dict[int, str],
    ) -> None:
        self.walk = functools.partial(walk, self)
        self.batch, self.nodes, self.num_names = batch, [], 0
        # What is being converted, the call around it before it.
        self.equations: list[Equation] = []
        self.initializers: dict[str, Any] = {}
        # The arrays are kept, so that no other gets the id of one.
        self._constants: dict[Any, tuple[str, Any]] = {}
        self._weight_names, self._axes_moved = names, {}
        shape = self.op("Shape", source)
        self._batch_size = self.op("Slice", shape, [0], [1])

    def op(self, kind: str, *inputs: Value, num_outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a list of names where there are several.

        Arguments:
          inputs: values, lists of integers, or None for an input that is left out.
        """
        from onnx import helper

        names = ["" if value is None else self.name(value) for value in inputs]
        outputs = [self.new_name(kind) for _ in range(num_outputs)]
        self.nodes.append(helper.make_node(kind, names, outputs, **attributes))
        return outputs[0] if num_outputs == 1 else outputs

    def new_name(self, kind: str) -> str:
        self.num_names += 1
        return f"{kind.lower()}_{self.num_names}"

    def name(self, value: Value) -> str:
        """Return the name of a value; an array becomes a constant of the file."""
        if isinstance(value, str):
            return value
        if id(value) in self._weight_names:
            key = id(value)
        else:
            array = to_numpy(value)
            key = id(value) if array.size > 64 else (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            from onnx import numpy_helper

            name = self._weight_names.get(id(value)) or self.new_name("constant")
            self.initializers[name] = numpy_helper.from_array(to_numpy(value), name)
            self._constants[key] = name, value
        return self._constants[key][0]

    def sizes(self, shape: Sequence[Any]) -> Value:
        """Return sizes as a tensor of integers, computed where one depends on the batch size."""
        if all(isinstance(size, int) for size in shape):
            return np.array(shape, np.int64)
        return self.op("Concat", *[self._size(size) for size in shape], axis=0)

    def _size(self, size: Any) -> Value:
        if isinstance(size, int):
            return [size]
        found = re.fullmatch(rf"(?:(\d+)\*)?{self.batch}(?: ([+-]) (\d+))?", str(size))
        if found is None:
            raise ExportError(
                f"the export to ONNX got an array of size {size}, expected a multiple of the batch "
                "size, or that and a number. Sizes are computed from the batch's. Keep the "
                "examples on an axis of their own."
            )
        result = self._batch_size
        if found[1]:
            result = self.op("Mul", result, [int(found[1])])
        return self.op("Add", result, [int(found[2] + found[3])]) if found[2] else result

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        """Return a value with another shape, in which one size or several depend on the batch's."""
        if not isinstance(value, str):
            return value if value.shape == tuple(shape) else value.reshape(shape)
        free = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        if len(free) == 1 and 0 not in shape:
            return self.op(
                "Reshape", value, [-1 if axis in free else n for axis, n in enumerate(shape)]
            )
        return self.op("Reshape", value, self.sizes(shape))

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value with its axes in another order; one transposition undoes another."""
        if not isinstance(value, str):
            is_same = list(axes) == sorted(axes)
            return value if is_same else np.transpose(np.asarray(value), axes)
        source, before = self.moved(value, len(axes))
        axes = [before[axis] for axis in axes]
        if axes == sorted(axes):
            return source
        name = self.op("Transpose", source, perm=axes)
        self._axes_moved[name] = source, axes
        return name

    def moved(self, value: Value, rank: int) -> tuple[Value, list[int]]:
        """Return what a value is a transposition of, and the order of its axes there."""
        unmoved = value, list(range(rank))
        return self._axes_moved.get(value, unmoved) if isinstance(value, str) else unmoved

    def align(self, values: Sequence[Value], ranks: Sequence[int]) -> tuple[list[Value], list[int]]:
        """Return values of one rank before their transposition, and the order of axes after it.

        What an operation on them gives is to be transposed by that order. So transpositions pass
        elementwise operations and meet the next one, and few are left of those around convolutions.
        """
        rank = max(ranks)
        orders = [self.moved(value, rank)[1] for value, r in zip(values, ranks, strict=True) if r]
        order = next((order for order in orders if order != sorted(order)), list(range(rank)))
        back = [order.index(axis) for axis in range(rank)]
        pairs = zip(values, ranks, strict=True)
        return [self.transpose(value, back) if r else value for value, r in pairs], order

    def expand(self, value: Value, shape: Sequence[Any], new_shape: Sequence[Any]) -> Value:
        """Return a value with its axes of size 1 repeated."""
        if tuple(shape) == tuple(new_shape):
            return value
        # A size of 1 in Expand leaves an axis as it is.
        sizes = [1 if old == new else new for old, new in zip(shape, new_shape, strict=True)]
        return self.op("Expand", value, self.sizes(sizes))

    def cast(self, value: Value, dtype: Any) -> Value:
        if not isinstance(value, str):
            return np.asarray(value).astype(dtype)
        return self.op("Cast", value, to=element_type(dtype))

    def build(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], results: Sequence[Value]
    ) -> Any:
        """Return the model; inputs and outputs are described by what has a shape and a dtype."""
        from onnx import helper

        for name, value in zip(outputs, results, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.name(value)], [name]))
        self._prune(set(outputs))
        infos = [
            [describe(n, a.shape, a.dtype) for n, a in each.items()] for each in (inputs, outputs)
        ]
        graph = helper.make_graph(
            self.nodes, "penstock", *infos, initializer=list(self.initializers.values())
        )
        versions = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=versions, producer_name="penstock")
        model.ir_version = IR_VERSION
        return model

    def _prune(self, needed: set[str]) -> None:
        """Leave out nodes and constants that no output needs."""
        kept: list[Any] = []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                kept.append(node)
                needed |= names_read(node)
        self.nodes = kept[::-1]
        self.initializers = {k: v for k, v in self.initializers.items() if k in needed}


def names_read(node: Any) -> set[str]:
    """Return the names that a node reads, those inside its loops included."""
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            names |= {output.name for output in attribute.g.output}
            names.update(*[names_read(inner) for inner in attribute.g.node])
    return names


def storage_dtype(dtype: Any) -> np.dtype:
    """Return what numbers of a dtype are kept as: runtimes on CPUs know no half precision."""
    return np.dtype(np.float32) if dtype in (jnp.bfloat16, jnp.float16) else np.dtype(dtype)


def element_type(dtype: Any) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(storage_dtype(dtype))


def to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, list):
        return np.array(value, np.int64)
    array = np.asarray(value)
    return array.astype(storage_dtype(array.dtype), copy=False)


def describe(name: str, shape: Sequence[Any], dtype: Any) -> Any:
    """Return the description of an input or an output."""
    from onnx import helper

    sizes = [size if isinstance(size, int) else str(size) for size in shape]
    return helper.make_tensor_value_info(name, element_type(dtype), sizes)
