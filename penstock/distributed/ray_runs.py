"""Runs on a Ray cluster: Ray Train places the processes, and starts the group again.

The training is the same as under any launcher: each process joins the others, and goes on from the
checkpoints of the run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

from penstock._errors import check_count
from penstock._interrupts import SAME_SIGNAL_SECS
from penstock.distributed import exits, ray_worker
from penstock.distributed.exit_codes import AGAIN
from penstock.distributed.secret import make_variables
from penstock.distributed.waiting_times import check_secs

STATUS_OF_SIGTERM = 128 + signal.SIGTERM

# How long the processes may take to save, as under `penstock launch`.
_GRACE_SECS = 30.0
_PLATFORMS = {"tpu": "tpu,cpu", "gpu": "cuda,cpu", "cpu": "cpu"}

# Variables of the driver that begin so are the workers' too.
_PASSED_ON = ("JAX_", "XLA_", "PENSTOCK_", "LIBTPU_", "NCCL_", "NPROC")
_PLACING = {
    *("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT", "JAX_COORDINATOR_BIND_ADDRESS"),
    *("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"),
    *("PENSTOCK_LOCAL_RANK", "PENSTOCK_RESTARTS", exits.FIRST_FAILURE),
}
"""They say which process of which group this is; the workers are others."""

# How long Ray waits for JAX to leave a group that has failed; its own default is 30 s.
_SHUTDOWN_SECS = 10
_OBJECT_STORE_BYTES = 256 * 2**20


class RayRunError(RuntimeError):
    """Report that a run on Ray failed.

    Attributes:
      status: the exit status that `penstock launch` returns: 75 if all restarts are used up,
        otherwise the program's exit status.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def run_on_ray(
    function: Callable[[], object],
    *,
    num_processes: int | tuple[int, int],
    max_restarts: int = 0,
    address: str | None = None,
    storage_path: str | os.PathLike[str] | None = None,
    use_gpu: bool | None = None,
    use_tpu: bool | None = None,
    resources_per_process: Mapping[str, float] | None = None,
    hang_secs: float | None = None,
) -> object:
    """Run a function in several processes of a Ray cluster that train together.

    Ray Train's `JaxTrainer` starts the processes and joins them. Each calls the function in a
    thread. If a process is lost, all are restarted. A `Trainer` whose `checkpoint=` is in a folder
    that every machine can see then resumes from there. An error in the program ends the run.

    Arguments:
      function: a function without arguments, which is pickled. Bind arguments with
        `functools.partial`.
      num_processes: the number of processes, usually one for each machine. `(least, most)` uses as
        many as the cluster has room for, and restarts from the checkpoint when that changes.
      max_restarts: the number of restarts after a loss. Announced losses, such as the end of a spot
        instance, do not count.
      address: the address of the cluster, such as `"10.0.0.2:6379"`. By default `RAY_ADDRESS`, or a
        cluster on this machine. If there is none, Ray is started here and stops after the run.
      storage_path: where Ray stores its records of the run: a folder that all machines can see, or
        a URL such as `"gs://bucket/runs"`; by default `~/ray_results`.
      use_gpu: give each process GPUs; by default if the cluster has some.
      use_tpu: give each process TPUs; by default if the cluster has some.
      resources_per_process: the Ray resources of each process, such as `{"CPU": 8, "GPU": 8}`. By
        default one CPU, and with accelerators one GPU or the TPUs of a host.
      hang_secs: restart the processes if there has been no progress for this many seconds.

    Returns:
      The return value of the function in process 0.

    Raises:
      RayRunError: a process failed, and its traceback is in the notes; or the restarts are used up.
      SystemExit: SIGTERM was received, and the processes have saved.
      ModuleNotFoundError: Ray is not installed.
    """
    counts = _read_counts(num_processes)
    check_count("max_restarts", max_restarts, 0)
    if use_gpu and use_tpu:
        raise ValueError("use_gpu and use_tpu got True, expected one of them. Leave one out.")
    check_secs("hang_secs", hang_secs)
    ray = ray_worker.load_ray("run_on_ray")
    with _connect(ray, address, counts[1]):
        platform = _choose_platform(ray.cluster_resources(), use_gpu, use_tpu)
        record = _start_record(ray)
        run_config = ray.train.RunConfig(
            name=f"penstock-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
            storage_path=_make_absolute(storage_path),
            failure_config=ray.train.FailureConfig(max_failures=max_restarts),
            callbacks=[ray_worker.make_callback(record)],
            # Below it Ray tells of its own workings, with stacks of its controller.
            logging_config=ray.train.LoggingConfig(log_level="WARNING"),
            worker_runtime_env={"env_vars": _environment(platform, hang_secs)},
        )
        scaling = _make_scaling(ray, counts, platform, resources_per_process)
        return _fit(ray, function, record, scaling, run_config)


