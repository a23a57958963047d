"""Flags that FastNN's commands may bring along and that mean nothing here."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnusedFlags:
    """FastNN's flags that are taken and have no effect; a run says so.

    Arguments:
      protocol: of TensorFlow's servers; JAX's collectives choose their own.
      tensor_fusion_policy: XLA fuses by itself.
      tensor_fusion_max_bytes: XLA fuses by itself.
      communication_policy: the backend's collectives choose.
      job_name: there are no parameter servers.
      ps_hosts: there are no parameter servers.
      ps_count: there are no parameter servers.
      worker_count: --worker_hosts says it.
      inter_op_parallelism_threads: of TensorFlow's sessions.
      intra_op_parallelism_threads: of TensorFlow's sessions.
      colocate_gradients_with_ops: of TensorFlow's graphs.
      log_optimizer_vars_statistics: FastNN's code fails with it.
      file_pattern: never read in FastNN either.
      reader: never read in FastNN either.
      outputs: of Alibaba's platform.
      tables: of Alibaba's platform.
      buckets: of Alibaba's platform.
    """

    protocol: str = "grpc"
    tensor_fusion_policy: str = "default"
    tensor_fusion_max_bytes: int = 8 << 20
    communication_policy: str = "nccl_fullring"
    job_name: str = "worker"
    ps_hosts: str | None = None
    ps_count: int | None = None
    worker_count: int | None = None
    inter_op_parallelism_threads: int = 256
    intra_op_parallelism_threads: int = 96
    colocate_gradients_with_ops: bool = True
    log_optimizer_vars_statistics: bool = False
    file_pattern: str | None = None
    reader: str | None = None
    outputs: str | None = None
    tables: str | None = None
    buckets: str | None = None
