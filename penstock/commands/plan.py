"""`penstock plan`: what a training run needs on hardware that need not be here."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from penstock import Plan, models, plan
from penstock._errors import check_installed
from penstock._text_tables import find_columns, print_table, wrap_words
from penstock.commands._argument_parser import option, parse
from penstock.commands._failures import check, command, split_words
from penstock.commands._flags import TrainFlags, choose_flags, make_train_flags
from penstock.commands._run.data import Shape
from penstock.commands._run.plan import make_builder
from penstock.handlers.figures import Line, Panel, check_path, draw
from penstock.models.report import get_counted_classes
from penstock.program_builder import describe_devices

_COLUMNS = ("topology", "batch size", "memory", "of", "fits", "parameters", "optimizer")
_COLUMNS += ("temporaries", "TFLOP", "messages", "sent", "step ms", "examples/s", "largest batch")
_LEGEND = (
    "Memory, TFLOP (of convolutions and matrix products) and what is sent are of one device in one "
    "step. The time is an estimate by the vendor's rates. Readers must deliver examples/s to keep "
    "up with it. `penstock docs plans` says more."
)
_EXAMPLES = """examples:
  penstock plan --model_name=resnet_v1_50 --batch_size=64 --topology=v5e:4x4,v5p:4x4x4
  penstock plan --model_name=vgg_16 --state_sharding=full --topology=h100:8 --largest_batch
  penstock plan --model_name=resnet_v1_50 --topology=v5e:2x2,v5e:4x4,v5e:16x16 --plot=scaling.png
"""
_FROM_TRAIN = choose_flags(
    *("model_name", "batch_size", "num_classes", "train_image_size", "optimizer", "precision"),
    *("state_sharding", "gradient_accumulation_steps", "moving_average_decay", "freeze", "plugin"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """Compile a training step for devices that need not be here, and show what it needs.

    Arguments:
      topology: what to compile for, between commas: v5e:4x4, h100:8, or here for this machine's
        devices. For TPUs libtpu has to be installed, for GPUs JAX's plugin for CUDA.
      largest_batch: search the largest batch that fits too, which compiles some more times.
      plot: draw examples a second and memory over the number of devices into this file, .png, .svg
        or .pdf, for several topologies.
      json: print JSON, for programs to read.
    """

    topology: str = "here"
    largest_batch: bool = False
    plot: str | None = option("FILE", None)
    json: bool = False

    def __post_init__(self) -> None:
        if self.plot is None:
            return
        check_installed("matplotlib", "plot", "--plot")
        check_path("--plot", self.plot)
        expected = (
            "several with --plot, to draw a curve through, such as v5e:2x2,v5e:4x4,v5e:16x16."
        )
        check(self, "topology", len({*split_words(self.topology)}) > 1, expected)


# Nothing but arguments can be wrong: no file is read.
@command(usage_errors=(ValueError,))
def run(argv: list[str]) -> None:
    """Run `penstock plan` with the arguments after the command's name."""
    words, overrides = parse(PlanFlags, argv, epilog=_EXAMPLES, extra=_FROM_TRAIN)
    flags, names = make_train_flags(overrides), split_words(words.topology) or ("here",)
    config: Any = jax.config
    if "here" not in names and not config.jax_platforms:
        # JAX would look for the hardware that its plugins are for.
        config.update("jax_platforms", "cpu")
    plans = list(_make_plans(flags, names, largest_batch=words.largest_batch))
    if words.plot is not None:
        path = check_path("--plot", words.plot)
        draw(path, make_panels(plans))
        print(f"drawn: {path}", file=sys.stderr)
    if words.json:
        print(json.dumps([one.as_dict() for one in plans], indent=2))
    elif len(plans) == 1:
        print(f"{plans[0]}\n\n{wrap_words(_LEGEND, find_columns())}")
    else:
        shown = [name for name in _COLUMNS if name in plans[0].facts]
        rows = [[one.facts[name] for name in shown] for one in plans]
        print_table(shown, rows, right=range(1, len(shown)))
        print(f"\n{wrap_words(_LEGEND, find_columns())}")


def make_panels(plans: Sequence[Plan]) -> list[Panel]:
    """Return examples a second and memory over the number of devices, a curve for each kind."""
    speed: list[Line] = []
    memory: list[Line] = []
    ticks = sorted({one.num_devices for one in plans})
    for color, kind in enumerate(dict.fromkeys(_get_kind(one) for one in plans)):
        own = sorted([p for p in plans if _get_kind(p) == kind], key=lambda p: p.num_devices)
        x, share = [p.num_devices for p in own], own[0].examples_per_sec / own[0].num_devices
        rate = f"{share:,.0f}" if share >= 100 else f"{share:.3g}"
        for lines, label, y, is_dashed in (
            (speed, f"{kind}, by estimate", [p.examples_per_sec for p in own], False),
            (speed, f"ideal: {rate} a device", [share * n for n in x], True),
            (memory, f"{kind}, a step", [p.total_bytes / 2**30 for p in own], False),
            (memory, f"{kind}, what there is", [p.capacity_bytes / 2**30 for p in own], True),
        ):
            # The rates of a CPU are not known.
            if not math.isnan(y[0]):
                style: Any = {"has_markers": not is_dashed, "is_dashed": is_dashed}
                lines.append(Line(label=label, x=x, y=y, color=color, **style))
    axes: dict[str, Any] = {"x_label": "devices", "x_ticks": ticks, "is_x_log": True}
    panels = [Panel(title="memory of a device (GiB)", lines=memory, **axes)]
    if speed:
        title = "examples a second, which readers must deliver"
        panels.insert(0, Panel(title=title, lines=speed, is_y_log=True, **axes))
    return panels


def _get_kind(planned: Plan) -> str:
    return planned.topology.partition(":")[0]


def _make_plans(
    flags: TrainFlags, names: tuple[str, ...], *, largest_batch: bool
) -> Iterator[Plan]:
    # All of them first: a name that there is not is said before the first compile.
    numbers = {
        name: jax.device_count() if name == "here" else len(describe_devices(name))
        for name in names
    }
    model, size = models.get(flags.model.model_name), flags.image_size
    shape = Shape(
        image_shape=(size, size, model.num_channels),
        num_classes=flags.dataset.num_classes or get_counted_classes(model),
        preprocessing=None,
    )
    builder = make_builder(flags, shape)
    for name in names:
        print(f"compiling for {name} ...", file=sys.stderr)
        yield plan(
            builder,
            batch_size=flags.model.device_batch_size * numbers[name],
            topology=None if name == "here" else name,
            precision=flags.performance.make_precision(),
            largest_batch=largest_batch,
        )
