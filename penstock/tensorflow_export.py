"""A SavedModel of a trainer's or an inferencer's network, for TensorFlow's servers and tools."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from penstock._errors import ExportError, check_installed
from penstock._files import expand_path
from penstock._parameter_names import spell
from penstock.program_builder import exporting

if TYPE_CHECKING:
    from penstock.onnx_export import Source


def save(path: str | os.PathLike[str], source: Source) -> None:
    """Write the infer program of a trainer or an inferencer as a SavedModel of TensorFlow.

    It takes batches of any size, and sequences of any length as padded values and
    `<name>_length`; its one signature, `serving_default`, has names for inputs and outputs. JAX's
    `jax2tf` makes it, with a program for CPUs, GPUs and TPUs. It is run with TensorFlow on three
    examples of random numbers, and kept if the answers are those of JAX to 1e-4.

    Arguments:
      path: a folder, made or overwritten.
      source: a `Trainer` with an infer function, or an `Inferencer`.

    Raises:
      ExportError: TensorFlow, which is older than JAX, cannot run it or answers something else.
      ModuleNotFoundError: TensorFlow is not installed; names the extra.
      ProgramError: there is no infer function.
    """
    check_installed("tensorflow", "tensorflow", "the export to a SavedModel")
    # Their types are those of other versions.
    jax2tf: Any = importlib.import_module("jax.experimental.jax2tf")
    tf: Any = importlib.import_module("tensorflow")
    probe = source.builder.programs.infer_probe
    shapes = exporting.describe_feed(probe.feed_specs, {})
    weights = {
        spell((collection, *name)): np.asarray(source.parameters[spell(name)])
        for collection, name in probe.shape_table
    }
    answer: Any = exporting.make_answer(probe)
    described = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in weights.items()}
    outputs = exporting.describe_outputs(probe, jax.eval_shape(answer, described, shapes))
    names = [field.name for field in outputs]
    convert: Any = jax2tf.convert(
        answer,
        polymorphic_shapes=[None, {n: ", ".join(map(str, x.shape)) for n, x in shapes.items()}],
        polymorphic_constraints=exporting.list_constraints(probe.feed_specs, {}),
        with_gradient=False,
        native_serialization_platforms=exporting.PLATFORMS,
    )
    module: Any = tf.Module()
    # Without the slashes of their names, which TensorFlow's attributes may not have.
    module.weights = [tf.Variable(value, name=name) for name, value in weights.items()]

    def serve(**feed: Any) -> dict[str, Any]:
        read = dict(zip(weights, module.weights, strict=True))
        return dict(zip(names, convert(read, feed), strict=True))

    specs = {
        n: tf.TensorSpec([None if not isinstance(d, int) else d for d in x.shape], x.dtype, name=n)
        for n, x in shapes.items()
    }
    module.serve = tf.function(serve, autograph=False)
    signature = module.serve.get_concrete_function(**specs)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=signature)
        feed = exporting.make_arrays(probe.feed_specs, 32)
        _check(folder, feed, dict(zip(names, answer(weights, feed), strict=True)))
        shutil.copytree(folder, expand_path(path), dirs_exist_ok=True)


def _check(folder: str, feed: Mapping[str, np.ndarray], expected: Mapping[str, Any]) -> None:
    """Raise unless a SavedModel answers what JAX does."""
    tf: Any = importlib.import_module("tensorflow")
    try:
        outputs = tf.saved_model.load(folder).signatures["serving_default"](
            **{name: tf.constant(value) for name, value in feed.items()}
        )
    except (tf.errors.OpError, ValueError) as error:
        raise ExportError(
            f"the SavedModel got an error of TensorFlow {tf.__version__} ({str(error)[:300]}), "
            f"expected that it runs. Its XLA is older than that of JAX {jax.__version__}. Use a "
            "penstock model file or ONNX, or another TensorFlow."
        ) from error
    for name, value in expected.items():
        mine = np.asarray(value, np.float64)
        difference = np.max(np.abs(outputs[name].numpy() - mine), initial=0)
        if not difference <= 1e-4 * max(np.max(np.abs(mine), initial=0), 1e-30):
            raise ExportError(
                f"the output {name!r} of the SavedModel got a difference from JAX of "
                f"{difference:.2g}, expected at most 1e-4 of its largest number."
            )
