"""`penstock models`: what networks there are, and the layers of one."""

from __future__ import annotations

import dataclasses
import json

from penstock import models
from penstock._errors import UnknownNameError, nearest
from penstock._text_tables import find_columns, print_table, wrap_words
from penstock.commands._argument_parser import parse, positional
from penstock.commands._failures import check_numbers, command
from penstock.commands._flags import import_plugins
from penstock.models.advice import find_advice
from penstock.models.report import LayerRow, Report, describe, get_report

_HEAD = ("name", "image", "parameters", "GMAC", "preprocessing", "classes")
_LAYER_HEAD = ("layer", "output", "shapes", "parameters", "MMAC")
_LEGEND = (
    "Image: height and width in pixels. Parameters: what is trained, auxiliary heads too. GMAC: "
    "billions of multiply-adds for one image. Classes: of the published weights; 1001 have one for "
    "the background, which the counts leave out."
)
_EXAMPLES = """examples:
  penstock models
  penstock models 'resnet*'
  penstock models inception_v3
  penstock models --plugin=my_networks my_resnet --image_size=64
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelsFlags:
    """List the networks of the model library, or show the layers of one.

    Arguments:
      name: a network, or a pattern such as 'resnet*'.
      json: print JSON, for programs to read.
      plugin: import these modules first, between commas, by name or as a .py file: they register
        networks.
      num_classes: how many classes the network's last layer has.
      image_size: the image size for the network, in pixels.
    """

    name: str | None = positional("NAME", "?")
    json: bool = False
    plugin: str | None = None
    num_classes: int | None = None
    image_size: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self, "num_classes>=1 image_size>=1")


# Nothing but arguments can be wrong: no file is read.
@command(usage_errors=(ValueError, UnknownNameError))
def run(argv: list[str]) -> None:
    """Run `penstock models` with the arguments after the command's name."""
    flags, _ = parse(ModelsFlags, argv, epilog=_EXAMPLES)
    import_plugins(flags.plugin or "")
    if flags.name is None or any(letter in flags.name for letter in "*?["):
        _show_list(flags)
    else:
        _show_one(flags, models.get(flags.name))


def _show_list(flags: ModelsFlags) -> None:
    if flags.num_classes or flags.image_size:
        raise ValueError(
            "--num_classes and --image_size got no network, expected the name of one. The list has "
            "the networks as they were published. Name one: penstock models lenet --image_size=32"
        )
    names = models.names(flags.name or "*")
    if not names:
        raise UnknownNameError(
            f"got the pattern {flags.name!r}, expected one that names a network."
            + nearest((flags.name or "").strip("*?"), models.names())
        )
    chosen = [models.get(name) for name in names]
    reports = [get_report(model) for model in chosen]
    if flags.json:
        pairs = zip(chosen, reports, strict=True)
        print(json.dumps([_facts(model, report) for model, report in pairs], indent=2))
        return
    counts = [(f"{report.num_params:,}", f"{report.gmacs:.3f}") for report in reports]
    rows = [
        (m.name, str(m.default_image_size), *count, m.preprocessing, str(m.num_classes))
        for m, count in zip(chosen, counts, strict=True)
    ]
    print_table(_HEAD, rows, right={1, 2, 3, 5})
    count = "1 network" if len(rows) == 1 else f"{len(rows)} networks"
    print(f"\n{wrap_words(f'{count}. {_LEGEND}', find_columns())}")
    advice = find_advice(names)
    if advice:
        print("\nWhich to take:")
    for piece in advice:
        print(wrap_words(f"  {piece.family}: {piece.text}", find_columns(), "    "))


def _show_one(flags: ModelsFlags, model: models.Model) -> None:
    report, layers = describe(model, num_classes=flags.num_classes, image_size=flags.image_size)
    size = flags.image_size or model.default_image_size
    if flags.json:
        facts = _facts(model, report) | {"image_size": size}
        print(json.dumps(facts | {"layers": [dataclasses.asdict(row) for row in layers]}, indent=2))
        return
    columns = find_columns()
    about = (
        f"{model.name}: {model.source or 'registered'}. Images {size} x {size} x "
        f"{model.num_channels}, {report.num_classes} classes, preprocessing {model.preprocessing}."
    )
    pairs = dataclasses.asdict(model.settings).items()
    settings = ", ".join(f"{key} {value}" for key, value in pairs if value is not None)
    print(wrap_words(about, columns))
    print(wrap_words(f"Settings: {settings}.", columns))
    for piece in find_advice([model.name]):
        print(wrap_words(f"{piece.family}: {piece.text}", columns))
    print()
    print_table(_LAYER_HEAD, [_layer(row) for row in layers], right={3, 4})
    total = (
        f"{report.num_params:,} trained in {report.num_tensors:,} arrays, "
        f"{report.num_statistics:,} in running statistics, {report.gmacs:.3f} GMAC for one image"
    )
    print(f"\n{wrap_words(total, columns)}")


def _facts(model: models.Model, report: Report) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "image_size": model.default_image_size,
        "num_channels": model.num_channels,
        "preprocessing": model.preprocessing,
        "num_classes_published": model.num_classes,
        "settings": dataclasses.asdict(model.settings),
        **dataclasses.asdict(report),
        "gmacs": report.gmacs,
    }


def _layer(row: LayerRow) -> tuple[str, ...]:
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in row.shapes.items())
    # A batch norm: its four vectors have one shape.
    if row.num_statistics and row.num_params:
        shapes = f"{', '.join(row.shapes)} {list(next(iter(row.shapes.values())))}"
    return (
        row.path,
        str(list(row.output_shape)) if row.output_shape else "",
        shapes,
        f"{row.num_params:,}",
        f"{row.num_macs / 1e6:,.2f}" if row.num_macs else "",
    )
