"""`penstock import-weights`: weights that others published, as parameters of a network here."""

from __future__ import annotations

import argparse
import sys

from penstock import _parameters, models, preprocessing
from penstock._errors import UnknownNameError
from penstock.commands._flags import import_plugins
from penstock.commands._run._preparation import about_weights, show
from penstock.models._foreign_weights import ForeignWeights, program_of


def run(argv: list[str]) -> int:
    """Run `penstock import-weights` with the arguments after the command's name.

    Returns:
      The exit status: 0 when the parameters were written, 1 when the file could not be read or
      written, 2 when an argument was wrong: no such network, a file of another one.
    """
    flags = _parser().parse_args(argv)
    try:
        import_plugins(flags.plugin)
        weights = models.load_weights(
            flags.model,
            flags.file,
            image_size=flags.image_size,
            moving_averages=flags.moving_averages,
        )
        chosen = (
            preprocessing.get(flags.preprocessing_name)
            if flags.preprocessing_name is not None
            else weights.preprocessing
        )
    except (ValueError, UnknownNameError) as error:
        print(f"penstock import-weights: {error}", file=sys.stderr)
        return 2
    except (OSError, ModuleNotFoundError) as error:
        print(f"penstock import-weights: {error}", file=sys.stderr)
        return 1
    builder = program_of(models.get(flags.model), weights.num_classes, flags.image_size)
    # Drawing the initial values of every layer would take longer than all the rest.
    initial = _parameters.flatten(builder.init().variables) if weights.left_initial else {}
    entries = {
        key: initial[key] if (name := "/".join(key[1])) in weights.left_initial else weights[name]
        for key in builder.parameter_shapes
    }
    try:
        about = about_weights(chosen, weights.left_initial)
        _parameters.save(flags.output, _parameters.nested(entries), about=about)
    except OSError as error:
        print(f"penstock import-weights: {error}", file=sys.stderr)
        return 1
    print(_summary(weights, chosen, flags.output))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock import-weights",
        description="Read weights of TF-Slim, keras.applications, torchvision or timm, and write "
        "them as parameters that an Inferencer and a Trainer load.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the name of the network, see `penstock models`")
    add("file", metavar="FILE", help="a TensorFlow checkpoint, .h5, .keras, .safetensors or .pth")
    add("--output", required=True, help="the folder to write")
    add("--image_size", type=int, help="where parameters depend on it; the network's by default")
    add(
        "--preprocessing_name",
        help="of the images that they were trained with; what the source had by default",
    )
    add(
        "--moving_averages",
        type=_boolean,
        default=True,
        metavar="BOOL",
        help="False takes a TF-Slim checkpoint's raw arrays where it has moving averages of them",
    )
    add(
        "--plugin",
        help="modules to import first, between commas, by name or as a .py file: they register "
        "networks, preprocessings, and what parameters are called elsewhere",
    )
    return parser


def _boolean(text: str) -> bool:
    if text not in ("True", "False"):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected True or False")
    return text == "True"


def _summary(weights: ForeignWeights, chosen: preprocessing.Preprocessing, output: str) -> str:
    lines = [
        f"{weights.model_name}: {len(weights)} arrays of {weights.source}, "
        f"{weights.num_classes} classes",
        *weights.notes,
        _prepared(weights, chosen),
    ]
    if weights.left_initial:
        lines.append(f"not in the file, left initial: {', '.join(weights.left_initial)}")
    if weights.ignored:
        lines.append(f"in the file and not weights, ignored: {', '.join(weights.ignored)}")
    return "\n".join([*lines, f"written to {output}"])


def _prepared(weights: ForeignWeights, chosen: preprocessing.Preprocessing) -> str:
    if chosen == weights.preprocessing:
        return f"images: {show(chosen)}, of {weights.source}"
    of_source = show(weights.preprocessing)
    return f"images: {show(chosen)}, as asked; {weights.source} has {of_source}"
