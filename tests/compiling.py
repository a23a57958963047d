"""How the tests compile, where they keep what they compiled from run to run, and how much of it."""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.source_tree import ROOT

# A run of every test leaves half a gigabyte; JAX's own limit needs the package filelock.
MOST_BYTES = 2 * 2**30


def is_optimized() -> bool:
    """Return whether the tests compile as users do."""
    return bool(os.environ.get("PENSTOCK_TEST_OPTIMIZED"))


def xla_flags(num_devices: int = 1, level: int = 0) -> str:
    """Return XLA's flags for so many devices, with which programs compile in a third of the time.

    Nearly all programs of the tests run for less time than they compile: without LLVM's
    optimisation, fusions that are written through MLIR, and a thread for each part of a program,
    the tests take half the processor time. Where networks are trained for hundreds of steps, the
    first `level` of optimisation is back in a moment. `PENSTOCK_TEST_OPTIMIZED=1` compiles as users
    do.
    """
    flags = [f"--xla_force_host_platform_device_count={num_devices}"]
    # A flag that XLA does not know ends the process, and these come and go.
    version = importlib.metadata.version("jaxlib")
    if version.startswith(("0.10.", "0.12.")):
        # On a busy machine devices that share cores may wait longer for each other than the 40 s
        # after which XLA ends the process.
        flags.append("--xla_cpu_collective_call_terminate_timeout_seconds=300")
    if not is_optimized():
        flags.append(f"--xla_backend_optimization_level={level}")
        if version.startswith("0.10."):
            flags.append("--xla_cpu_use_fusion_emitters=false")
            flags.append("--xla_cpu_parallel_codegen_split_count=1")
    return " ".join(flags)


@contextlib.contextmanager
def as_users_do() -> Iterator[None]:
    """Have `jax.jit` compile with XLA's own settings, for bits that are compared.

    Without LLVM's optimisation two programs of the same operations may round apart.
    """
    import jax  # not at the top: it reads the settings of conftest.py when it is imported

    plain, options = jax.jit, dict[str, Any](xla_backend_optimization_level=3)
    if "fusion_emitters" in xla_flags():
        options["xla_cpu_use_fusion_emitters"] = True

    def jit(*args: Any, compiler_options: dict[str, Any] | None = None, **keywords: Any) -> Any:
        return plain(*args, compiler_options={**options, **(compiler_options or {})}, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", jit)
        yield


def folder() -> Path:
    """Return a folder of this JAX's that outlives a checkout, or one in it where that is not to be.

    Beside the programs of another version these would only take space.
    """
    jax, jaxlib = (importlib.metadata.version(name) for name in ("jax", "jaxlib"))
    version = f"jax-{jax}" if jax == jaxlib else f"jax-{jax}-jaxlib-{jaxlib}"
    with contextlib.suppress(OSError, RuntimeError):  # a home that is read-only, or none
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        kept = Path(home).resolve() / "penstock-tests" / version
        kept.mkdir(parents=True, exist_ok=True)
        if os.access(kept, os.W_OK):
            return kept
    return ROOT / ".pytest_cache" / version


def prune(kept: Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete what was not read for longest until the rest fits; others may be doing the same."""
    files = []
    for path in kept.glob("*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    too_many = sum(size for _, size, _ in files) - most_bytes
    for _, size, path in sorted(files, key=lambda file: file[0]):
        if too_many <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        too_many -= size
