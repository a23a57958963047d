"""Compiled programs: the only place that calls `jax.jit`."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from penstock import _mesh

_LOGGER = logging.getLogger("penstock")

COMPILATIONS = logging.getLogger("penstock.compilations")
"""Tells, at the level INFO, when a program is compiled first, and how long it took."""

REPLICATED = PartitionSpec()


class Program:
    """One step function, sharded over the mesh and compiled for each shape it meets.

    Arguments:
      recompile_level: the level at which another compile is logged.
      is_quick: it compiles in no time, and nothing is said of it.

    Attributes:
      num_compiles: how often the function was traced; more than once means that a shape changed,
        which is logged with what changed.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        mesh: Mesh,
        *,
        in_specs: Any,
        out_specs: Any,
        donated: tuple[int, ...] = (),
        recompile_level: int = logging.WARNING,
        is_quick: bool = False,
    ) -> None:
        self.name = name
        self.num_compiles = 0
        self._shapes: dict[str, Any] = {}
        self._function = function
        self._recompile_level, self._is_quick = recompile_level, is_quick
        self._sharded = functools.partial(
            jax.shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        # Spelled out, so that what arrives on the host is split as what was placed already.
        self.jitted = jax.jit(
            self._sharded(self._traced),
            donate_argnums=donated,
            in_shardings=_shardings(mesh, in_specs),
            out_shardings=_shardings(mesh, out_specs),
        )

    def __call__(self, *args: Any) -> Any:
        """Launch the program; returns as soon as it is enqueued.

        Transfers from the host are allowed here and only here: what arrives on the host is a batch
        that `Feeder` left there because it is cheaper to pass than to place.
        """
        if self.num_compiles or self._is_quick:
            return self._launch(*args)
        with say_compilation(f"the {self.name} program"):
            return self._launch(*args)

    def _launch(self, *args: Any) -> Any:
        if _guards_nothing():
            return self.jitted(*args)
        with jax.transfer_guard_host_to_device("allow"):
            return self.jitted(*args)

    def run_eagerly(self, context: contextlib.AbstractContextManager[Any], *args: Any) -> Any:
        """Run the function in a context, operation by operation, each compiled by itself and slow.

        An exception of `jax.debug_nans` then shows the lines of an operation, and of a gradient the
        lines of what it is the gradient of; both get lost on the way out of `jax.jit`.
        """

        def function(*args: Any) -> Any:
            # Entered here and not around it all: with an argument that is nan already, JAX 0.10
            # would call itself until the stack is full while it hands the arguments out.
            with context:
                return self._function(*args)

        return self._sharded(function)(*args)

    def _traced(self, *args: Any) -> Any:
        leaves = jax.tree_util.tree_leaves_with_path(args)
        shapes = {jax.tree_util.keystr(path): (x.shape, str(x.dtype)) for path, x in leaves}
        if self.num_compiles:
            changed = [
                f"{key} from {self._shapes.get(key)} to {shape}"
                for key, shape in shapes.items()
                if self._shapes.get(key) != shape
            ]
            _LOGGER.log(
                self._recompile_level,
                "the %s program is compiled again (number %d), because of %s",
                self.name,
                self.num_compiles + 1,
                "; ".join(changed) or "a change of sharding or of a JAX setting",
            )
        outputs = self._function(*args)
        # Not before: an exception while tracing, Ctrl-C for one, leaves nothing compiled.
        self.num_compiles += 1
        self._shapes = shapes
        return outputs


@contextlib.contextmanager
def say_compilation(what: str) -> Iterator[None]:
    """Log that something is compiled, which may take minutes, and how many seconds it took."""
    COMPILATIONS.info("compiling %s ...", what)
    start = time.perf_counter()
    yield
    COMPILATIONS.info("compiled %s in %.1f s", what, time.perf_counter() - start)


def _guards_nothing() -> bool:
    """Return whether transfers from the host are allowed anyway; entering a guard costs 3 us."""
    config: Any = jax.config
    guards = (config.jax_transfer_guard_host_to_device, config.jax_transfer_guard)
    return guards[0] in (None, "allow") and guards[1] in (None, "allow")


def _shardings(mesh: Mesh, specs: Any) -> Any:
    is_spec = lambda x: isinstance(x, PartitionSpec)  # noqa: E731
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=is_spec)


def compiled(
    function: Callable[..., Any], mesh: Mesh, *, donated: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """Return `function` compiled at its first call; what it returns is replicated over the mesh.

    On CPU it is compiled with few optimisations: threefry, which initialisers draw from, takes
    0.3 s a parameter otherwise, and runs once.

    Arguments:
      donated: arguments whose memory the outputs take, also of arguments that are not read.
    """
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    options: Any = {"xla_backend_optimization_level": 1} if is_cpu else None
    return jax.jit(
        function,
        out_shardings=_mesh.replicated(mesh),
        donate_argnums=donated,
        keep_unused=bool(donated),
        compiler_options=options,
    )


def compiled_call(function: Callable[..., Any], mesh: Mesh, *args: Any) -> Any:
    """Compile and run `function` once, see `compiled`."""
    return compiled(function, mesh)(*args)


def owned(tree: Any, mesh: Mesh) -> Any:
    """Return a copy of a pytree on the mesh, in buffers of its own that may be donated.

    Arrays that came from the host can share its memory, and then their donation silently fails.
    """
    placed = jax.device_put(tree, _mesh.replicated(mesh))
    return compiled_call(_copied, mesh, placed)


def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
