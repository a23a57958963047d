"""The version of this checkout, installed or not, and those of what it stands on."""

from __future__ import annotations

import functools

__version__ = "0.1.0"


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a run's bits."""
    # Not at import: it takes a hundredth of a second, which few programs need.
    import platform

    packages = ["jax", "jaxlib", "flax", "optax", "numpy"]
    return {
        "python": platform.python_version(),
        "penstock": __version__,
        **{name: _find_version(name) for name in packages},
    }


# Reading a package's metadata takes a millisecond, and every checkpoint has the versions in it.
@functools.cache
def _find_version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
