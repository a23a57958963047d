"""An ONNX file of a trainer's or an inferencer's network, checked before it is kept."""

# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from penstock._errors import ExportError, check_installed
from penstock._files import expand_path, replacing
from penstock._parameter_names import spell
from penstock.onnx_export._convert import convert
from penstock.program_builder import ProgramBuilder, exporting

if TYPE_CHECKING:
    import onnx


class Source(Protocol):
    """A `Trainer` with an infer function, or an `Inferencer`."""

    builder: ProgramBuilder

    @property
    def parameters(self) -> Mapping[str, np.ndarray]:
        """Parameters and running statistics by name."""
        ...


def save(
    path: str | os.PathLike[str],
    source: Source,
    *,
    length: int | None = None,
    tolerance: float = 1e-4,
) -> float:
    """Write the infer program of a trainer or an inferencer as an ONNX file.

    It takes batches of any size, and sequences of any length. It is run with ONNX Runtime on three
    examples of random numbers, and kept if the answers are those of JAX. Inputs of sequences are
    padded values, and lengths as `<name>_length`; an output with the name of an input becomes
    `<name>_output`.

    Arguments:
      length: what all sequences are padded to, where a program does not take any length.
      tolerance: the largest difference that is accepted, as a share of an output's largest number.

    Returns:
      The largest difference, as such a share.

    Raises:
      ProgramError: there is no infer function.
      ExportError: it has an operation that is not converted, or answers something else.

    >>> import tempfile, optax
    >>> from penstock import Trainer, layers, onnx_export
    >>> def infer_program():
    ...     return layers.fc(layers.data("x", shape=[2]), size=3, act="softmax")
    >>> def train_program():
    ...     label = layers.data("label", shape=[1], dtype="int32")
    ...     return layers.mean(layers.cross_entropy(infer_program(), label))
    >>> trainer = Trainer(train_program, optax.sgd(0.1), infer_func=infer_program)
    >>> onnx_export.save(tempfile.mkdtemp() + "/model.onnx", trainer) < 1e-5
    True
    """
    check_installed("onnx", "onnx", "the export to ONNX")
    import onnx

    # As other devices compute it: in operations that ONNX has, whatever XLA does well on CPUs.
    probe = dataclasses.replace(source.builder.programs.infer_probe, is_on_cpu=False)
    weights = {
        spell((collection, *name)): np.asarray(source.parameters[spell(name)])
        for collection, name in probe.shape_table
    }
    lengths = {name: length for name, spec in probe.feed_specs.items() if spec.lod_level and length}
    shapes = exporting.describe_feed(probe.feed_specs, lengths)
    answer = exporting.make_answer(probe)
    feed = exporting.make_arrays(probe.feed_specs, length or 16)
    outputs = jax.eval_shape(answer, weights, feed)
    names = [field.name for field in exporting.describe_outputs(probe, outputs)]
    model = convert(
        answer,
        weights,
        # A size that is free has a name.
        {
            name: ([n if isinstance(n, int) else str(n) for n in shape.shape[1:]], shape.dtype)
            for name, shape in shapes.items()
        },
        # In ONNX a name is that of one tensor.
        [f"{name}_output" if name in shapes else name for name in names],
    )
    difference = check(model, answer, weights, feed, tolerance)
    file = expand_path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        onnx.save(model, str(temporary))
    return difference


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
      ExportError: an output differs by more, or ONNX Runtime does not load the model.

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
    try:
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    # Classes of its own, which have no common base.
    except Exception as error:
        raise ExportError(
            f"ONNX Runtime got a model that it does not load ({error}), expected one that it can "
            "run. It has few operations of booleans and of integers other than int32. Convert "
            "such operands to float32 or int32 in the program."
        ) from error
    names = {node.name for node in session.get_inputs()}  # an input may have no use
    got = session.run(None, {name: to_numpy(feed[name]) for name in names})
    expected = function(weights, {name: jax.numpy.asarray(value) for name, value in feed.items()})
    largest = 0.0
    for output, mine, theirs in zip(session.get_outputs(), expected, got, strict=True):
        difference = _compare(np.asarray(mine), np.asarray(theirs))
        if not difference <= tolerance:
            raise ExportError(
                f"the output {output.name!r} of the ONNX model got a difference from JAX of "
                f"{difference:.2g} of its largest number, expected at most {tolerance:g}. The two "
                "differ. Report it with the program, or raise the tolerance where precision is low."
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
