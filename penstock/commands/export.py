"""`penstock export`: a trained network as one file that needs none of the code that made it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from penstock import _model_file, onnx_export, tensorflow_export
from penstock._errors import check_known
from penstock._text_tables import escape
from penstock.commands._argument_parser import FlagValue, option, parse, positional
from penstock.commands._failures import UsageError, check, command, split_words
from penstock.commands._flags import choose_flags
from penstock.commands._run.data import open_for_evaluation
from penstock.commands._run.network import find_network, open_network
from penstock.commands._run_folder.folder import list_steps
from penstock.commands._run_folder.runs import find_run_path
from penstock.inference_model import keep_compiled
from penstock.preprocessing import describe
from penstock.program_builder.exporting import PLATFORMS, WeightDtype

ENDING = ".penstock"
_EXAMPLES = """examples:
  penstock export runs/photos
  penstock export runs/photos --weights=int8 --output=photos.penstock
  penstock export runs/photos --warm=1,32
  penstock export --renew=photos.penstock

`penstock serve photos.penstock` serves it; `penstock docs serving` says more."""
_FROM_TRAIN = choose_flags(
    *("dataset_name", "dataset_dir", "train_files", "eval_files", "num_classes", "labels_offset"),
    *("model_name", "preprocessing_name", "train_image_size", "batch_size", "plugin"),
)
_KEPT = ("weights", "platforms", "warm")
"""What a file is renewed with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportFlags:
    """Write a trained network as one file: program, weights, classes, and what images go through.

    Arguments:
      run: what to export, as for `penstock eval`.
      output: the file to write, by default model.penstock in the run's folder.
      format: penstock, which `penstock serve` and ps.InferenceModel run; or onnx or saved_model,
        TensorFlow's, which take pixels as numbers and are run and compared before they are kept.
      weights: how parameters are kept, float32, or bfloat16 and int8, of a half and a quarter of
        the bytes. What these cost is measured on the test images and written into the file.
      platforms: what it is to run on, of cpu, cuda and tpu, between commas.
      warm: batch sizes to compile for now, between commas. What was compiled is kept in
        FILE.cache, and a process that finds it there answers at once.
      renew: a file to make again, of its own run and with its own flags. JAX reads programs of the
        last six months.
      json: print what the file says of itself as JSON.
    """

    run: str | None = positional("RUN", "?")
    output: str | None = option("FILE", None)
    format: Literal["penstock", "onnx", "saved_model"] = "penstock"
    weights: WeightDtype = "float32"
    platforms: str = ",".join(PLATFORMS)
    warm: str = ""
    renew: str | None = option("FILE", None)
    json: bool = False

    def __post_init__(self) -> None:
        changed = {name for name, value in vars(self).items() if value != vars(type(self))[name]}
        names = ", ".join(f"--{name}" for name in _KEPT)
        is_right = self.format == "penstock" or not changed & {*_KEPT, "renew", "json"}
        expected = (
            f"none of {names}, --renew and --json beside it: they are of penstock's own files."
        )
        check(self, "format", is_right, expected)
        remedy = "The file says what they were. To change them, export the run again."
        is_right = self.renew is None or not changed & {*_KEPT}
        check(self, "renew", is_right, f"none of {names} beside it. {remedy}")
        for name in split_words(self.platforms):
            check_known("--platforms", name, PLATFORMS)
        is_right = all(word.isdigit() and int(word) for word in split_words(self.warm))
        check(self, "warm", is_right, "batch sizes such as 1,32.")
        if self.run is None and self.renew is None:
            raise UsageError("got no run, expected a folder of one: `penstock export runs/photos`.")


