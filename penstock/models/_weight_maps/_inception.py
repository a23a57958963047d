"""timm's names of the convolutions of Inception modules."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.models._inception import Branches, Fork, Pool


def timm_layers(branches: Branches, path: str, module: str) -> Iterator[tuple[str, str]]:
    """Yield the path of each convolution of a module, and timm's name of it.

    A branch of one layer is that layer, a longer one counts its layers, poolings too; one that
    forks has no sequence of its layers but names for them, `branch1_0`, `branch1_1a`.
    """
    for number, steps in enumerate(branches):
        branch = f"{module}.branch{number}"
        separator = "_" if any(isinstance(step, Fork) for step in steps) else "."
        for index, step in enumerate(steps):
            layer = branch if len(steps) == 1 else f"{branch}{separator}{index}"
            here = f"{path}/Branch_{number}"
            if isinstance(step, Fork):
                each = zip(step.convs, "ab", strict=True)
                yield from ((f"{here}/{conv.name}", layer + letter) for conv, letter in each)
            elif not isinstance(step, Pool):
                yield f"{here}/{step.name}", layer