def launch_on_ray(
    words: Sequence[str],
    *,
    num_processes: int,
    min_processes: int | None = None,
    max_restarts: int = 0,
    address: str | None = None,
    hang_secs: float | None = None,
) -> int:
    """Run a command line in several processes of a Ray cluster: `penstock launch --on ray`.

    Arguments:
      words: what follows `--` on the command line: a penstock command, a `.py` file, or `-m` and a
        module, followed by arguments. Paths are those of the driver; all machines must share them.
      num_processes: the number of processes; with `min_processes`, the maximum.
      min_processes: the minimum; the run then uses as many as the cluster has room for.
      max_restarts, address, hang_secs: as for `run_on_ray`.

    Returns:
      The exit status: 0 after success, 75 when the restarts are used up, 130 after Ctrl-C, 143
      after SIGTERM, otherwise the program's exit status.

    Raises:
      ValueError: there are no words to run.
      ModuleNotFoundError: Ray is not installed.
    """
    if not words or words == ["-m"]:
        raise ValueError(
            f"words got {list(words)!r}, expected what to run, such as "
            "['train', '--dataset_name=cifar10']. Put it after `--`."
        )
    counts = num_processes if min_processes is None else (min_processes, num_processes)
    try:
        run_on_ray(
            partial(ray_worker.run_words, list(words)),
            num_processes=counts,
            max_restarts=max_restarts,
            address=address,
            hang_secs=hang_secs,
        )
    except RayRunError as error:
        lines = [*getattr(error, "__notes__", ()), f"penstock launch: {error}"]
        print(*lines, sep="\n", file=sys.stderr, flush=True)
        return error.status
    except KeyboardInterrupt:
        print("\npenstock launch: interrupted", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
    except SystemExit as request:
        # Before the run has begun Ray raises the signal's number.
        if request.code not in (signal.SIGTERM, STATUS_OF_SIGTERM):
            raise
        print("penstock launch: ended by SIGTERM", file=sys.stderr, flush=True)
        return STATUS_OF_SIGTERM
    return 0


def _read_counts(num_processes: int | tuple[int, int]) -> tuple[int, int]:
    counts = num_processes if isinstance(num_processes, tuple) else (num_processes,) * 2
    for count in counts:
        check_count("num_processes", count, 1)
    if len(counts) != 2 or counts[0] > counts[1]:
        raise ValueError(
            f"num_processes got {num_processes!r}, expected a number, or two with the least before "
            "the most. Pass 8, or (4, 8)."
        )
    return int(counts[0]), int(counts[1])


@contextlib.contextmanager
def _forwarding_sigterm(ray: Any, record: Any) -> Iterator[None]:
    """Have SIGTERM ask all processes to save and end; a second one ends at once.

    So does the end of the grace. Outside the main thread signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came_at: list[float] = []

    def end_at_once() -> None:
        came_at[0] = 0.0
        os.kill(os.getpid(), signal.SIGTERM)

    def ask() -> None:
        exits.say(f"SIGTERM: the processes save and end, within {_GRACE_SECS:g} s")
        grace.start()
        # A run that still waits for machines has nothing to save.
        if not ray.get(record.request_end.remote()):
            end_at_once()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not came_at:
            came_at.append(time.monotonic())
            # Not here: this thread waits for Ray.
            threading.Thread(target=ask, daemon=True).start()
        # A launcher and the queue behind it may both pass it on: one wish.
        elif time.monotonic() - came_at[0] >= SAME_SIGNAL_SECS:
            raise SystemExit(STATUS_OF_SIGTERM)

    grace = threading.Timer(_GRACE_SECS, end_at_once)
    grace.daemon = True
    previous = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    except SystemExit:
        # Where it waits Ray raises one with a sentence as its code, which makes a status of 1.
        if came_at:
            raise SystemExit(STATUS_OF_SIGTERM) from None
        raise
    finally:
        grace.cancel()
        # None: of a handler that was not installed from Python.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


@contextlib.contextmanager
def _connect(ray: Any, address: str | None, num_processes: int) -> Iterator[None]:
    """Be connected with a cluster: the one there is, or one on this machine for the time being."""
    if ray.is_initialized():
        yield
        return
    environment = {"env_vars": {"JAX_DISTRIBUTED_SHUTDOWN_TIMEOUT_S": str(_SHUTDOWN_SECS)}}
    try:
        ray.init(address=address or "auto", runtime_env=environment)
    except ConnectionError:
        if address is not None or os.environ.get("RAY_ADDRESS"):
            raise
        ray.init(
            address="local",
            # A process more than there are cores runs slower; Ray would wait for a core for ever.
            num_cpus=max(num_processes, os.cpu_count() or 1),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            runtime_env={**environment, "worker_process_setup_hook": ray_worker.quieten_cleaner},
        )
    try:
        yield
    finally:
        ray.shutdown()


def _choose_platform(total: Mapping[str, float], use_gpu: bool | None, use_tpu: bool | None) -> str:
    """Return "tpu", "gpu" or "cpu": what is asked for, or what the cluster has."""
    wants_cpu = os.environ.get("JAX_PLATFORMS", "").startswith("cpu")
    for platform, name, is_wanted in (("tpu", "TPU", use_tpu), ("gpu", "GPU", use_gpu)):
        has_some = bool(total.get(name)) and not wants_cpu
        if is_wanted or (is_wanted is None and has_some and not (use_gpu or use_tpu)):
            return platform
    return "cpu"


def _make_scaling(
    ray: Any, counts: tuple[int, int], platform: str, resources: Mapping[str, float] | None
) -> Any:
    scaling = ray.train.ScalingConfig(
        num_workers=counts[0] if counts[0] == counts[1] else counts,
        use_gpu=platform == "gpu",
        use_tpu=platform == "tpu",
        resources_per_worker=dict(resources) if resources else None,
        **(_find_slice(ray) if platform == "tpu" else {}),
    )
    _say_what_is_missing(scaling, counts[0], ray.cluster_resources())
    return scaling


def _find_slice(ray: Any) -> dict[str, str]:
    """Return topology and type of the cluster's TPUs, which Ray asks for."""
    labels = [node.get("Labels", {}) for node in ray.nodes() if node.get("Alive")]
    topologies = [t for node_labels in labels if (t := node_labels.get("ray.io/tpu-topology"))]
    options = {"topology": topologies[-1]} if topologies else {}
    for name in ray.cluster_resources():
        kind, _, value = name.partition(":")
        if kind == "accelerator_type" and value.startswith("TPU"):
            options[kind] = value
    return options


def _say_what_is_missing(scaling: Any, num_processes: int, resources: Mapping[str, float]) -> None:
    """Say what the cluster has too little of; a cluster that grows gets it, another waits."""
    for name, total in scaling.total_resources.items():
        wanted = total / scaling.max_workers * num_processes
        if wanted > resources.get(name, 0):
            exits.say(
                f"{num_processes} processes need {wanted:g} {name}, the Ray cluster has "
                f"{resources.get(name, 0):g}. Waiting for more; Ctrl-C gives up."
            )


def _start_record(ray: Any) -> Any:
    # On the driver's machine: without it the run is over anyway.
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    return ray.remote(num_cpus=0, scheduling_strategy=here)(ray_worker.RunRecord).remote()


def _make_absolute(storage_path: str | os.PathLike[str] | None) -> str | None:
    if storage_path is None:
        return None
    text = os.fspath(storage_path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def _environment(platform: str, hang_secs: float | None) -> dict[str, str]:
    """Return what the workers find in their environment beside the machine's own."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_PASSED_ON) and name not in _PLACING
    }
    # Ray would turn prints into lines of its log, on stderr.
    own = {"JAX_PLATFORMS": _PLATFORMS[platform], "RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
    hang = {} if hang_secs is None else {"PENSTOCK_HANG_SECS": str(hang_secs)}
    return {**passed, **make_variables(os.environ), **own, **hang}


def _fit(
    ray: Any, function: Callable[[], object], record: Any, scaling: Any, run_config: Any
) -> object:
    """Return what process 0 returned; raise what ended the run otherwise."""
    task = {"function": ray.cloudpickle.dumps(function), "record": record}
    trainer = _make_trainer_class(ray)(
        ray_worker.work,
        train_loop_config={**task, "directory": os.getcwd()},
        # Only with one of the two it joins the workers in JAX. On CPU `use_gpu` does no more,
        # since JAX_PLATFORMS is there.
        jax_config=ray.train.v2.jax.JaxConfig(use_tpu=scaling.use_tpu, use_gpu=not scaling.use_tpu),
        scaling_config=scaling,
        run_config=run_config,
    )
    try:
        with _forwarding_sigterm(ray, record):
            return ray.cloudpickle.loads(trainer.fit().return_value)
    except ray.train.TrainingFailedError as lost:
        failure: ray_worker.Failure | None = ray.get(record.failure.remote())
        if failure is not None and failure.status == STATUS_OF_SIGTERM:
            raise SystemExit(STATUS_OF_SIGTERM) from None
        if failure is None:
            allowed = run_config.failure_config.max_failures
            # Of workers; of its controller Ray has words alone.
            losses = getattr(lost, "worker_failures", None)
            text = f"{str(lost).strip()}." if losses is None else ray_worker.describe_losses(losses)
            raise RayRunError(f"{text} No restart is left of {allowed}.", AGAIN) from None
        error = RayRunError(failure.sentence, failure.status)
        if failure.trace:
            error.add_note(f"There, Python says:\n{failure.trace.rstrip()}")
        raise error from None


def _make_trainer_class(ray: Any) -> Any:
    """Return Ray's trainer with Ctrl-C as elsewhere: at once, also while it waits for machines."""

    class Trainer(ray.train.v2.jax.JaxTrainer):
        _controller: Any = None

        # Ray's own handler asks the controller to end, which answers only between two attempts to
        # get machines, and then ends the driver with a status of 0.
        def _register_sigint_handler(self, controller: Any) -> None:
            self._controller = controller

        def fit(self) -> Any:
            try:
                return super().fit()
            except (KeyboardInterrupt, SystemExit):
                # The workers end with it.
                if self._controller is not None:
                    ray.kill(self._controller)
                raise

    return Trainer
