"""What a trainer writes as a model file: a program, and what belongs to it beside the network."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from penstock import _mesh, _metrics, _model_file, _parameters, _reader_items
from penstock._errors import ProgramError, listed
from penstock._files import expand_path
from penstock._model_file import Manifest
from penstock._parameter_names import flatten_variables, nest_variables
from penstock._program.frame import Variables
from penstock._version import list_versions
from penstock.program_builder import ProgramBuilder
from penstock.program_builder.engine import Programs
from penstock.program_builder.exporting import WeightDtype, export, unpack
from penstock.trainer.prediction import Prediction

UNKNOWN = "<unk>"
"""The word of a vocabulary that stands for all that are not in it."""


def with_program(
    programs: Programs, variables: Variables, infer_func: Callable[[], object]
) -> tuple[Programs, Variables]:
    """Return programs of another infer function with these parameters, on one device."""
    device = programs.mesh.local_devices[0]
    precision = programs.options.precision
    builder = ProgramBuilder(infer_func=infer_func, place=device, precision=precision)
    table = builder.programs.network.table
    entries = flatten_variables(_mesh.fetch_whole(dict(variables)))
    _parameters.check("the trainer", entries, table, may_have_extra=True, hint="")
    fitting = nest_variables(_parameters.select_fitting(entries, table))
    return builder.programs, builder.programs.states.copy(fitting)


def save_model(
    path: str | os.PathLike[str],
    programs: Programs,
    variables: Variables,
    *,
    names: Sequence[str] | None,
    vocabulary: Mapping[str, int] | None,
    about: Mapping[str, Any],
    weights: WeightDtype,
    platforms: Sequence[str],
    measure_on: _reader_items.ReaderLike | None,
    feed_order: _reader_items.FeedOrder | None,
) -> None:
    """Write an infer program as a model file; process 0 does. Collective."""
    name = expand_path(path).name.removesuffix(".penstock")
    made = export(programs, variables, name=name, weights=weights, platforms=platforms)
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"created": created, "versions": list_versions(), **about}
    if measure_on is not None:
        about["measured"] = _measure(programs, variables, made.weights, measure_on, feed_order)
    host = _describe_host(made.manifest, vocabulary, about)
    kinds = {facts["input"]: kind for kind, facts in host.items()}
    inputs = tuple(
        [dataclasses.replace(f, kind=kinds.get(f.name, f.kind)) for f in made.manifest.inputs]
    )
    classes = None if names is None else _check_names(names, made.manifest)
    manifest = dataclasses.replace(
        made.manifest, inputs=inputs, host=host, about=about, classes=classes
    )
    if not jax.process_index():
        _model_file.write(path, manifest, made.weights, made.programs)


def _check_names(names: Sequence[str], manifest: Manifest) -> tuple[str, ...]:
    output = manifest.outputs[0]
    count = output.shape[-1] if output.shape else 0
    if isinstance(names, str) or len(names) != count:
        what = repr(names) if isinstance(names, str) else f"{len(names)} names"
        raise ValueError(
            f"names got {what}, expected a list of {count} names of classes, one for each "
            f"number of the last axis of the output {output.name!r}."
        )
    return tuple(map(str, names))


def _describe_host(
    manifest: Manifest, vocabulary: Mapping[str, int] | None, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what happens on the host before the program, see `Manifest.host`."""
    sequences = [f for f in manifest.inputs if f.kind == "sequence" and f.shape in ((), (1,))]
    if vocabulary is not None:
        if len(sequences) != 1 or len(manifest.inputs) != 1:
            raise ValueError(
                f"vocabulary got words for the inputs {listed(f.name for f in manifest.inputs)}"
                ", expected one input of ids with lod_level=1. Sentences become its sequences."
            )
        text = {
            "input": sequences[0].name,
            "pattern": r"[\w']+",
            "lowercase": True,
            "unknown": vocabulary.get(UNKNOWN),
            "vocabulary": {str(word): int(number) for word, number in vocabulary.items()},
        }
        return {"text": text}
    images = [f for f in manifest.inputs if f.kind == "array" and len(f.shape) == 3]
    if "preprocessing" not in about or len(images) != 1 or len(manifest.inputs) != 1:
        return {}
    image = {
        "input": images[0].name,
        "shape": list(images[0].shape),
        **{name: about.get(name) for name in ("stored_shape", "shorter_side")},
        "preprocessing": about["preprocessing"],
    }
    return {"image": image}


def _measure(
    programs: Programs,
    variables: Variables,
    weights: Mapping[str, np.ndarray],
    reader: _reader_items.ReaderLike,
    feed_order: _reader_items.FeedOrder | None,
) -> dict[str, float]:
    """Return how far the answers of packed weights are from those of the parameters."""
    if programs.group.count > 1:
        raise ProgramError(
            "measure_on got a reader in several processes, expected one process. Leave it out "
            "here, and measure the file where it is used."
        )
    inputs = programs.network.inputs["test"] if programs.network.train else ()
    keep = ["label"] if "label" in inputs else []
    entries = flatten_variables(_mesh.fetch_whole(dict(variables)))
    entries |= flatten_variables(jax.device_get(unpack(weights, programs.infer_probe)))
    packed = programs.states.copy(nest_variables(entries))
    passes = [
        Prediction(
            programs=programs,
            variables=chosen,
            reader=reader,
            feed_order=feed_order,
            keep=keep,
            owner="measure_on",
        ).iterate()
        for chosen in (variables, packed)
    ]
    count, largest, totals = 0, 0.0, np.zeros(3)
    for one, other in zip(*passes, strict=True):
        first, second = (_find_scores(outputs, keep) for outputs in (one, other))
        largest = max(largest, float(np.max(np.abs(first - second), initial=0)))
        classes = first.argmax(-1).ravel(), second.argmax(-1).ravel()
        labels = one["label"].ravel() if keep else classes[0]
        is_fitting = len(labels) == len(classes[0])
        hits = [np.sum(made == labels) if is_fitting else np.nan for made in classes]
        totals += [np.sum(classes[0] == classes[1]), *hits]
        count += len(classes[0])
    measured = {"examples": count, "largest_difference": largest}
    measured["same_class"] = totals[0] / count
    if keep and np.isfinite(totals).all():
        measured |= {"accuracy_float32": totals[1] / count, "accuracy": totals[2] / count}
    return {name: float(value) for name, value in measured.items()}


def _find_scores(outputs: Any, keep: Sequence[str]) -> np.ndarray:
    if keep:
        outputs = {name: value for name, value in outputs.items() if name not in keep}
    _, first = next(_metrics.iterate(outputs, ()))
    return np.asarray(first, np.float64)
