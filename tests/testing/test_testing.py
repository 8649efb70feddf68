"""`slacktide.testing`: it needs no test framework and none of the extras."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from slacktide.domain import Reason, Replica
from slacktide.engine import Idle, Proposal
from slacktide.lab.simulation import SimulationError
from slacktide.scheduling import ArrivalPolicy, QueueOptions
from slacktide.testing import LinearTimes, VirtualWorld, make_request

EXTRAS = {"cv2", "grpc", "h2", "hypothesis", "matplotlib", "onnx", "onnxruntime", "pytest", "scipy"}


def test_it_imports_neither_extras_nor_a_test_framework() -> None:
    code = "import json, sys, slacktide.testing; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not EXTRAS & set(json.loads(done.stdout))


class Newest(ArrivalPolicy):
    """Runs the newest request, alone."""

    Options = QueueOptions

    def __init__(self, options: QueueOptions, *, max_batch: int, times: Any, view: Any) -> None:
        super().__init__(options, max_batch=max_batch)

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        waiting = self.pending()
        return Proposal((waiting[-1],), 1) if waiting else Idle()


def test_a_world_runs_a_scheduler_by_class_or_name() -> None:
    requests = [make_request(id, arrival=0.1 * id, slo=9.0) for id in range(3)]
    world = VirtualWorld(LinearTimes(0.0, 1.0), scheduler=Newest).run(*requests)
    assert world.batches == [(0.0, (0,)), (1.0, (2,)), (2.0, (1,))]
    world = VirtualWorld(LinearTimes(0.0, 1.0), max_batch=2).run(*requests)
    assert world.batches == [(0.0, (0,)), (1.0, (1, 2))]
    assert set(world.reasons.values()) == {Reason.ON_TIME}


def test_a_world_says_what_a_scheduler_did_wrong() -> None:
    class Twice(Newest):
        def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
            return Proposal(self.pending() * 2, 2) if self.pending() else Idle()

    world = VirtualWorld(LinearTimes(0.0, 1.0), scheduler=Twice)
    with pytest.raises(SimulationError, match="twice"):
        world.run(make_request(1, 0.0))
