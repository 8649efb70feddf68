"""Runs models: in worker processes, in the server's own process, or from a profile.

`ports` is the interface for drivers. The package starts replicas, carries batches to them and
results back. It does not decide what runs, or when, or what follows a crash. ONNX Runtime is loaded
only where a model is opened.

- `hand_over`: carries batches to a worker process and back: `arena` is the shared memory of
  payloads, `protocol` and `output_file` the messages, `tensor_io` turns bytes into arrays
- `process` (`fork_client`, `fork_server`): a process for each replica
- `in_process`: executors without processes, one of which only simulates a model
- `shared_replicas`: variants of a file by image size, which share one process on a lane
- `onnx_runtime`, `onnx_file`: the library and its files
- `session` (`session_opener`): an open model; `session_pool`: one with several sessions
- `arranging`, `staged`: a model cut into stages, for early exits; `exit_frames`: its messages
- `images` (`jpeg_header`, `pictures`): decodes and resizes image inputs
- `measuring` (`timed_replica`, `synthetic_inputs`): times a model for its profile
- `row_check` (`rounding`): checks whether rows of a batch influence each other
- `allocator`: gives a process its cores, by affinity or a control group
- `cores`, `cgroups`: available cores and memory
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slacktide._faces import lazy_names

if TYPE_CHECKING:
    from slacktide.executors.allocator import AffinityAllocator as AffinityAllocator
    from slacktide.executors.allocator import Confirm as Confirm
    from slacktide.executors.allocator import CpuAllocator as CpuAllocator
    from slacktide.executors.allocator import Grant as Grant
    from slacktide.executors.core_probe import CoreProbe as CoreProbe
    from slacktide.executors.core_probe import busy_warning as busy_warning
    from slacktide.executors.cores import allowed_processors as allowed_processors
    from slacktide.executors.cores import pinned as pinned
    from slacktide.executors.hand_over.arena import Arena as Arena
    from slacktide.executors.hand_over.arena import map_read_only as map_read_only
    from slacktide.executors.hand_over.tensor_io import zero_outputs as zero_outputs
    from slacktide.executors.in_process import LoopReplica as LoopReplica
    from slacktide.executors.ports import BatchOrder as BatchOrder
    from slacktide.executors.ports import BatchOutputs as BatchOutputs
    from slacktide.executors.ports import Executor as Executor
    from slacktide.executors.ports import ModelSource as ModelSource
    from slacktide.executors.ports import OpenedModel as OpenedModel
    from slacktide.executors.ports import Outputs as Outputs
    from slacktide.executors.ports import Payload as Payload
    from slacktide.executors.ports import ReplicaHandle as ReplicaHandle
    from slacktide.executors.ports import Report as Report
    from slacktide.executors.ports import Reporter as Reporter
    from slacktide.executors.ports import Resized as Resized
    from slacktide.executors.ports import TensorRef as TensorRef
    from slacktide.executors.process import ProcessExecutor as ProcessExecutor
    from slacktide.executors.timed_replica import MeasuringError as MeasuringError
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "core_probe": "CoreProbe busy_warning",
            "timed_replica": "MeasuringError",
            "process": "ProcessExecutor",
            "allocator": "AffinityAllocator Confirm CpuAllocator Grant",
            "hand_over.arena": "Arena map_read_only",
            "cores": "allowed_processors pinned",
            "in_process": "LoopReplica",
            "ports": "BatchOrder BatchOutputs Executor ModelSource OpenedModel Outputs Payload "
            "ReplicaHandle Report Reporter Resized TensorRef",
            "hand_over.tensor_io": "zero_outputs",
        },
    )
