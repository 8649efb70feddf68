"""Profiles that were measured on a busy machine are doubted, tried and measured again.

They are stated: every row of `matmul` is said to take two seconds. It takes a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from slacktide.engine.time_share import TRIAL_EVERY
from slacktide.executors.cgroups import Memory
from slacktide.executors.onnx_file import OnnxFile
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository
from slacktide.profiles import LatencyTable, ProfileRecord
from slacktide.server.quiet_profiler import QuietProfiler

SECONDS = 2.0
TIMEOUT_US = round(0.7e6 * SECONDS)


def state_profile(zoo: Any, cpu_share: float | None) -> None:
    """Store a profile of `matmul` as if it had been measured."""
    (definition,) = Repository(zoo.root).read("matmul")
    file = OnnxFile(definition.model_path, definition.data_root)
    interface = file.interface(definition.settings.max_batch)
    assert interface is not None
    table = LatencyTable.linear(SECONDS, 0.0, interface.max_batch)
    record = ProfileRecord(table, {"x": (4,)}, cpu_share=cpu_share)
    document = {
        "record": record.to_dict(),
        "interface": interface.to_dict(),
        "dependence": "",
    }
    ProfileStore().save(definition, ProfileCache._key(definition), document)


class IdleMachine:
    """A machine that is as busy as a test says."""

    def __init__(self, utilization: float = 0.0, free: int = 1 << 40) -> None:
        self.utilization, self.free = utilization, free

    def cpu_utilization(self) -> float:
        return self.utilization

    def memory(self) -> Memory:
        return Memory(self.free, 0)


def profiler(app: Any, machine: IdleMachine, requests: Callable[[], int]) -> asyncio.Task[None]:
    """A profiler of `app` that sees gaps everywhere. Call it on the loop."""
    quiet = QuietProfiler(
        app._profiles,
        app.models,
        requests,
        machine,  # type: ignore[arg-type]
        look_s=0.01,
        quiet_s=0.001,
    )
    return asyncio.ensure_future(quiet.run())


def profiled_s(app: Any) -> float:
    """Seconds of a row by the profile that is in use."""
    table = app.catalog.find("matmul", None).pool.times.table
    return float(table.expected(1, table.cores[0]))


def test_trials_correct_a_profile_that_refuses_everything(
    zoo: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    zoo.matmul(settings="max_batch: 4\ncores: 1\n")
    state_profile(zoo, None)
    with serve(zoo) as house:
        call = house.matmul_call(timeout=TIMEOUT_US)
        statuses = [house.infer("matmul", call).status for _ in range(TRIAL_EVERY + 6)]
    assert statuses == [504] * TRIAL_EVERY + [200] * 6
    warnings = [text for text in caplog.messages if "were refused as" in text]
    assert len(warnings) == 1
    assert "matmul:1: all 5 requests so far were refused as shorter_than_alone" in warnings[0]


def test_a_busy_profile_is_measured_again_while_it_serves(
    zoo: Any, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    zoo.matmul(settings="max_batch: 4\ncores: 1\n")
    state_profile(zoo, 0.0)
    with caplog.at_level(logging.INFO, "slacktide.profiles"), serve(zoo) as house:
        assert any(
            "matmul:1 was measured while other programs used 100 % of these cores" in text
            for text in caplog.messages
        )
        task = house.look(lambda app: profiler(app, IdleMachine(), lambda: 0))
        while house.look(profiled_s) == SECONDS:
            assert house.infer("matmul", house.matmul_call()).status == 200
        house.look(lambda app: task.cancel())
        assert any("matmul:1 was measured again" in text for text in caplog.messages)
        assert house.infer("matmul", house.matmul_call(timeout=TIMEOUT_US)).status == 200


@pytest.mark.parametrize("why", ["busy", "memory", "requests"])
def test_nothing_is_measured_in_gaps_that_are_not_quiet(zoo: Any, serve: Any, why: str) -> None:
    zoo.matmul(settings="max_batch: 4\ncores: 1\n")
    state_profile(zoo, 0.0)
    machine = IdleMachine(0.9 if why == "busy" else 0.0, -1 if why == "memory" else 1 << 40)
    looks: list[int] = []

    def requests() -> int:
        looks.append(0)
        return len(looks) * (why == "requests")

    with serve(zoo) as house:
        task = house.look(lambda app: profiler(app, machine, requests))
        house.until(lambda app: len(looks) > 10, "it has looked")
        assert house.look(profiled_s) == SECONDS
        house.look(lambda app: task.cancel())


def test_a_model_that_is_unloaded_is_not_measured_again(zoo: Any, serve: Any) -> None:
    zoo.matmul(settings="max_batch: 4\ncores: 1\n")
    state_profile(zoo, 0.0)
    with serve(zoo, control_port=0) as house:
        assert house.look(lambda app: [*app._profiles.busy]) == ["matmul:1"]
        assert house.post("/v2/repository/models/matmul/unload").status == 200
        assert house.look(lambda app: [*app._profiles.busy]) == []
