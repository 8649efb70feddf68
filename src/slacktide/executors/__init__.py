"""Running models: worker processes, the server's own process, or a profile.

`ports` is the seam that drivers know; everything else here is behind it. This room starts replicas
and carries batches to them and results back. It decides nothing: not what runs, not when, and not
what follows a crash. ONNX Runtime is loaded only where a model is opened.

- `arena`: shared memory for payloads, and how much of it may be used
- `process` (`fork_client`, `fork_server`, `worker_handle`, `worker`): a process for each replica
- `in_process`, `profiled` (`loop_replica`): the other two executors
- `onnx_runtime`, `onnx_file`: the library and the files that it opens
- `session` (`tensor_io`): running a model; `session_pool`: in several sessions
- `protocol`, `fork_protocol`, `output_file`: what server and worker pass to each other
- `measuring` (`timed_replica`, `synthetic_inputs`): timing a model, for its profile
- `allocator`, `quota`: giving a process its cores, by affinity or a control group
- `cores`, `memory` (`cgroups`): which cores and how much memory there is
"""

from slacktide.executors.arena import Arena as Arena
from slacktide.executors.arena import MemoryBudget as MemoryBudget
from slacktide.executors.arena import MemoryLimitExceeded as MemoryLimitExceeded
from slacktide.executors.arena import OwnerLimitExceeded as OwnerLimitExceeded
from slacktide.executors.arena import Slot as Slot
from slacktide.executors.cores import available_cores as available_cores
from slacktide.executors.cores import hardware_fingerprint as hardware_fingerprint
from slacktide.executors.cores import move_threads as move_threads
from slacktide.executors.in_process import InProcessExecutor as InProcessExecutor
from slacktide.executors.onnx_runtime import ModelError as ModelError
from slacktide.executors.ports import BatchOutputs as BatchOutputs
from slacktide.executors.ports import Executor as Executor
from slacktide.executors.ports import ModelSource as ModelSource
from slacktide.executors.ports import OpenedModel as OpenedModel
from slacktide.executors.ports import Payload as Payload
from slacktide.executors.ports import ReplicaHandle as ReplicaHandle
from slacktide.executors.ports import Report as Report
from slacktide.executors.ports import Reporter as Reporter
from slacktide.executors.ports import Resized as Resized
from slacktide.executors.ports import SessionSize as SessionSize
from slacktide.executors.ports import TensorRef as TensorRef
from slacktide.executors.process import ProcessExecutor as ProcessExecutor
from slacktide.executors.profiled import ProfiledExecutor as ProfiledExecutor
from slacktide.executors.quota import QuotaAllocator as QuotaAllocator
from slacktide.executors.quota import QuotaUnavailableError as QuotaUnavailableError
