"""`plan`: what a training run will need, by compiling its very program for devices anywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from penstock import _mesh
from penstock._errors import check_installed, check_int, nearest
from penstock._padded_batches import Rows
from penstock._program.precision import Precision, PrecisionName
from penstock._text_tables import align_rows, scale_bytes
from penstock.program_builder._builder import ProgramBuilder, trace_program
from penstock.program_builder._inspect import Inspection
from penstock.program_builder._memory import count_bytes, read_refusal
from penstock.program_builder._network import Network
from penstock.program_builder.engine import Programs, describe
from penstock.program_builder.products import find_products


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a training step needs; `str` of it is a table.

    Attributes:
      topology: as `plan` was told it, or `"here"`.
      batch_size: of a step on all devices.
      memory_bytes: on one device: `"parameters"` with running statistics, `"optimizer"`, `"batch"`,
        `"temporaries"` (activations, gradients, and what operations work in) and `"rest"` (metrics,
        the program itself, what padding takes).
      capacity_bytes: what a program can have on one device.
      num_operations: of one device: two for each multiply-add of a convolution or matrix product.
        What is done element by element is not counted.
      num_bytes: what one device reads and writes, by XLA's cost analysis, which counts the body of
        a loop once; nan where XLA has none.
      collectives: what devices tell each other, by kind; None where the compiled text says nothing.
      rates: of a device, None where they are not known.
      largest_batch: the largest batch that fits, where it was asked for.
    """

    topology: str
    device_kind: str
    num_devices: int
    batch_size: int
    memory_bytes: Mapping[str, int]
    capacity_bytes: int
    num_operations: float
    num_bytes: float
    collectives: tuple[Collective, ...] | None
    compile_secs: float
    rates: Rates | None
    largest_batch: int | None = None

    @property
    def total_bytes(self) -> int:
        """The memory that the step takes on one device."""
        return sum(self.memory_bytes.values())

    @property
    def fits(self) -> bool:
        """Whether a device has as much memory."""
        return self.total_bytes <= self.capacity_bytes

    @property
    def step_secs(self) -> float:
        """An estimate of a step's time by the rates of the device; nan where nothing is known.

        It is the longest of computing, of reading and writing memory, and of the messages that
        overlap with them; then the other messages. An all-reduce passes its bytes twice. Where the
        compiled text says nothing of messages they are left out.
        """
        if self.rates is None:
            return math.nan
        link, waited, overlapped = self.rates.link_gb * 1e9, 0.0, 0.0
        for collective in self.collectives or ():
            passes = 2 if collective.kind == "all-reduce" else 1
            overlapped += passes * collective.bytes_overlapped / link
            waited += passes * (collective.num_bytes - collective.bytes_overlapped) / link
        computing = self.num_operations / (self.rates.teraflops * 1e12)
        # nan is left out: nothing is greater than it, nor less.
        moving = self.num_bytes / (self.rates.memory_gb * 1e9)
        secs = max(computing, overlapped, 0.0 if math.isnan(moving) else moving) + waited
        return secs or math.nan

    @property
    def examples_per_sec(self) -> float:
        """What readers must deliver, all of them together, to keep up with such steps."""
        return self.batch_size / self.step_secs

    @property
    def facts(self) -> dict[str, str]:
        """The plan in words, by what each is."""
        step, messages = self.step_secs, self.collectives
        number, over, passed = (
            sum(getattr(collective, name) for collective in messages or ())
            for name in ("number", "number_overlapped", "num_bytes")
        )
        facts = {
            "topology": self.topology,
            "devices": f"{self.num_devices:,}",
            "batch size": f"{self.batch_size:,}",
            "memory": scale_bytes(self.total_bytes),
            "of": scale_bytes(self.capacity_bytes),
            "fits": "yes" if self.fits else "no",
            **{name: scale_bytes(size) for name, size in self.memory_bytes.items()},
            "TFLOP": f"{self.num_operations / 1e12:.3g}",
            "moved": "" if math.isnan(self.num_bytes) else scale_bytes(self.num_bytes),
            "messages": "unread" if messages is None else f"{number} ({over} overlap)",
            "sent": "" if messages is None else scale_bytes(passed),
            "step ms": "" if math.isnan(step) else f"{1000 * step:.3g}",
            "examples/s": "" if math.isnan(step) else f"{self.examples_per_sec:,.0f}",
            "compiled in s": f"{self.compile_secs:.1f}",
        }
        if self.largest_batch is not None:
            facts["largest batch"] = f"{self.largest_batch:,}"
        return facts

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values, such as JSON takes; None for what is not known."""
        derived = ("total_bytes", "fits", "step_secs", "examples_per_sec")
        values = {**dataclasses.asdict(self), **{name: getattr(self, name) for name in derived}}
        # nan alone is not itself.
        return {name: value if value == value else None for name, value in values.items()}

    def __str__(self) -> str:
        return "\n".join(align_rows([*self.facts.items()], right={1}))


def plan(
    builder: ProgramBuilder[Any],
    *,
    batch_size: int,
    topology: str | None = None,
    precision: PrecisionName | Precision | None = None,
    objective: str | None = None,
    largest_batch: bool = False,
) -> Plan:
    """Compile a builder's train program for devices that need not be here; say what it needs.

    Nothing is allocated, and nothing runs. The time is an estimate by the vendor's rates. On CPU,
    such an estimate was 0.6 to 1.6 of what was measured.

    Arguments:
      builder: made for any devices. Its mesh keeps the sizes of all axes but `"data"`.
      batch_size: of all devices together. Sequences are as long as their last declared bucket.
      topology: such as `"v5e:4x4"` or `"h100:8"`; by default the devices of the builder.
      precision: in place of the builder's, whose `"auto"` is that of its own devices.
      objective: which of several objectives.
      largest_batch: search the largest batch that fits too, by a few more compiles.

    Raises:
      ValueError: there is no such topology.
      ModuleNotFoundError: libtpu, or JAX's plugin for CUDA, is not installed; says how.

    >>> import optax
    >>> import penstock as ps
    >>> from penstock import layers
    >>> def train_program():
    ...     prediction = layers.fc(layers.data("x", shape=[64]), size=1)
    ...     return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))
    >>> builder = ps.ProgramBuilder(train_program, optax.sgd(0.1))
    >>> planned = ps.plan(builder, batch_size=64)
    >>> planned.fits, planned.num_operations * planned.num_devices
    (True, 16384.0)
    """
    check_int("plan(batch_size)", batch_size, 1)
    name, mesh = builder.choose_objective(objective), builder.mesh
    if topology is not None:
        devices, num_per_part = describe_devices(topology), mesh.size // _mesh.count_parts(mesh)
        if len(devices) % num_per_part:
            raise ValueError(
                f"topology got {topology!r} with {len(devices)} devices, expected a multiple of "
                f"{num_per_part}, as the builder's mesh has {dict(mesh.shape)}."
            )
        sizes = [-1 if axis == _mesh.AXIS else mesh.shape[axis] for axis in mesh.axis_names]
        mesh = Mesh(np.asarray(devices).reshape(sizes), mesh.axis_names)
    programs = builder.programs
    if topology is not None or precision is not None:
        asked = programs.options.precision if precision is None else precision
        chosen = asked if isinstance(asked, Precision) else Precision(asked)
        options = dataclasses.replace(programs.options, mesh=mesh, precision=chosen)
        programs = Programs(Network(builder.objectives, None, options))

    capacity = find_memory(mesh.devices.flat[0])

    def measure(batch_size: int) -> Plan:
        return _measure(programs, name, batch_size, topology or "here", capacity)

    planned = measure(batch_size)
    if not largest_batch:
        return planned
    return dataclasses.replace(planned, largest_batch=_find_largest(planned, measure, mesh))


def find_largest_batch(
    builder: ProgramBuilder[Any], *, start: int, limit: int | None, capacity: int
) -> int:
    """Return the largest batch of a device, found by compiling; 0 where not one example fits.

    Arguments:
      start: the batch of a device to compile for first.
      limit: the batch of a device that there is no larger one than; None for any.
      capacity: the bytes that a step may take on a device.
    """
    mesh, name = builder.mesh, builder.choose_objective()
    parts = _mesh.count_parts(mesh)

    def measure(batch_size: int) -> Plan:
        return _measure(builder.programs, name, batch_size, "here", capacity)

    first = measure(parts * (start if limit is None else min(start, limit)))
    return _find_largest(first, measure, mesh, limit) // parts


def _measure(
    programs: Programs, objective: str, batch_size: int, topology: str, capacity: int
) -> Plan:
    mesh = programs.mesh
    device, start = mesh.devices.flat[0], time.perf_counter()
    inspection = trace_program(programs, "train", objective, batch_size)
    state, feed, rows = describe(programs, "train", batch_size)
    memory = {
        "parameters": count_bytes(state.variables),
        "optimizer": count_bytes(state.opt_state),
        "batch": count_bytes(feed),
    }
    macs = sum(product.num_macs for product in find_products(inspection.traced))
    bytes_accessed, collectives = math.nan, None
    try:
        with _keep_nothing(device):
            sizes = inspection.memory_bytes
        temporary = sizes["temporary"]
        total = sum(sizes.values()) - 2 * sizes["aliased"]
        bytes_accessed = inspection.bytes_accessed
        collectives = _read_collectives(inspection, device)
    except jax.errors.JaxRuntimeError as error:
        refused = read_refusal(error)
        if refused is None:
            raise
        # The compiler says how much it would have been, all together.
        total = refused or capacity + 1
        temporary = total - sum(memory.values())
    memory["temporaries"] = temporary
    memory["rest"] = total - sum(memory.values())
    return Plan(
        topology=topology,
        device_kind=device.device_kind,
        num_devices=mesh.size,
        batch_size=batch_size,
        memory_bytes=memory,
        capacity_bytes=capacity,
        num_operations=2.0 * macs / _count_sharers(programs.network, objective, rows),
        num_bytes=bytes_accessed,
        collectives=collectives,
        compile_secs=time.perf_counter() - start,
        rates=find_rates(device),
    )


def _count_sharers(network: Network, objective: str, rows: Rows) -> int:
    """Return among how many devices a step's products are divided: the others do the same again."""
    program, parts = network.train[objective], _mesh.count_parts(network.mesh)
    is_split = program.splits_features and not {_mesh.WHOLE}.issuperset(network.used_specs.values())
    num_per_part = network.mesh.size // parts if is_split else 1
    return num_per_part if rows.is_whole(program.layout) else parts * num_per_part