@command()
def run(argv: list[str]) -> None:
    """Run `penstock export` with the arguments after the command's name."""
    flags, overrides = parse(ExportFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    if flags.renew is not None:
        flags, overrides = _read_flags(flags, overrides, flags.renew)
    saved = find_network(flags.run or "", overrides)
    trainer, facts, preparation = open_network(saved, jax.local_devices()[:1])
    folder = saved.weights.parent if saved.folder is None else saved.folder.path
    ending = {"penstock": ENDING, "onnx": ".onnx", "saved_model": ""}[flags.format]
    path = Path(flags.output) if flags.output else folder / f"model{ending}"
    if flags.format == "onnx":
        difference = onnx_export.save(path, trainer)
        print(f"{escape(str(path))}: ONNX Runtime and JAX differ by {difference:.1e} at most")
        return
    if flags.format == "saved_model":
        tensorflow_export.save(path, trainer)
        print(f"{escape(str(path))}: TensorFlow answers as JAX does")
        return
    reader = None
    if flags.weights != "float32":
        _, reader, _ = open_for_evaluation(saved.flags, "test", saved.weights, num_devices=1)
    kept = {name: getattr(flags, name) for name in _KEPT}
    # Those of a checkpoint, or of the newest of a folder; parameters alone do not say theirs.
    beside = [step for step in list_steps(saved.weights.parent) if saved.weights.name == str(step)]
    steps = list_steps(saved.weights) or beside
    trainer.about = {
        **({"global_step": steps[-1]} if steps else {}),
        "preprocessing": describe(preparation.preprocessing),
        "stored_shape": facts.stored_shape and list(facts.stored_shape),
        "shorter_side": saved.flags.preprocessing.cache_image_size,
        "model_name": saved.flags.model.model_name,
        # The weights themselves: a run has a best network, a last one and checkpoints.
        "export": {"run": str(saved.weights.absolute()), **kept, "training": overrides},
    }
    trainer.save_inference_model(
        path,
        names=facts.class_names,
        weights=flags.weights,
        measure_on=reader,
        platforms=split_words(flags.platforms),
    )
    if sizes := [int(word) for word in split_words(flags.warm)]:
        keep_compiled(path, sizes)
    _show(path, _model_file.read_manifest(path), as_json=flags.json)


def _read_flags(
    flags: ExportFlags, overrides: Mapping[str, FlagValue], file: str
) -> tuple[ExportFlags, Mapping[str, FlagValue]]:
    """Return the flags that a file was made with; those of its run where no other is named."""
    about: Mapping[str, Any] = _model_file.read_manifest(file).about
    made = about.get("export")
    if not isinstance(made, dict):
        raise UsageError(
            f"--renew got {file!r}, expected a file that `penstock export` made: it says of which "
            "run. Save another with trainer.save_inference_model again."
        )
    wanted = {name: made[name] for name in _KEPT if name in made}
    weights = Path(str(made.get("run"))).resolve()
    if flags.run is None or weights.is_relative_to(find_run_path(flags.run).resolve()):
        # Another run has a network and preprocessing of its own. Files of before lack these.
        overrides = {**made.get("training", {}), **overrides}
        wanted["run"] = flags.run or str(made.get("run"))
    wanted["output"] = flags.output or file
    return dataclasses.replace(flags, renew=None, **wanted), overrides


def _show(path: Path, manifest: _model_file.Manifest, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"file": str(path), **dataclasses.asdict(manifest)}))
        return
    size = path.stat().st_size / 2**20
    print(f"{escape(str(path))}: {size:.1f} MiB, {manifest.weights} weights")
    for word, fields in (("takes", manifest.inputs), ("answers", manifest.outputs)):
        for field in fields:
            shape = ", ".join(map(str, ("batch", *field.shape)))
            print(f"  {word} {field.name}: {field.dtype} [{shape}]")
    if measured := manifest.about.get("measured"):
        print(
            f"  on {measured['examples']:.0f} test images: the class of float32 for "
            f"{measured['same_class']:.2%}, accuracy {measured.get('accuracy', float('nan')):.2%} "
            f"for {measured.get('accuracy_float32', float('nan')):.2%}"
        )
