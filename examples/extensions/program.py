import json
import urllib.request

from doubling import DoublingExecutor
from logged_cores import LoggedCores
from outcome_counts import OutcomeCounts

import slacktide
from slacktide.domain import Datatype, ModelInterface, TensorSpec

rows = TensorSpec("x", Datatype.FP32, (-1, 2))
executor, observer = DoublingExecutor(ModelInterface((rows,), (rows,), 4)), OutcomeCounts()
body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]}]}
with slacktide.Server(
    "models", executors={"worker": executor}, cpu_allocator=LoggedCores(), observers=[observer]
) as server:
    url = f"http://127.0.0.1:{server.http_port}/v2/models/m/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
        print(json.load(answer)["outputs"][0]["data"], dict(observer.counts))
