"""Ray, where it is installed: only runs on its clusters need it."""

from __future__ import annotations

import importlib
from typing import Any

from penstock._errors import check_installed

_PARTS = (
    *("ray.cloudpickle", "ray.train", "ray.train.collective", "ray.train.v2.jax"),
    "ray.util.scheduling_strategies",
)


def load_ray(owner: str) -> Any:
    """Return the package `ray`, with Ray Train for JAX in it; imports it, which takes 2 s.

    Arguments:
      owner: what needs it.

    Raises:
      ModuleNotFoundError: it is not there; says what to install.
    """
    for package in ("ray", "pyarrow"):  # Ray alone is installed without what Ray Train needs
        check_installed(package, "ray", owner)
    for part in _PARTS:
        importlib.import_module(part)
    return importlib.import_module("ray")
