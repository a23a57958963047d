"""The check of an ONNX model: it runs, and gives what JAX gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from penstock._errors import ExportError, check_installed

if TYPE_CHECKING:
    import onnx


def check(
    model: onnx.ModelProto | str,
    function: Callable[[Any, dict[str, Any]], Sequence[Any]],
    weights: Any,
    feed: Mapping[str, Any],
    tolerance: float = 1e-4,
) -> float:
    """Run a model with ONNX Runtime on the CPU, and compare it with the function it was made of.

    Arguments:
      model: what `convert` returned, or the path of a file of it.
      function, weights: as `convert` got them.
      feed: arrays `[B, ...]` by name.
      tolerance: the largest difference that is accepted, as a share of the largest number of an
        output.

    Returns:
      The largest difference, as such a share.

    Raises:
      ExportError: an output differs by more; says which, and by how much.

    >>> from penstock.onnx_export import convert
    >>> def double(weights, feed):
    ...     return (feed["x"] * 2,)
    >>> model = convert(double, {}, {"x": ([3], "float32")}, ["y"])
    >>> check(model, double, {}, {"x": np.ones([2, 3], np.float32)})
    0.0
    """
    check_installed("onnxruntime", "onnx", "the check of an ONNX model")
    import onnxruntime

    from penstock.onnx_export._graph import to_numpy

    source = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}  # an input may have no use
    got = session.run(None, {name: to_numpy(feed[name]) for name in names})
    expected = function(weights, {name: jax.numpy.asarray(value) for name, value in feed.items()})
    largest = 0.0
    for output, mine, theirs in zip(session.get_outputs(), expected, got, strict=True):
        difference = _compare(np.asarray(mine), np.asarray(theirs))
        if not difference <= tolerance:
            raise ExportError(
                f"the output {output.name!r} of the ONNX model got a difference from JAX of "
                f"{difference:.2g} of its largest number, expected at most {tolerance:g}. What is "
                "computed is not the same. Report it with the program, or raise the tolerance "
                "where precision is low."
            )
        largest = max(largest, difference)
    return largest


def _compare(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference as a share of the largest number; infinite for other shapes."""
    if mine.shape != theirs.shape:
        return float("inf")
    mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
    # The same infinity, or nan in both, is no difference.
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    if same.all():
        return 0.0
    scale = np.max(np.abs(mine), where=np.isfinite(mine), initial=0.0)
    difference = np.max(np.abs(mine - theirs), where=~same, initial=0.0)
    return float(difference / scale) if scale else float("inf")
