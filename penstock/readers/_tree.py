"""Nested dicts, tuples and lists of arrays, without JAX: readers start no backend.

A list of numbers or strings, nested or not, is no list of arrays but one value: so JSON and Hugging
Face's data sets have them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np

# A batch, or a sample: arrays in nested dicts, tuples and lists.
ArrayTree: TypeAlias = "np.ndarray | Mapping[str, ArrayTree] | Sequence[ArrayTree]"


_SCALARS = (int, float, complex, str, bytes, np.generic)


def _holds_children(node: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(node, tuple) or (isinstance(node, list) and not _is_value(node))


def _is_value(node: Sequence[object]) -> bool:
    # By the types, of which there are few: a list may be long.
    types = set(map(type, node))
    nested = {kind for kind in types if issubclass(kind, (list, tuple))}
    return all(issubclass(kind, _SCALARS) for kind in types - nested) and (
        not nested or all(_is_value(child) for child in node if isinstance(child, (list, tuple)))
    )


def tree_map(function: Callable[..., object], tree: object, *trees: Any) -> Any:
    """Apply `function` to the leaves of trees of one structure."""
    if isinstance(tree, Mapping):
        return {key: tree_map(function, tree[key], *(t[key] for t in trees)) for key in tree}
    if _holds_children(tree):
        children = [tree_map(function, *column) for column in zip(tree, *trees, strict=True)]
        # A named tuple takes its fields one by one, other sequences take one iterable.
        kind: Any = type(tree)
        return kind(*children) if hasattr(tree, "_fields") else kind(children)
    return function(tree, *trees)


def leaves_with_path(tree: object, path: str) -> Iterator[tuple[str, Any]]:
    """Yield `(path, leaf)` for every leaf, paths written as Python would index."""
    if isinstance(tree, Mapping):
        for key, child in tree.items():
            yield from leaves_with_path(child, f"{path}[{key!r}]")
    elif _holds_children(tree):
        for index, child in enumerate(tree):
            yield from leaves_with_path(child, f"{path}[{index}]")
    else:
        yield path, tree


def tree_map_with_path(function: Callable[[Any, str], object], tree: object, path: str) -> Any:
    # Both walk in one order, so that the paths come as the leaves do.
    paths = (name for name, _ in leaves_with_path(tree, path))
    return tree_map(lambda leaf: function(leaf, next(paths)), tree)


def copy_arrays(tree: object) -> Any:
    """Return a sample that may be changed, but for arrays that cannot be written.

    Those may be of a whole file, of which a function takes a part.
    """
    if type(tree) is dict:
        return {key: copy_arrays(child) for key, child in tree.items()}
    if type(tree) in (tuple, list) and _holds_children(tree):
        children = list(map(copy_arrays, tree))
        return children if type(tree) is list else tuple(children)
    if isinstance(tree, np.ndarray):
        return tree.copy() if tree.flags.writeable else tree
    return tree.copy() if isinstance(tree, list) else tree


def as_leaf(leaf: object) -> np.ndarray:
    r"""Return a leaf of a sample as an array; bytes, strings and ragged lists as objects.

    numpy's own bytes have one length and lose trailing zeros.
    """
    if not isinstance(leaf, (bytes, str)):
        if isinstance(leaf, np.ma.MaskedArray):
            check_mask(leaf, "a sample")
        return _list_as_array(leaf) if isinstance(leaf, list) else np.asarray(leaf)
    array = np.empty((), object)
    array[()] = leaf
    return array


def _list_as_array(values: list[object]) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.empty(len(values), object)
        array[:] = values
    return np.asarray(values, object) if array.dtype.kind in "SU" else array


def check_mask(array: np.ma.MaskedArray, thing: str) -> None:
    """Check that nothing in an array is masked: numpy drops the mask wherever arrays are joined."""
    if np.ma.is_masked(array):
        count = int(np.ma.count_masked(array))
        raise ValueError(
            f"{thing} got a masked array with {count} of {array.size} values masked, expected an "
            "array without a mask. A batch has none, and what lies under the mask would be taken "
            "for data. Pass array.filled(0), and ~np.ma.getmaskarray(array) as an input of its own."
        )
