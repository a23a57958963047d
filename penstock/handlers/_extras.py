"""Packages that only some handlers need: asked for when the handler is made, imported when used."""

from __future__ import annotations

import importlib.util


def require(package: str, extra: str, owner: str) -> None:
    """Raise unless an optional package is installed; it is not imported.

    Arguments:
      package: the name it is imported by.
      extra: the extra of penstock that installs it.
      owner: the handler that needs it.

    Raises:
      ModuleNotFoundError: it is not there; says what to install.
    """
    if importlib.util.find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{owner} got no {package}, expected the package to be installed. It is optional, as "
            f'only some runs need it. Run pip install "penstock[{extra}]".',
            name=package,
        )
