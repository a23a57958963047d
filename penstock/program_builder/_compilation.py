"""Compilation: the only place that calls `jax.jit`, and what is said of it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from penstock import _mesh
from penstock._padded_batches import Rows
from penstock.distributed.group import Joined
from penstock.program_builder._memory import read_refusal

P = ParamSpec("P")
T = TypeVar("T")

_LOGGER = logging.getLogger("penstock")

_CONFIG: Any = jax.config
_ALLOWING = (None, "allow")

COMPILATIONS = logging.getLogger("penstock.compilations")
"""Tells, at the level INFO, when a program is compiled first, and how long it took."""


_COMPILERS = concurrent.futures.ThreadPoolExecutor(1, "penstock-compiler")
"""What compiles beside training: one at a time, which leaves the other cores to the steps."""


_LEAK = (
    "If it left a function of jax.custom_vjp or jax.custom_jvp, which sees its arguments alone, "
    "make the parameters of its layers outside, by layers.create_parameter, and pass them. If it "
    "left a mean over words, which gradient_accumulation_steps count first, take that mean outside "
    "of jax.checkpoint, jax.jit and the like, or use layers.remat."
)


class Compilation(NamedTuple):
    """A program that was compiled, in which batch size, how long it took, and why again.

    The seconds are None of one that was compiled beside training.
    """

    program: str
    num_examples: int
    secs: float | None = None
    why: str = ""


class CompileTime:
    """The seconds that programs took to compile, all of them together."""

    secs = 0.0


class Program:
    """One step function, compiled for each shape and each choice of rows that it meets.

    Its last argument is the `Rows` of the batch, which are no array.

    Arguments:
      in_specs, out_specs: how the other arguments and the results lie on the mesh.
      recompile_level: the level at which another compile is logged.
      largest_kernel: how many numbers the largest kernel of a convolution has, 0 without any.
      refuse: raises where a launch takes more than a device has; called with the bytes that it
        takes, and its arguments.
      saves_memory: order operations so that they share memory, where XLA's CPU backend can.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        mesh: Mesh,
        in_specs: Sequence[_mesh.Specs],
        out_specs: _mesh.Specs,
        donated: tuple[int, ...] = (),
        compile_time: CompileTime | None = None,
        recompile_level: int = logging.WARNING,
        largest_kernel: int = 0,
        has_gradients: bool = False,
        saves_memory: bool = False,
        refuse: Callable[..., None] | None = None,
    ) -> None:
        self.name = name
        self._refuse, self._mesh = refuse, mesh
        self.compilations: list[Compilation] = []
        self._shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        self.sizes: list[Rows] = []
        self._ahead: dict[Rows, concurrent.futures.Future[Any]] = {}
        self._function = function
        self._time, self._launching = compile_time or CompileTime(), _Launching()
        self._recompile_level = recompile_level
        options: Any = None
        if _mesh.is_on_cpu(mesh):
            wanted = choose_options(largest_kernel, has_gradients=has_gradients)
            wanted += _MEMORY_OPTIONS if saves_memory else ()
            options = _known_options(wanted) if wanted else None
        elif _mesh.is_on_gpu(mesh) and mesh.devices.flat[0] not in jax.devices():
            options = _known_options(_DESCRIBED_GPU_OPTIONS)
        # Spelled out, so that what arrives on the host is split as what was placed already.
        self.jitted = jax.jit(
            self._trace,
            static_argnums=(len(in_specs),),
            donate_argnums=donated,
            in_shardings=_mesh.make_shardings(mesh, in_specs),
            out_shardings=_mesh.make_shardings(mesh, out_specs),
            compiler_options=options,
        )

    def __call__(self, *args: Any) -> Any:
        """Launch the program; returns as soon as it is enqueued.

        Transfers from the host are allowed here and only here: what arrives on the host is a batch
        that `Feeder` left there because it is cheaper to pass than to place.
        """
        if self._ahead and (compilation := self._ahead.pop(args[-1], None)) is not None:
            # JAX then finds it compiled; without waiting it would compile it a second time.
            with announce_compilation():
                compilation.result()
        # One frame and no context in the common case: entering a guard costs 3 us.
        is_allowed = (
            _CONFIG.jax_transfer_guard_host_to_device in _ALLOWING
            and _CONFIG.jax_transfer_guard in _ALLOWING
        )
        self._launching.traced = 0.0
        try:
            # A transfer guard of the user's is respected everywhere but in the launch itself.
            if self.compilations and is_allowed and self._refuse is None:
                outputs = self.jitted(*args)
            else:
                outputs = self._launch_guarded(args)
        finally:
            traced, self._launching.traced = self._launching.traced, None
            if traced:
                Joined.group.num_compiling -= 1
        if traced:
            # From the trace on: JAX compiles between it and the launch.
            secs = time.perf_counter() - traced
            self._time.secs += secs
            self.compilations[-1] = self.compilations[-1]._replace(secs=secs)
        return outputs

    def _launch_guarded(self, args: tuple[Any, ...]) -> Any:
        is_first, start = not self.compilations, time.perf_counter()
        if is_first:
            COMPILATIONS.info("compiling the %s program ...", self.name)
        try:
            with jax.transfer_guard_host_to_device("allow"):
                if self._refuse is not None and not _CONFIG.jax_disable_jit:
                    total = self._measure(args)
                    if total > _mesh.find_memory(self._mesh.local_devices[0]):
                        self._refuse(total, *args)
                    self._refuse = None
                outputs = self.jitted(*args)
        except jax.errors.UnexpectedTracerError as error:
            error.add_note(_LEAK)
            raise
        if is_first:
            secs = time.perf_counter() - start
            COMPILATIONS.info("compiled the %s program in %.1f s", self.name, secs)
        return outputs

    def _measure(self, args: tuple[Any, ...]) -> float:
        """Compile for these arguments; return the bytes that it takes on one device, or nan."""
        try:
            sizes: Any = self.jitted.lower(*args).compile().memory_analysis()
        except jax.errors.JaxRuntimeError as error:
            refused = read_refusal(error)
            if refused is None:
                raise
            return refused
        if sizes is None:
            return math.nan
        outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        taken = sizes.temp_size_in_bytes + sizes.generated_code_size_in_bytes
        return sizes.argument_size_in_bytes + outputs + taken

    def compile_ahead(self, rows: Rows, *args: object) -> None:
        """Compile the program in a thread, for arguments by their shapes.

        It is traced here: a program function is the user's, and runs in one thread.
        """
        with announce_compilation():
            lowered = self.jitted.lower(*args, rows)
        self._ahead[rows] = _COMPILERS.submit(lowered.compile)

    def _trace(self, *args: Any) -> object:
        # With `jax.disable_jit` JAX calls this in each launch, with values.
        if _CONFIG.jax_disable_jit:
            return self._function(*args)
        if (traced := self._launching.traced) is not None:
            # Until the launch: other processes would take it for a hang.
            Joined.group.num_compiling += not traced
            self._launching.traced = time.perf_counter()
        rows = args[-1]
        leaves = jax.tree_util.tree_leaves_with_path(args[:-1])
        # Runs only when JAX has no trace for these shapes, so a count of calls is one of compiles.
        shapes = {jax.tree_util.keystr(path): (x.shape, str(x.dtype)) for path, x in leaves}
        why = self._log_again(rows, shapes) if self.compilations else ""
        outputs = self._function(*args)
        # Not before: an exception while tracing, Ctrl-C for one, leaves nothing compiled.
        self.compilations.append(Compilation(self.name, rows.num_examples, why=why))
        self._shapes = shapes
        self.sizes.append(rows)
        return outputs

    def _log_again(self, rows: Rows, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
        level, number = self._recompile_level, rows.num_examples
        sizes = [size.num_examples for size in self.sizes]
        if number not in sizes:
            before = " and ".join(map(str, dict.fromkeys(sizes)))
            why = f"a batch of {number} examples, after {before}"
            level = min(level, logging.INFO) if len(set(sizes)) == 1 else level
        else:
            changed = [
                f"{key} from {self._shapes.get(key)} to {shape}"
                for key, shape in shapes.items()
                if self._shapes.get(key) != shape
            ]
            why = "; ".join(changed) or "a change of sharding or of a JAX setting"
        _LOGGER.log(
            level,
            "the %s program is compiled again (number %d), because of %s",
            self.name,
            len(self.compilations) + 1,
            why,
        )
        return why


class _Launching(threading.local):
    """The launch of a program that a thread is in.

    `traced`: when it was traced, 0 before; None outside of a launch.
    """

    traced: float | None = None


@contextlib.contextmanager
def announce_compilation(what: str = "") -> Iterator[None]:
    """Tell the other processes, who would take it for a hang; log what it is, and its seconds.

    Arguments:
      what: the program, e.g. "the initial values"; empty for one that is no news.
    """
    # Said before it: a network of hundreds of layers compiles for minutes without a sign of life.
    if what:
        COMPILATIONS.info("compiling %s ...", what)
    start, group = time.perf_counter(), Joined.group
    group.num_compiling += 1
    try:
        yield
    finally:
        group.num_compiling -= 1
    if what:
        COMPILATIONS.info("compiled %s in %.1f s", what, time.perf_counter() - start)


Options: TypeAlias = tuple[tuple[str, str | bool], ...]

_MEMORY_OPTIONS = (("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"),)
"""Order operations for memory, not for concurrency.

Ten unrolled steps of a small convolutional network take 27 MB instead of 203, and 0.99x the time of
a hand-written loop instead of 1.13x to 1.31x; one step alone took 1.08x (JAX 0.10.2)."""

_CONVOLUTION_OPTION = "xla_cpu_experimental_ynn_fusion_type"

_CONVOLUTION_OPTIONS = (
    (_CONVOLUTION_OPTION, "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"),
)
"""Leave products and sums to YNNPACK, as XLA does by default, and convolutions not.

There the gradient of a kernel takes up to 9 times as long as XLA's own: 304 ms instead of 41 from
256 to 512 channels of 28x28, batch 16. Without its sums, batch norm's, a step of MobileNet v1 takes
more than twice as long (JAX 0.10.2, `python -m benchmarks convolutions` and `cpu_networks`)."""

_WIDE_CONVOLUTION_OPTIONS = ((_CONVOLUTION_OPTION, "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"),)
"""Leave products alone to YNNPACK.

Together with a pooling it takes all convolutions before it, and arranges wide kernels anew in every
run: of three 3x3 on 512 channels of 8x8 that is 49 ms instead of 8, batch 1. Of narrow ones it is
faster, 14 ms instead of 16 for 64 channels of 128x128. A training step keeps them apart."""

_WIDE = 2**19
"""From so many numbers in a kernel on: 3x3 from 256 to 256 channels are 590,000."""

_CODE_OPTIONS = (("xla_cpu_use_fusion_emitters", False),)
"""Write fusions without MLIR, which takes longer than all else that a short program compiles."""


_DESCRIBED_GPU_OPTIONS = (("xla_gpu_enable_triton_gemm", False),)
"""Leave products to cuBLAS: Triton's are tuned by running them, which takes a GPU that is here.

Without one XLA finds no tile sizes for some, such as those of 25,088 rows (JAX 0.10.2)."""


def choose_options(largest_kernel: int, *, has_gradients: bool = False) -> Options:
    """Return what XLA's CPU backend is told of a program, see `Program`."""
    # What the user has said of the same option holds.
    if not largest_kernel or _CONVOLUTION_OPTION in os.environ.get("XLA_FLAGS", ""):
        return ()
    is_wide = largest_kernel >= _WIDE and not has_gradients
    return _WIDE_CONVOLUTION_OPTIONS if is_wide else _CONVOLUTION_OPTIONS


@functools.cache
def _known_options(options: Options) -> dict[str, str | bool]:
    """Return those of a few compiler options that XLA has: they come and go."""
    accepted: dict[str, str | bool] = {}
    for name, value in options:
        # An option that XLA does not know raises at the compile, and at nothing before it.
        with contextlib.suppress(Exception):
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
            accepted[name] = value
    return accepted


def compile_function(
    function: Callable[P, T],
    mesh: Mesh,
    out_specs: _mesh.Specs = _mesh.WHOLE,
    *,
    donated: tuple[int, ...] = (),
    level: int | None = 1,
) -> Callable[P, T]:
    """Return `function` compiled at its first call, on CPU with few optimisations: it runs rarely.

    Arguments:
      donated: arguments whose memory the outputs take, also of arguments that are not read.
      level: how much LLVM optimises, from 0 on; None compiles as other programs are.
    """
    options: Any = None
    if _mesh.is_on_cpu(mesh) and level is not None:
        options = {"xla_backend_optimization_level": level, **_known_options(_CODE_OPTIONS)}
    return jax.jit(
        function,
        out_shardings=_mesh.make_shardings(mesh, out_specs),
        donate_argnums=donated,
        # JAX drops arguments that are not read, and with them the memory that the outputs are to
        # take.
        keep_unused=bool(donated),
        compiler_options=options,
    )


def copy_to(tree: object, mesh: Mesh, specs: _mesh.Specs = _mesh.WHOLE) -> Any:
    """Return a copy of a pytree on the mesh, in buffers of its own that may be donated.

    Arrays that came from the host can share its memory, and then their donation silently fails.
    """
    shardings = _mesh.make_shardings(mesh, specs)
    if isinstance(specs, PartitionSpec):
        shardings = jax.tree.map(lambda _: shardings, tree)
    # Placed first, so that the copy is one program whatever the arrays came from.
    return compile_function(copy_arrays, mesh, specs)(_mesh.put_whole(tree, shardings))


def copy_arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
