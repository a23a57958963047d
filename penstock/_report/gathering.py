"""What several processes found in their parts of a split, put together."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock._report.findings import Example, Findings

Exchange = Callable[[str, object], list[Any]]
"""Takes a name and a value of this process, as JSON holds it; returns those of all processes."""


def gather(
    found: Findings | None,
    index: int,
    exchange: Exchange,
    *,
    num_mistakes: int,
    num_samples: int,
) -> Findings | None:
    """Return the counts and the worst mistakes of all processes, with this one's samples.

    Collective. Of the pictures only those travel that will be shown.

    Arguments:
      found: what this process found; None where it had no image.
      index: which process this is.

    >>> def exchange(name, value):  # with a process that had no image
    ...     return [None if name.endswith("counts") else [], value]
    >>> found = Findings(2, num_mistakes=1, num_samples=0)
    >>> found.add(np.array([0]), np.array([[0.3, 0.7]]), np.zeros((1, 4, 4, 1)))
    >>> together = gather(found, 1, exchange, num_mistakes=1, num_samples=0)
    >>> together.num_images, together.mistakes[0].process
    (1, 1)
    """
    said = None
    if found is not None:
        ranks = [[each.right_share, -each.sureness] for each in found.mistakes]
        said = {**found.count(), "ranks": ranks}
    parts = exchange("Report's counts", said)
    known = [part for part in parts if part is not None]
    if not known:
        return None
    num_classes = known[0]["num_classes"]
    together = Findings(num_classes, num_mistakes=num_mistakes, num_samples=num_samples)
    for part in known:
        together.add_counts(part)
    places = [
        (rank, process, number)
        for process, part in enumerate(parts)
        for number, rank in enumerate([] if part is None else part["ranks"])
    ]
    worst = [(process, number) for _, process, number in sorted(places)[:num_mistakes]]
    own = [] if found is None else [found.mistakes[n] for p, n in worst if p == index]
    sent = [iter(each) for each in exchange("Report's mistakes", [_encode(each) for each in own])]
    together.mistakes = [_decode(next(sent[process]), process) for process, _ in worst]
    together.samples = {} if found is None else found.samples
    return together


def _encode(example: Example) -> dict[str, object]:
    values, image = {**vars(example), "image": None}, example.image
    if image is not None:
        packed = base64.b64encode(zlib.compress(image.tobytes())).decode()
        values["image"] = [packed, *image.shape]
    return values


def _decode(values: dict[str, Any], process: int) -> Example:
    image = None
    if values["image"] is not None:
        packed, *shape = values["image"]
        pixels = zlib.decompress(base64.b64decode(packed))
        image = np.frombuffer(pixels, np.uint8).reshape(shape)
    return dataclasses.replace(Example(**values), image=image, process=process)
