"""`penstock import-weights`: weights that others published, as parameters of a network here."""

from __future__ import annotations

import dataclasses

from penstock import _parameters, models, preprocessing
from penstock._errors import UnknownNameError
from penstock._parameter_names import flatten_variables, nest_variables, spell
from penstock.commands._argument_parser import option, parse, positional
from penstock.commands._failures import command
from penstock.commands._flags import import_plugins
from penstock.commands._run.data import describe_weights, format_preprocessing
from penstock.models.report import build_forward
from penstock.models.weights import ForeignWeights


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportFlags:
    """Convert weights of TF-Slim, keras.applications, torchvision or timm to parameters.

    An Inferencer or a Trainer can load them.

    Arguments:
      model: the network; `penstock models` lists them.
      file: the file of weights: a TensorFlow checkpoint, .h5, .keras, .safetensors or .pth.
      output: the folder to write.
      image_size: the image size in pixels, if parameters depend on it; by default the network's.
      preprocessing_name: the image preprocessing that the weights were trained with; by default
        that of their source.
      moving_averages: use the moving averages of a TF-Slim checkpoint if it has them; False uses
        the raw parameters.
      plugin: import these modules first, between commas, by name or as a .py file: they register
        networks, preprocessings, and what parameters are called elsewhere.
    """

    model: str = positional("MODEL")
    file: str = positional("FILE")
    output: str = option("FOLDER")
    image_size: int | None = None
    preprocessing_name: str | None = None
    moving_averages: bool = True
    plugin: str | None = None


@command(usage_errors=(ValueError, UnknownNameError))
def run(argv: list[str]) -> None:
    """Run `penstock import-weights` with the arguments after the command's name."""
    flags, _ = parse(ImportFlags, argv)
    import_plugins(flags.plugin or "")
    weights = models.load_weights(
        flags.model, flags.file, image_size=flags.image_size, moving_averages=flags.moving_averages
    )
    chosen = weights.preprocessing
    if flags.preprocessing_name is not None:
        chosen = preprocessing.get(flags.preprocessing_name)
    builder = build_forward(models.get(flags.model), weights.num_classes, flags.image_size)
    # Drawing the initial values of every layer would take longer than all the rest.
    initial = flatten_variables(builder.init().variables) if weights.left_initial else {}
    entries = {
        key: initial[key] if (name := spell(key[1])) in weights.left_initial else weights[name]
        for key in builder.programs.network.table
    }
    about = describe_weights(chosen, weights.left_initial)
    _parameters.save(flags.output, nest_variables(entries), about=about)
    print(_summary(weights, chosen, flags.output))


def _summary(weights: ForeignWeights, chosen: preprocessing.Preprocessing, output: str) -> str:
    images = f"images: {format_preprocessing(chosen)}, of {weights.source}"
    if chosen != weights.preprocessing:
        of_source = format_preprocessing(weights.preprocessing)
        images = (
            f"images: {format_preprocessing(chosen)}, as asked; {weights.source} has {of_source}"
        )
    lines = [
        f"{weights.model_name}: {len(weights)} arrays of {weights.source}, "
        f"{weights.num_classes} classes",
        *weights.notes,
        images,
    ]
    if weights.left_initial:
        lines.append(f"not in the file, left initial: {', '.join(weights.left_initial)}")
    if weights.ignored:
        lines.append(f"in the file and not weights, ignored: {', '.join(weights.ignored)}")
    return "\n".join([*lines, f"written to {output}"])
