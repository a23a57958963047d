"""An ONNX graph that is being written: its nodes, its constants, and the size of the batch."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from onnx import helper, numpy_helper

OPSET = 18
IR_VERSION = 8  # the first that has this opset: older runtimes refuse files of a later one

_OPERATORS = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Pow: "Pow"}
_FUNCTIONS = {"mod": "Mod", "max": "Max", "min": "Min"}

Value: TypeAlias = Any
"""The name of a tensor that depends on an input, or an array: what it is whatever the inputs."""


Equation: TypeAlias = Any
"""A JaxprEqn. For checkers of types its variables have no shapes."""


class Graph:
    """Nodes in order, and constants by name; `places` has input and axis of each free size."""

    def __init__(
        self,
        walk: Callable[[Graph, Any, Sequence[Value]], list[Value]],
        places: Mapping[str, tuple[str, int]],
        weights: Iterable[tuple[str, np.ndarray]],
        taken: Iterable[str],
    ) -> None:
        self.walk = functools.partial(walk, self)
        self.nodes: list[Any] = []
        # What is being converted, the call around it before it.
        self.equations: list[Equation] = []
        self.initializers: dict[str, Any] = {}
        self._taken, self._num_names = set(taken), 0
        # With each array, so that no other gets its id.
        self._weights = {id(array): (name, array) for name, array in weights}
        self._constants: dict[Any, tuple[str, Any]] = {}
        self._axes_moved: dict[str, tuple[str, list[int]]] = {}
        self._sizes = {
            name: self.op("Slice", self.op("Shape", source), [axis], [axis + 1])
            for name, (source, axis) in places.items()
        }

    def op(self, kind: str, *inputs: Value, **attributes: Any) -> Any:
        return self.ops(kind, *inputs, num_outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: Value, num_outputs: int, **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs. An input that is None is left out."""
        names = ["" if value is None else self.name(value) for value in inputs]
        outputs = [self.new_name(kind) for _ in range(num_outputs)]
        self.nodes.append(helper.make_node(kind, names, outputs, **attributes))
        return outputs

    def new_name(self, kind: str) -> str:
        self._num_names += 1
        return self._take(f"{kind.lower()}_{self._num_names}")

    def _take(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def name(self, value: Value) -> str:
        """Return the name of a value; an array becomes a constant of the file."""
        if isinstance(value, str):
            return value
        weight, _ = self._weights.get(id(value), (None, None))
        if weight is not None:
            key = id(value)
        else:
            array = to_numpy(value)
            key = id(value) if array.size > 64 else (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = self._take(weight) if weight else self.new_name("constant")
            self.initializers[name] = numpy_helper.from_array(to_numpy(value), name)
            self._constants[key] = name, value
        return self._constants[key][0]

    def sizes(self, shape: Sequence[Any]) -> Value:
        """Return sizes as a tensor of integers, computed where one depends on the batch size."""
        if all(isinstance(size, int) for size in shape):
            return np.array(shape, np.int64)
        # Sizes are computed of others, and JAX shows such a size as it is written in Python, but
        # for powers, whose sign binds loosely there.
        nodes = [ast.parse(str(size).replace("^", "**"), mode="eval").body for size in shape]
        return self.op("Concat", *map(self._compute, nodes), axis=0)

    def _compute(self, node: Any) -> Value:
        match node:
            case ast.Constant():
                return [node.value]
            case ast.Name(id=name):
                return self._sizes[name]
            case ast.UnaryOp(operand=operand):
                return self.op("Neg", self._compute(operand))
            case ast.BinOp(left=left, right=right):
                kind = _OPERATORS[type(node.op)]
                return self.op(kind, self._compute(left), self._compute(right))
            case ast.Call(func=ast.Name(id="floordiv"), args=operands):
                # ONNX's Div rounds towards zero, and -(-n // 2) is how one rounds up.
                above, below = map(self._compute, operands)
                remainder = self.op("Mod", above, below)
                return self.op("Div", self.op("Sub", above, remainder), below)
            case ast.Call(func=ast.Name(id=name), args=operands):
                return self.op(_FUNCTIONS[name], *map(self._compute, operands))
        raise AssertionError(ast.dump(node))

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        """Return a value with another shape, in which one size or several depend on the batch's."""
        if not isinstance(value, str):
            return value if value.shape == tuple(shape) else value.reshape(shape)
        free = [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
        if len(free) == 1 and 0 not in shape:
            return self.op(
                "Reshape", value, [-1 if axis in free else n for axis, n in enumerate(shape)]
            )
        # Otherwise a size of 0 stands for that of the same axis before.
        return self.op("Reshape", value, self.sizes(shape), allowzero=1)

    def transpose(self, value: Value, axes: Sequence[int]) -> Value:
        """Return a value with its axes in another order; one transposition undoes another."""
        if not isinstance(value, str):
            if list(axes) == sorted(axes):
                return value
            moved = np.transpose(np.asarray(value), axes)
            if id(value) in self._weights:
                self._weights[id(moved)] = self._weights[id(value)][0], moved
            return moved
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
        if tuple(shape) == tuple(new_shape):
            return value
        for axis, size in enumerate(new_shape):
            if isinstance(size, int) and size == 0:  # ONNX Runtime takes it for 1
                value, shape = (
                    self.op("Slice", value, [0], [0], [axis]),
                    (*shape[:axis], 0, *shape[axis + 1 :]),
                )
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
        for name, value in zip(outputs, results, strict=True):
            self.nodes.append(helper.make_node("Identity", [self.name(value)], [name]))
        self._prune(set(outputs))
        infos = [
            [describe(n, a.shape, a.dtype) for n, a in specs.items()] for specs in (inputs, outputs)
        ]
        graph = helper.make_graph(
            self.nodes, "penstock", *infos, initializer=list(self.initializers.values())
        )
        versions = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=versions, producer_name="penstock")
        model.ir_version = IR_VERSION
        return model

    def where(self, is_first: Value, first: Value, second: Value, dtype: Any) -> Value:
        """Return the numbers of one of two values; runtimes have that for few dtypes."""
        if dtype == jnp.uint8 or jnp.issubdtype(dtype, jnp.floating) or dtype == jnp.int32:
            return self.op("Where", is_first, first, second)
        wide = [self.cast(value, np.int64) for value in (first, second)]
        return self.cast(self.op("Where", is_first, *wide), dtype)

    def clip(self, places: Value, most: Sequence[Any]) -> Value:
        """Return places that are at least 0, and at most `most`."""
        limits = self.sizes(most)
        if isinstance(places, str) or isinstance(limits, str):
            return self.op("Max", self.op("Min", places, limits), [0])
        return np.clip(places, 0, limits)

    def widen(self, equation: Equation, *inputs: Value) -> list[Value]:
        """Return the operands of a product in the dtype of the result."""
        dtype = equation.outvars[0].aval.dtype
        pairs = zip(inputs, equation.invars, strict=True)
        return [x if atom.aval.dtype == dtype else self.cast(x, dtype) for x, atom in pairs]

    def _prune(self, needed: set[str]) -> None:
        kept: list[Any] = []
        for node in reversed(self.nodes):
            if needed & set(node.output):
                kept.append(node)
                needed |= names_read(node)
        self.nodes = kept[::-1]
        self.initializers = {k: v for k, v in self.initializers.items() if k in needed}


def names_read(node: Any) -> set[str]:
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
    return helper.np_dtype_to_tensor_dtype(storage_dtype(dtype))


def to_numpy(value: Any) -> np.ndarray:
    if isinstance(value, list | tuple):
        return np.array(value, np.int64)
    array = np.asarray(value)
    return array.astype(storage_dtype(array.dtype), copy=False)


def describe(name: str, shape: Sequence[Any], dtype: Any) -> Any:
    sizes = [size if isinstance(size, int) else str(size) for size in shape]
    return helper.make_tensor_value_info(name, element_type(dtype), sizes)
