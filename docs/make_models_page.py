"""Count every network of the model library: `penstock/models/_facts.py` and `docs/models.md`.

    python docs/make_models_page.py [--check]

Run it from the checkout after a network has been added or changed. Nothing is computed but shapes;
all networks take about a minute. With `--check` it writes nothing, and fails where something would
change.
"""

import dataclasses
import os
import sys
from collections.abc import Collection
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from penstock import models
from penstock.models.advice import ADVICE
from penstock.models.report import Report, describe

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "penstock" / "models" / "_facts.py"
PAGE = ROOT / "docs" / "models.md"

HEAD = """# The model library

`penstock models` lists these networks, and `penstock models NAME` shows the layers of one.
`models.classifier` makes the programs that train one. `python docs/make_models_page.py` generates
this page and the list.

```python
import optax
import penstock as ps
from penstock import models

lenet = models.classifier("lenet", num_classes=10)
trainer = ps.Trainer(lenet.train_program, optax.sgd(0.1), infer_func=lenet.infer_program)
print(models.names("mobilenet*"), models.get("lenet").settings)
```

`penstock models resnet50` lists the layers of a network with their output shapes and
numbers of parameters, and `--json` writes them for programs.

- **Image** is the height and width in pixels that the network was designed for. **Classes** is the
  number of classes in its published weights; 1001 includes one for the background.
- **Parameters** counts the trained values, including those of auxiliary heads. **Arrays** is the
  number of arrays that hold them, and **statistics** counts batch norm's running means and
  variances. Networks with 1001 classes are counted with 1000.
- **GMAC** is the number of multiply-adds, in billions, of convolutions and dense layers for one
  image. Auxiliary heads are left out; products with padding are counted. XLA's cost analysis of
  these operations gives the same number (`tests/models/test_cost_analysis.py`).
- **[Preprocessing](preprocessing.md)** is the default for training the network here. Published
  weights bring their own, see [weights.md](weights.md).

[same_logits.md](same_logits.md) compares the networks with their originals, with the same weights.
[training_models.md](training_models.md) has commands that train some of them in minutes.


"""
ADVICE_HEAD = """## Which to take

"""
LIST_HEAD = """
## All networks

"""
SETTINGS_HEAD = """
The next table has each network's default settings, which `models.Settings` overrides: the weight
decay coefficient, the decay and epsilon of batch norm, the dropout rate before the last layer, and
the drop-path rate at the end of training.


"""


def facts_source(reports: dict[str, Report]) -> str:
    """Return the text of the module that holds the counts."""
    entries = [
        f'        "{name}": ({", ".join(f"{n:_}" for n in dataclasses.astuple(report))}),'
        for name, report in reports.items()
    ]
    return "\n".join(
        [
            '"""What `describe` counts of each network; docs/make_models_page.py makes it."""',
            "",
            "from collections.abc import Mapping",
            "from types import MappingProxyType",
            "",
            "FACTS: Mapping[str, tuple[int, int, int, int, int]] = MappingProxyType(",
            "    {",
            "        # name: classes, parameters, statistics, arrays, multiply-adds",
            *entries,
            "    }",
            ")",
            "",
        ]
    )


def page(reports: dict[str, Report]) -> str:
    """Return the text of the page."""
    sizes = [
        (
            f"`{name}`",
            str(models.get(name).default_image_size),
            str(models.get(name).num_classes),
            f"{report.num_params:,}",
            f"{report.num_statistics:,}",
            f"{report.num_tensors:,}",
            f"{report.gmacs:.3f}",
            models.get(name).preprocessing,
            models.get(name).source,
        )
        for name, report in reports.items()
    ]
    names = (
        "network",
        "image",
        "classes",
        "parameters",
        "statistics",
        "arrays",
        "GMAC",
        "preprocessing",
        "source",
    )
    settings = [_settings(name) for name in reports]
    heads = ("network", "weight decay", "decay", "epsilon", "dropout", "drop path")
    advice = "".join(f"- **{each.family}**: {each.text}\n" for each in ADVICE)
    return (
        HEAD
        + ADVICE_HEAD
        + advice
        + LIST_HEAD
        + _table(names, sizes, range(1, 7))
        + SETTINGS_HEAD
        + _table(heads, settings, ())
    )


def _settings(name: str) -> tuple[str, ...]:
    settings = models.get(name).settings
    values = (
        settings.weight_decay,
        settings.batch_norm_decay,
        settings.batch_norm_epsilon,
        settings.dropout,
        settings.drop_path,
    )
    return (f"`{name}`", *("" if value is None else f"{value:g}" for value in values))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], right: Collection[int]) -> str:
    rule = ["--:" if number in right else "---" for number in range(len(head))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, tuple(rule), *rows])


def count() -> dict[str, Report]:
    """Return the counts of every network there is."""
    reports = {}
    for name in models.names():
        reports[name] = describe(models.get(name))[0]
        print(f"{name}: {reports[name]}", file=sys.stderr, flush=True)
    return reports


def main(arguments: list[str]) -> int:
    """Write both files, or say which is out of date."""
    reports = count()
    texts = {FACTS: facts_source(reports), PAGE: page(reports)}
    changed = [path for path, text in texts.items() if not _holds(path, text)]
    for path in changed:
        if "--check" not in arguments:
            path.write_text(texts[path], encoding="utf-8")
        print(path.relative_to(ROOT))
    return int("--check" in arguments and bool(changed))


def _holds(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
