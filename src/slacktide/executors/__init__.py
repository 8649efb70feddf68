"""Running models: worker processes, the server's own process, or a profile.

`ports` is the seam that drivers know; everything else here is behind it. This room starts replicas
and carries batches to them and results back. It decides nothing: not what runs, not when, and not
what follows a crash. ONNX Runtime is loaded only where a model is opened.

- `arena`, `budget`: shared memory for payloads, and how much of it may be used
- `process` (`spawner`, `nursery`, `worker_handle`, `worker`): a process for each replica
- `in_process`, `profiled`: the other two executors
- `session` (`model_file`, `interface`, `providers`, `tensor_io`, `padded_io`): opening and running
  a model; `ladder`: in several sessions
- `protocol`, `spawning`, `output_file`: what server and worker pass to each other
- `measuring` (`measuring_lengths`, `timed_replica`, `made_up`): timing a model, for its profile
- `allocator`, `quota`: giving a process its cores, by affinity or a control group
- `cores`, `memory` (`cgroups`): which cores and how much memory there is
"""

from slacktide.executors.allocator import AffinityAllocator, CpuAllocator, Grant
from slacktide.executors.arena import Arena, Slot
from slacktide.executors.budget import MemoryBudget, MemoryLimitExceeded, OwnerLimitExceeded
from slacktide.executors.cores import (
    HardwareFingerprint,
    available_cores,
    hardware_fingerprint,
    move_threads,
)
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.measuring import Measured, measure
from slacktide.executors.ports import (
    Aborted,
    Executor,
    Failed,
    Finished,
    InputArena,
    Lost,
    ModelSource,
    OutputTensor,
    Payload,
    Ready,
    ReplicaHandle,
    Report,
    Resized,
    SessionSize,
    TensorRef,
)
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.profiled import ProfiledExecutor
from slacktide.executors.providers import ModelError, load_onnxruntime
from slacktide.executors.quota import QuotaAllocator, QuotaUnavailableError, choose_allocator
from slacktide.executors.timed_replica import MeasuringError

__all__ = [
    "Aborted",
    "AffinityAllocator",
    "Arena",
    "CpuAllocator",
    "Executor",
    "Failed",
    "Finished",
    "Grant",
    "HardwareFingerprint",
    "InProcessExecutor",
    "InputArena",
    "Lost",
    "Measured",
    "MeasuringError",
    "MemoryBudget",
    "MemoryLimitExceeded",
    "ModelError",
    "ModelSource",
    "OutputTensor",
    "OwnerLimitExceeded",
    "Payload",
    "ProcessExecutor",
    "ProfiledExecutor",
    "QuotaAllocator",
    "QuotaUnavailableError",
    "Ready",
    "ReplicaHandle",
    "Report",
    "Resized",
    "SessionSize",
    "Slot",
    "TensorRef",
    "available_cores",
    "choose_allocator",
    "hardware_fingerprint",
    "load_onnxruntime",
    "measure",
    "move_threads",
]