def _read_collectives(inspection: Inspection, device: Any) -> tuple[Collective, ...] | None:
    # JAX 0.10.2 fails at the text of a program for tpu7x, with a stack trace on stderr, and at that
    # of some for v5p: `async-update instruction should have 1 operands but sees 3`.
    if device.device_kind == "TPU7x":
        return None
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        return find_collectives(inspection.compiled_text)
    return None


@contextlib.contextmanager
def _keep_nothing(device: Any) -> Iterator[None]:
    """Have JAX keep no program for a device that is not here: it could not read it again."""
    config: Any = jax.config
    least = config.jax_persistent_cache_min_compile_time_secs
    if device not in jax.devices():
        config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    try:
        yield
    finally:
        config.update("jax_persistent_cache_min_compile_time_secs", least)


def _find_largest(
    first: Plan, measure: Callable[[int], Plan], mesh: Mesh, limit: int | None = None
) -> int:
    """Return the largest batch that was seen to fit, within 3 % of where a line says it ends."""
    parts, capacity = _mesh.count_parts(mesh), first.capacity_bytes
    rows = -(-first.batch_size // parts)
    trials = {rows: first}
    while True:
        fitting = max([n for n, trial in trials.items() if trial.fits], default=0)
        failing = min([n for n, trial in trials.items() if not trial.fits], default=None)
        if len(trials) == 1:
            wanted = 2 * rows if failing is None else max(1, rows // 2)
        else:
            # Memory is a line in the size of the batch, nearly: the nearest two tell most.
            near = sorted(trials, key=lambda n: abs(trials[n].total_bytes - capacity))[:2]
            (low, a), (high, b) = sorted((n, trials[n].total_bytes) for n in near)
            slope = (b - a) / (high - low)
            wanted = 2 * high
            if slope > 0:
                wanted = int(low + (capacity - a) / slope)
            elif failing is not None:
                # Compilers refuse some sizes without saying how much each would take.
                wanted = (fitting + failing) // 2
            # Small batches may all take what the update takes, and say nothing of larger ones.
            wanted = min(wanted, 16 * max(trials))
        if failing is not None:
            wanted = min(wanted, failing - 1)
        if limit is not None:
            wanted = min(wanted, limit)
        if wanted <= fitting + fitting // 32 or wanted in trials:
            return fitting * parts
        trials[wanted] = measure(wanted * parts)


@dataclasses.dataclass(frozen=True)
class Rates:
    """What the vendor says that a device can do at most; a chip may have two devices.

    Attributes:
      memory_gib: what a program can have, by the limits of the compilers.
      teraflops: operations on bfloat16, in 1e12 a second.
      memory_gb: gigabytes a second from and to its memory.
      link_gb: gigabytes a second to other devices, over all of its links.
    """

    memory_gib: float
    teraflops: float
    memory_gb: float
    link_gb: float


# What JAX calls a device, its topologies, and its rates. v2, v3, v4 and tpu7x have two devices a
# chip, and half of it each.
_KINDS = {
    "v2": ("TPU v2", "2x2 to 16x16", Rates(7.48, 22.5, 350, 124)),
    "v3": ("TPU v3", "2x2 to 32x32", Rates(15.48, 61, 450, 164)),
    "v4": ("TPU v4", "2x2x1 to 16x16x16", Rates(15.25, 137, 600, 150)),
    "v5e": ("TPU v5 lite", "1x1 to 16x16", Rates(15.75, 197, 819, 200)),
    "v5p": ("TPU v5", "2x2x1 to 16x16x24", Rates(95.73, 459, 2765, 600)),
    "v6e": ("TPU v6 lite", "1x1 to 16x16", Rates(31.24, 918, 1600, 400)),
    "tpu7x": ("TPU7x", "2x2x1 to 8x16x16", Rates(94.74, 1153, 3690, 300)),
    "h100": ("NVIDIA H100", "1 to 8", Rates(79, 989, 3350, 450)),
}

# The properties that the driver tells of one, in the text form of XLA's GpuTargetConfigProto.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448 registers_per_core_limit: 65536
  registers_per_block_limit: 65536 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 cuda_compute_capability { major: 9 }
}
platform_name: "CUDA" runtime_version { major: 13 } dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""

_ENVIRONMENT = {
    # Described in full: no machine is asked what it has.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # libtpu lets one process in at a time, as if each had the TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
}


def find_rates(device: Any) -> Rates | None:
    """Return what is known of a device's kind; None where it is none of those."""
    by_kind = {name: rates for name, _, rates in _KINDS.values()}
    return by_kind.get(max(filter(device.device_kind.startswith, by_kind), key=len, default=""))


def find_memory(device: Any) -> int:
    """Return how many bytes a program can have on a device; on CPU its share of the machine's."""
    rates = find_rates(device)
    # A device of this machine says itself what JAX may take of it: of a GPU three quarters.
    is_here = rates is None or device in jax.local_devices()
    capacity = _mesh.find_memory(device) if is_here else math.inf
    if math.isinf(capacity):
        return 0 if rates is None else int(rates.memory_gib * 2**30)
    return int(capacity)


def describe_devices(topology: str) -> list[Any]:
    """Return the devices of a topology such as `"v5e:4x4"`, as a compiler takes them.

    Raises:
      ValueError: there is no such topology.
      ModuleNotFoundError: the compiler for it is not installed.
    """
    kind, _, size = topology.lower().partition(":")
    if kind not in _KINDS or not all(part.isdigit() for part in size.split("x")):
        sizes = ", ".join(f"{name}:{sizes}" for name, (_, sizes, _) in _KINDS.items())
        raise ValueError(
            f"topology got {topology!r}, expected 'here', or a kind of device and how many there "
            f"are along each axis: {sizes}.{nearest(kind, _KINDS)}"
        )
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    wanted: dict[str, Any] = {"platform": "tpu", "topology_name": f"{kind}:{size}"}
    if kind == "h100":
        wanted = {"platform": "cuda", "target_config": _H100, "topology": f"1x1x{size}"}
    else:
        check_installed("libtpu", "tpu", f"topology {topology!r}")
    try:
        return list(topologies.get_topology_desc(**wanted).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(
            f"topology got {topology!r}, expected a size of {kind}, from {_KINDS[kind][1]}: {error}"
        ) from error
    except NotImplementedError as error:
        version = jax.__version__
        raise ModuleNotFoundError(
            f"topology {topology!r} got no CUDA plugin of JAX, expected it to be there to compile "
            f"with. Run pip install --no-deps jax-cuda13-plugin=={version} "
            f"jax-cuda13-pjrt=={version}, and in scripts set JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 and "
            "JAX_PLATFORMS=cpu, since it looks for a driver otherwise."
        ) from error


_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\n((?: .*\n|\n)*)\}", re.M)
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(.*)$")
_COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_CALLED = re.compile(r"(?:calls|body|to_apply|(?:true|false)_computation)=%?([\w.\-]+)")
# What a device does for a while, and may do while a message is on its way.
_WORK = re.compile(r" (?:fusion|custom-call|convolution|dot|while|call)\(")


@dataclasses.dataclass(frozen=True)
class Collective:
    """The messages of one kind in a step.

    Attributes:
      kind: such as `"all-reduce"`.
      number: how many there are; those in a loop count in each turn.
      num_bytes: of the arrays as they are whole, all of them together.
      number_overlapped, bytes_overlapped: of those that are on their way while a device computes.
    """

    kind: str
    number: int
    num_bytes: int
    number_overlapped: int
    bytes_overlapped: int


def find_collectives(text: str) -> tuple[Collective, ...]:
    """Return the collectives of a compiled program by kind."""
    computations = {name: body.splitlines() for name, body in _COMPUTATION.findall(text)}
    entry, by_name = re.search(r"^ENTRY %?([\w.\-]+)", text, re.M), dict[str, Collective]()
    _visit(entry[1] if entry else "", 1, computations, by_name)
    by_kind: dict[str, list[tuple[int, ...]]] = {}
    for collective in by_name.values():
        by_kind.setdefault(collective.kind, []).append(dataclasses.astuple(collective)[1:])
    sums = {kind: map(sum, zip(*by_kind[kind], strict=True)) for kind in sorted(by_kind)}
    return tuple([Collective(kind, *numbers) for kind, numbers in sums.items()])


def _visit(
    name: str, times: int, computations: Mapping[str, Sequence[str]], by_name: dict[str, Collective]
) -> None:
    """Find the messages of a computation that runs so often, and of those that it calls."""
    sizes: dict[str, int] = {}
    lines = computations.get(name, ())
    for place, line in enumerate(lines):
        if (match := _OPERATION.match(line)) is None:
            continue
        own, shape, operation, operands, attributes = match.groups()
        sizes[own] = _count_bytes(shape)
        kind = operation.removesuffix("-start")
        if kind in _COLLECTIVES:
            passed = sum(sizes.get(word, 0) for word in re.findall(r"%([\w.\-]+)", operands))
            # The result of a start operation has the operands beside what is received.
            result = sizes[own] - passed * (operation != kind and shape.startswith("("))
            size, over = times * max(result, passed), "async_collective_fusion_config" in attributes
            over = over or (operation != kind and _has_work(lines[place + 1 :], own))
            # XLA's TPU compiler writes a scatter of sums so.
            kind = "reduce-scatter" if name.startswith("all-reduce-scatter") else kind
            # One that is fused with work has a part in each of several computations.
            channel = re.search(r"channel_id=\d+", attributes)
            by_name[channel[0] if channel else own] = Collective(
                kind, times, size, times * over, size * over
            )
        turns = _count_turns(attributes, computations) if operation == "while" else 1
        branches = re.findall(r"branch_computations=\{(.*?)\}", attributes)
        for called in _CALLED.findall(attributes) + re.findall(r"[\w.\-]+", " ".join(branches)):
            _visit(called, times * turns, computations, by_name)


def _has_work(lines: Sequence[str], start: str) -> bool:
    """Return whether there is work before the operation that waits for one that has started."""
    end = re.compile(rf"-done\(%?{re.escape(start)}[,)]")
    first = next((line for line in lines if end.search(line) or _WORK.search(line)), "")
    return end.search(first) is None


def _count_turns(attributes: str, computations: Mapping[str, Sequence[str]]) -> int:
    """Return how often the body of a loop runs, 1 where the text does not say."""
    trip_counts = re.findall(r'"known_trip_count":\{"n":"(\d+)"', attributes)
    # TPU's compiler leaves it to the condition, which compares with a constant.
    condition = re.findall(r"condition=%?([\w.\-]+)", attributes)
    lines = [line for name in condition for line in computations.get(name, ())]
    limits = trip_counts or re.findall(r" constant\((\d+)\)", "\n".join(lines))
    return int(limits[0]) if len(limits) == 1 else 1


def _count_bytes(shape: str) -> int:
    arrays = re.findall(r"[a-z]+(\d*)\w*\[([\d,]*)\]", shape)
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * int(bits or 8) // 8
        for bits, sizes in arrays
    )
