"""Samples to batches: stacking, with padding where a feature has another length each record."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.readers import _tree
from penstock.readers._errors import message
from penstock.readers.records.features import pad


def stack_samples(samples: Sequence[Any], pad_values: Mapping[str, Any]) -> Any:
    """Stack samples of one structure into a batch with leaves `[b, ...]`.

    Bytes become an object array (numpy's own bytes arrays drop trailing zeros). The entries of
    a dict named in `pad_values` are padded to the longest of the batch.

    Raises:
      ValueError: other entries differ in shape.

    >>> batch = stack_samples([{"x": np.asarray([1])}, {"x": np.asarray([2, 3])}], {"x": 0})
    >>> batch["x"].tolist()
    [[1, 0], [2, 3]]
    """
    if pad_values and isinstance(samples[0], dict):
        samples = _padded(samples, pad_values)
    try:
        return _tree.tree_map(_stack_leaf, *samples)
    except (ValueError, KeyError) as error:
        raise _shape_error(samples) from error


def _stack_leaf(*leaves: Any) -> np.ndarray:
    first = leaves[0]
    if isinstance(first, np.ndarray) and first.ndim:
        return np.stack(leaves)
    if isinstance(first, (bytes, str)):
        stacked = np.empty(len(leaves), object)
        stacked[:] = leaves
        return stacked
    return np.asarray(leaves)  # scalars: twenty times faster than np.stack


def _padded(samples: Sequence[dict[str, Any]], pad_values: Mapping[str, Any]) -> list[Any]:
    padded = [dict(sample) for sample in samples]
    for name, value in pad_values.items():
        if name in samples[0]:
            longest = max(len(sample[name]) for sample in samples)
            for sample in padded:
                sample[name] = pad(sample[name], longest, value)
    return padded


def _shape_error(samples: Sequence[Any]) -> ValueError:
    shapes = [
        {path: np.shape(leaf) for path, leaf in _tree.leaves_with_path(sample, "sample")}
        for sample in samples
    ]
    other = next((each for each in shapes if each != shapes[0]), shapes[0])
    return ValueError(
        message(
            "batch",
            f"samples of shapes {shapes[0]} and {other}",
            "one shape for each entry",
            "A batch stacks its samples",
            "Declare the shapes, resize or pad in decode, or leave batch_size out",
        )
    )
