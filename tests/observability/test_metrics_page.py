"""The page that Prometheus reads: what it says, that it parses, that the manual names all of it."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slacktide.cluster import PodAllocator
from slacktide.domain import (
    BatchFinished,
    BatchTiming,
    Deployment,
    Event,
    ExitMode,
    ExitPolicy,
    ExitReport,
    LaneResized,
    LaneSpec,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    Request,
    Route,
    Submitted,
    TimerFired,
)
from slacktide.domain.events import Announced
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.engine import Engine, PoolParts
from slacktide.engine.request_table import ModelCounts
from slacktide.executors.hand_over.arena import Arena, MemoryBudget
from slacktide.executors.ports import Resized, SessionSize
from slacktide.frontends.http import HttpServer
from slacktide.models.calls.model_counters import BUDGET_BOUNDS, LATENCY_BOUNDS, ModelCounters
from slacktide.models.repository.early_exit import EarlyExitSettings
from slacktide.models.repository.repository import ModelDefinition
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.resize_tracker import ResizeTracker
from slacktide.models.versions import Catalog, LoadedVersion, VersionState
from slacktide.observability.metrics import Metrics, metrics_routes
from slacktide.observability.metrics.families import OLD_NAMES, write
from slacktide.observability.metrics.metrics import CONTENT_TYPE
from slacktide.observability.metrics.own import CONDITIONS, server_families
from slacktide.observability.metrics.triton import FAILURES, failure_of
from slacktide.observability.metrics.usage import Gpu
from slacktide.planning.exits import ExitsPlanner, ExitsStatus
from slacktide.planning.pipelines import ServerPipelinesPlanner, make_placement
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.variants import VariantsPlanner
from slacktide.profiles import ClassedTimes, LatencyTable
from slacktide.runtime import Runtime
from slacktide.scheduling import make_scheduler
from slacktide.server.calls.sessions import Sessions
from slacktide.server.statistics import exit_statistics

MANUAL = Path(__file__).parents[2] / "docs" / "metrics.md"
TABLE = LatencyTable((1,), (1,), ((0.01,),), ((0.012,),), ((0,),))
TIMING = BatchTiming(input_s=0.001, infer_s=0.008, output_s=0.001)


class FakeGpus:
    def gpus(self) -> tuple[Gpu, ...]:
        return (Gpu("GPU-5e2c", 0.25, 85899345920, 1073741824, 61.5), Gpu("GPU-0b", *[None] * 4))


class World:
    """A real engine and catalog with models that nothing runs."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.budget = MemoryBudget(1 << 20)
        self.engine = Engine(self._parts)
        self._versions: dict[PoolId, LoadedVersion] = {}
        self.scaling = ScalingPlanner((0, 1))
        self.runtime = Runtime(self.engine, (self.scaling,))
        self.exits = ExitsPlanner()
        self.resizes = ResizeTracker(lambda: self.now, lambda event: None)
        self.now = 0.0
        workers = SimpleNamespace(fork_server_pid=os.getpid(), worker_pids=(os.getpid(),))
        self.metrics = Metrics(
            self.catalog,
            self.runtime,
            self.budget,
            self.scaling,
            VariantsPlanner(),
            self.exits,
            self.resizes,
            Sessions(self.catalog, print, lambda: self.now, print, 10).sums,
            placement=ServerPipelinesPlanner(make_placement("pipeline"), lambda: None),
            process_executor=workers,
            nvml=FakeGpus(),
            pod=PodAllocator(SimpleNamespace()),
        )

    def _parts(self, pool: PoolId, max_batch: int, view: Any) -> PoolParts:
        times = self._versions[pool].pool.times
        return PoolParts(
            make_scheduler("fifo", {}, max_batch=max_batch, times=times, view=view), times
        )

    def load(
        self,
        name: str,
        version: str = "1",
        *,
        generation: int = 0,
        counters: ModelCounters | None = None,
        settings: ModelSettings = ModelSettings(),  # noqa: B008
    ) -> LoadedVersion:
        nothing: Any = None
        loaded = LoadedVersion(
            name,
            version,
            generation,
            ModelDefinition(name, version, Path(), Path(), settings, {}),
            ModelInterface((), (TensorSpec("y", Datatype.FP32, (-1,)),), 8),
            Arena(1 << 16, budget=self.budget),
            nothing,
            counters or ModelCounters(),
            VersionState.READY,
        )
        pool = loaded.add_pool(nothing, ClassedTimes(TABLE))
        self._versions[pool.id] = loaded
        self.catalog.add(loaded)
        self.catalog.serve(name, {version: loaded})
        return loaded

    def deploy(self, *loaded: LoadedVersion) -> None:
        lanes = (LaneSpec("shared", (0,)),)
        deployments = tuple(Deployment(version.pool.id, "shared", 8) for version in loaded)
        routes = tuple(Route(v.name, v.pool.id, version=v.pin) for v in loaded)
        self.engine.handle(PlanChanged(Plan(lanes, deployments, routes)), now=0.0)

    def page(self) -> str:
        return b"".join(self.metrics.pieces()).decode()

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Sample name → label values, without model and version of `mlp:1` → value."""
        values_by_name: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.page()):
            for sample in family.samples:
                # The parser gives every counter the suffix that Triton's do not have.
                name = sample.name
                if name.startswith("nv_"):
                    name = name.removesuffix("_total")
                labels = dict(sample.labels)
                if (labels.get("model"), labels.get("version")) == ("mlp", "1"):
                    del labels["model"], labels["version"]
                values = tuple(labels.values())
                values_by_name.setdefault(name, {})[values] = sample.value
        return values_by_name

    def close(self) -> None:
        for loaded in self._versions.values():
            loaded.arena.close()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def families(page: str) -> dict[str, str]:
    """Name → type, as the page declares them."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))


def documented(manual: str) -> dict[str, str]:
    rows = re.findall(r"^\| `(\w+)` \| (?:(\w+) \||(histogram):)?", manual, re.MULTILINE)
    return {
        name: kind or histogram or ("counter" if name.endswith("_total") else "gauge")
        for name, kind, histogram in rows
    }


def test_every_family_is_in_the_manual_with_its_kind_and_no_other(world: World) -> None:
    world.load("mlp")
    exposed, manual = families(world.page()), MANUAL.read_text()
    for now, before in OLD_NAMES.items():
        assert exposed.pop(before) == exposed[now]
        assert f"| `{now}` | `{before}` |" in manual
    assert exposed == documented(manual)


def test_the_manual_names_every_outcome_and_state(world: World) -> None:
    manual = MANUAL.read_text()
    world.load("mlp")
    for name, column in (("slacktide_outcomes_total", 0), ("slacktide_replicas", 0)):
        values = {labels[column] for labels in world.samples()[name]}
        assert all(f"`{value}`" in manual for value in values)


def test_no_family_is_declared_twice_and_all_have_help(world: World) -> None:
    world.load("mlp")
    page = world.page()
    names = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(names) == len(set(names)) > 40
    assert len(re.findall(r"^# HELP \S+ \S", page, re.MULTILINE)) == len(names)


def test_costs_and_findings_of_profiling(world: World) -> None:
    loaded = world.load("mlp")
    counts = loaded.counters.samples
    counts.run, counts.run_s, counts.delayed, counts.delayed_s = 5, 0.25, 2, 0.03
    counts.isolated = 4
    assert "slacktide_run_class_seconds" not in world.samples()
    loaded.pool.times.train({"short": [0.1] * 30, "long": [4.0] * 10})
    loaded.pool.times.observe(0.01, (Request(1, "mlp", 0.0, 1.0, application="new"),), 1, 1)
    samples = world.samples()
    assert samples["slacktide_profiling_runs_total"] == {(): 5}
    assert samples["slacktide_isolated_requests_total"] == {(): 4}
    assert samples["slacktide_profiling_seconds_total"] == {(): 0.25}
    assert samples["slacktide_profiling_delayed_requests_total"] == {(): 2}
    assert samples["slacktide_profiling_delay_seconds_total"] == {(): 0.03}
    assert samples["slacktide_profiling_backlog"] == {(): 0}
    assert samples["slacktide_unknown_run_keys"] == {(): 2}
    loaded.pool.times.train({"long": [4.0] * 30})
    samples = world.samples()
    assert samples["slacktide_unknown_run_keys"] == {(): 1}
    short, long = (samples["slacktide_run_class_seconds"][of,] for of in "01")
    assert long > 20 * short
    assert sum(samples["slacktide_run_class_share"].values()) == pytest.approx(1.0)


def test_counters_equal_the_tallies(world: World) -> None:
    counters = world.load("mlp").counters
    counters.load_s = 1.5
    counters.executed(3, TIMING, 1)
    counters.answered(Outcome(Reason.ON_TIME, 1.0, 0.002, 0.010, 3, 0.030), 2, TIMING)
    counters.answered(Outcome(Reason.AFTER_DEADLINE, 1.0, 0.2, 0.010, 3, -0.02), 1, TIMING)
    for reason in (Reason.HOPELESS, Reason.QUEUE_FULL, Reason.QUEUE_FULL, Reason.BAD_INPUT):
        counters.answered(Outcome(reason, 1.0), 1, None)
    for reason in (Reason.CRASHED, Reason.DISCONNECTED):
        counters.answered(Outcome(reason, 1.0), 1, None)
    counters.crashes = 2
    samples = world.samples()

    assert samples["nv_inference_request_success"] == {(): 2}
    assert samples["nv_inference_request_failure"] == {
        ("REJECTED",): 3,
        ("CANCELED",): 1,
        ("BACKEND",): 1,
        ("OTHER",): 1,
    }
    assert samples["nv_inference_count"] == {(): 3}
    assert samples["nv_inference_exec_count"] == {(): 1}
    assert samples["nv_inference_request_duration_us"] == {(): 222000}
    assert samples["nv_inference_queue_duration_us"] == {(): 202000}
    assert samples["nv_inference_compute_input_duration_us"] == {(): 2000}
    assert samples["nv_inference_compute_infer_duration_us"] == {(): 16000}
    assert samples["nv_inference_compute_output_duration_us"] == {(): 2000}
    assert samples["nv_model_load_duration_secs"] == {(): 1.5}
    assert samples["slacktide_crashes_total"] == {(): 2}

    outcomes = samples["slacktide_outcomes_total"]
    expected = {(reason.kind.value, reason.label): 0 for reason in Reason}
    expected.update({(r.kind.value, r.label): n for r, n in counters.by_reason.items()})
    assert outcomes == expected
    assert sum(outcomes.values()) == 8


def test_histograms_are_cumulative_and_agree_with_the_tally(world: World) -> None:
    counters = world.load("mlp").counters
    for queue_s, budget_s in ((0.002, 0.5), (0.3, -0.2), (20.0, -9.0)):
        counters.answered(Outcome(Reason.ON_TIME, 0.0, queue_s, 0.010, 1, budget_s), 1, None)
    counters.executed(300, TIMING, 1)
    samples = world.samples()

    queue = [samples["slacktide_queue_seconds_bucket"][(f"{le:g}",)] for le in LATENCY_BOUNDS]
    assert queue == sorted(queue)
    assert queue[LATENCY_BOUNDS.index(0.0025)] == 1
    assert samples["slacktide_queue_seconds_bucket"][("+Inf",)] == 3
    assert samples["slacktide_queue_seconds_count"] == {(): 3}
    assert samples["slacktide_queue_seconds_sum"][()] == pytest.approx(20.302)
    assert samples["slacktide_batch_rows_bucket"][("256",)] == 0
    assert samples["slacktide_batch_rows_bucket"][("+Inf",)] == 1

    budget = samples["slacktide_budget_at_completion_seconds_bucket"]
    assert [budget[(f"{le:g}",)] for le in BUDGET_BOUNDS[:2]] == [1, 2]
    assert budget[("0",)] == 2
    assert budget[("+Inf",)] == 3
    assert "slacktide_budget_at_completion_seconds_sum" not in samples

    first = samples["nv_inference_first_response_histogram_ms_bucket"]
    assert first[("0.1",)] == 0
    assert first[("25",)] == 1
    assert first[("+Inf",)] == samples["nv_inference_first_response_histogram_ms_count"][()] == 3
    total = samples["nv_inference_first_response_histogram_ms_sum"][()]
    assert total == pytest.approx(20332)


def test_numbers_have_no_exponent(world: World) -> None:
    counters = world.load("mlp").counters
    counters.end_to_end_s.add(150754.811904)
    counters.rows_served = 10**20
    page = world.page()
    assert 'nv_inference_request_duration_us{model="mlp",version="1"} 150754811904\n' in page
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert len(lines) > 100
    assert all(re.fullmatch(r"\w+(\{[^}]*\})? \d+(\.\d+)?", line) for line in lines)
    assert not any(line.startswith("nv_") and "_total{" in line for line in lines)


def test_perf_analyzer_finds_the_gpus(world: World) -> None:
    """Its pattern, from its source: a newline before, one label, digits and one point."""
    page = world.page()
    gauges = {
        name: re.findall(r"\n" + name + r"\{gpu_uuid=\"([^\"]+)\"\} (\d+\.?\d*)", page)
        for name in (
            "nv_gpu_utilization",
            "nv_gpu_power_usage",
            "nv_gpu_memory_used_bytes",
            "nv_gpu_memory_total_bytes",
        )
    }
    assert gauges == {
        "nv_gpu_utilization": [("GPU-5e2c", "0.25")],
        "nv_gpu_power_usage": [("GPU-5e2c", "61.5")],
        "nv_gpu_memory_used_bytes": [("GPU-5e2c", "1073741824")],
        "nv_gpu_memory_total_bytes": [("GPU-5e2c", "85899345920")],
    }


def test_label_values_are_escaped(world: World) -> None:
    hostile = 'a"b\\c\nd} 1\nforged 2'
    world.load(hostile)
    names = set()
    for family in text_string_to_metric_families(world.page()):
        assert family.name != "forged"
        for sample in family.samples:
            if "model" in sample.labels:
                assert sample.labels["model"] == hostile
                names.add(sample.name.partition("_")[0])
    assert names == {"nv", "slacktide"}


@pytest.mark.parametrize("reason", Reason)
def test_every_failure_has_tritons_word(reason: Reason) -> None:
    computed = reason.kind in (OutcomeKind.SERVED, OutcomeKind.LATE)
    assert (failure_of(reason) is None) == computed
    assert computed or failure_of(reason) in FAILURES


def test_where_requests_and_replicas_are(world: World) -> None:
    mlp, other = world.load("mlp"), world.load("other")
    world.deploy(mlp, other)
    samples = world.samples()
    assert samples["slacktide_replicas"][("starting",)] == 1
    world.engine.handle(ReplicaUp(0), now=0.1)
    for id in range(3):
        request = Request(id, "mlp", 0.1, 9.0, version=mlp.pin)
        world.engine.handle(Submitted(request), now=0.1)
    notice = Notice(3, "mlp", 0.1, 9.0, payload_bytes=10, complete_at=0.5, version=mlp.pin)
    world.engine.handle(Announced(notice), now=0.1)
    mlp.in_flight = 4
    slot = mlp.arena.allocate(1000)
    samples = world.samples()

    assert samples["slacktide_running_requests"] == {(): 1, ("other", "1"): 0}
    assert samples["slacktide_queue_requests"] == {(): 2, ("other", "1"): 0}
    assert samples["nv_inference_pending_request_count"] == {(): 2, ("other", "1"): 0}
    assert samples["slacktide_announced_requests"] == {(): 1, ("other", "1"): 0}
    assert samples["slacktide_in_flight_requests"] == {(): 4, ("other", "1"): 0}
    assert samples["slacktide_lane_busy"] == {("shared",): 1}
    assert samples["slacktide_lane_cores"] == {("shared",): 1}
    assert samples["slacktide_replicas"][("up",)] == 1
    assert samples["slacktide_payload_bytes"] == {(): mlp.arena.bytes_in_use, ("other", "1"): 0}
    assert samples["slacktide_payload_in_use_bytes"] == {(): mlp.arena.bytes_in_use}
    assert mlp.arena.bytes_in_use >= 1000
    assert samples["slacktide_payload_limit_bytes"] == {(): 1 << 20}

    mlp.arena.free(slot)
    world.engine.handle(BatchFinished(0, TIMING), now=0.2)
    world.engine.handle(ReplicaLost(0, "killed"), now=0.3)
    samples = world.samples()
    assert samples["slacktide_replicas"][("backoff",)] == 1
    assert samples["slacktide_payload_in_use_bytes"] == {(): 0}


def test_targets_and_costs_of_scaling(world: World) -> None:
    mlp = world.load("mlp")
    mlp.pool.sessions = (SessionSize(2, 3000), SessionSize(1, 1000))
    base = Plan((LaneSpec("mlp", (0,)),), (Deployment(mlp.pool.id, "mlp", 8),), ())
    scaled = {"mlp": ScaledModel(ScalingLimits(1, 2, batch_max=8), "static", {"batch": 4})}
    plan = world.runtime.rebase(base, scaled, now=1.0)
    turns: list[tuple[float, list[Event]]] = [
        (1.0, [PlanChanged(plan)]),
        (1.5, [ReplicaUp(0)]),
        (2.0, [TimerFired()]),
    ]
    for at, events in turns:
        world.runtime.handle(events, now=at)
    world.resizes.begin("mlp", (0, 1), [0])
    samples = world.samples()
    assert samples["slacktide_lane_cores"] == {("mlp",): 1}
    assert samples["slacktide_lane_target_cores"] == {("mlp",): 2}
    assert samples["slacktide_target_cores"] == {("mlp",): 2}
    assert samples["slacktide_target_replicas"] == {("mlp",): 1}
    assert samples["slacktide_planned_batch_rows"] == {("mlp",): 4}
    assert samples["slacktide_predicted_late_requests"] == {("mlp",): 0}
    assert samples["slacktide_plan_reason"] == {("mlp", "static"): 1}
    conditions = {name: value for (_, name), value in samples["slacktide_plan_condition"].items()}
    assert {name for name, value in conditions.items() if value} == {"unconfirmed"}
    assert len(conditions) == len(CONDITIONS)
    assert samples["slacktide_plans_total"] == {(): 1}
    assert samples["slacktide_resizes_total"][("confirmed",)] == 0
    assert samples["slacktide_session_bytes"] == {("2",): 3000, ("1",): 1000}

    world.now = 0.03
    world.resizes.reported("mlp", 0, Resized((0, 1)), intended=(0,))
    world.runtime.handle([LaneResized("mlp", (0, 1))], now=3.0)
    samples = world.samples()
    assert samples["slacktide_lane_cores"] == {("mlp",): 2}
    assert not any(samples["slacktide_plan_condition"].values())
    assert samples["slacktide_resizes_total"][("confirmed",)] == 1
    assert samples["slacktide_resize_seconds_bucket"][("0.02",)] == 0
    assert samples["slacktide_resize_seconds_bucket"][("0.05",)] == 1
    assert world.runtime.usage.totals(now=4.0) == {"mlp": 4.0}


EXITING = ModelSettings(early_exit=EarlyExitSettings())


def exits_of(world: World, **changed: Any) -> LoadedVersion:
    """A model with early exits of which two are active, and what is known of it."""
    loaded = world.load("mlp", settings=EXITING)
    assert loaded.exits is not None
    loaded.exits.learnt(3, ("a", "b", "c"), ("y",))
    policy = ExitPolicy(loaded.pool.id, (0, 2), (0.25, 0.0), ExitMode.SHRINK, 0.1, 3)
    status = ExitsStatus(policy, {0: 0.75}, {0: 9}, 90, 0.995, 80, 1, 2, 1.5, 0.02, 3, 1, "paid")
    world.exits.status = lambda: {loaded.pool.id: replace(status, **changed)}
    report = ExitReport((0, 2), ((0.1,), (0.6, 0.1)), ((True,), (False, True)), (0, -1), (0.002,))
    loaded.counters.judge(report, 0.010)
    loaded.counters.answered(Outcome(Reason.EARLY_EXIT, 1.0, ramp=0), 1, TIMING)
    loaded.counters.answered(Outcome(Reason.ON_TIME, 1.0), 1, TIMING)
    return loaded


def test_how_requests_leave_models_early(world: World) -> None:
    exits_of(world)
    world.load("plain")
    samples = world.samples()
    assert samples["slacktide_early_exits_total"] == {("0", "a"): 1}
    assert samples["slacktide_exit_judged_rows_total"] == {("0", "a"): 2, ("2", "c"): 1}
    assert samples["slacktide_exit_agreeing_rows_total"] == {("0", "a"): 1, ("2", "c"): 1}
    assert samples["slacktide_exit_saved_seconds_total"] == {(): pytest.approx(0.008)}
    assert samples["slacktide_exit_accuracy"] == {(): 0.995}
    assert samples["slacktide_exit_agreement"] == {("0", "a"): 0.75}
    assert samples["slacktide_exit_threshold"] == {("0", "a"): 0.25, ("2", "c"): 0.0}
    assert samples["slacktide_exit_mode"] == {("release",): 0, ("shrink",): 1, ("auto",): 0}
    assert samples["slacktide_exit_feedback_ratio"] == {(): 0.1}
    assert samples["slacktide_exit_overhead_ratio"] == {(): 0.02}
    assert samples["slacktide_exit_revision"] == {(): 3}
    assert samples["slacktide_exit_alarms_total"] == {(): 2}


def test_a_model_that_is_refused_early_exits_has_no_thresholds(world: World) -> None:
    exits_of(world, policy=None, judged=0, overhead=None)
    samples = world.samples()
    for name in ("accuracy", "threshold", "mode", "feedback_ratio", "overhead_ratio"):
        assert f"slacktide_exit_{name}" not in samples
    assert samples["slacktide_exit_revision"] == {(): 3}


def test_statistics_say_how_a_model_is_left_early_and_why_not(world: World) -> None:
    loaded = exits_of(world)
    status = world.exits.status()[loaded.pool.id]
    assert exit_statistics(loaded, status)["exit_stats"] == {
        "revision": 3,
        "reason": "paid",
        "accuracy": 0.995,
        "alarms": 2,
        "overhead": 0.02,
        "mode": "shrink",
        "feedback": 0.1,
        "hold": "",
        "lacking_rows": 0,
        "classes": [],
        "applications": [],
        "ramps": [
            {
                "position": 0,
                "tensor": "a",
                "threshold": 0.25,
                "request_count": 1,
                "judged_rows": 2,
                "agreeing_rows": 1,
            },
            {
                "position": 2,
                "tensor": "c",
                "threshold": 0.0,
                "request_count": 0,
                "judged_rows": 1,
                "agreeing_rows": 1,
            },
        ],
    }
    assert loaded.exits is not None
    loaded.exits.refusal = "no position"
    assert exit_statistics(loaded, None)["exit_stats"]["reason"] == "no position"
    assert exit_statistics(world.load("plain"), None) == {}


def test_a_version_that_is_loaded_anew_is_one_series_that_goes_on(world: World) -> None:
    old = world.load("mlp")
    old.counters.answered(Outcome(Reason.ON_TIME, 1.0, 0.0, 0.01, 1, 0.1), 1, None)
    old.in_flight = 2
    new = world.load("mlp", generation=1, counters=old.counters)
    new.in_flight = 3
    new.pool.times.observe(0.02, (), 1, 1)
    samples = world.samples()
    assert samples["nv_inference_request_success"] == {(): 1}
    assert samples["slacktide_in_flight_requests"] == {(): 5}
    assert samples["slacktide_prediction_error_ratio"] == {(): pytest.approx(1.0)}
    assert samples["slacktide_drift_ratio"][()] > 1.0
    world.catalog.forget(old)
    assert world.samples()["slacktide_in_flight_requests"] == {(): 3}


def test_a_model_that_cannot_serve_is_seen(world: World) -> None:
    loading = world.load("mlp")
    loading.state = VersionState.LOADING
    world.catalog.mark_absent("broken", "2", VersionState.UNAVAILABLE, "no such file")
    samples = world.samples()
    assert samples["slacktide_model_ready"] == {(): 0, ("broken", "2"): 0}
    loading.state = VersionState.READY
    assert world.samples()["slacktide_model_ready"][()] == 1
    assert "slacktide_prediction_error_ratio" not in samples


def test_the_process_and_its_workers_are_measured(world: World) -> None:
    samples = world.samples()
    assert samples["process_resident_memory_bytes"][()] > 1e6
    assert samples["process_open_fds"][()] >= 3
    assert samples["process_cpu_seconds_total"][()] > 0
    assert samples["slacktide_worker_processes"] == {(): 1}
    assert samples["slacktide_worker_cpu_seconds_total"][()] > 0
    assert samples["slacktide_worker_memory_bytes"][()] > 1e6
    assert samples["nv_cpu_memory_total_bytes"][()] >= samples["nv_cpu_memory_used_bytes"][()] > 0
    assert 0 <= samples["nv_cpu_utilization"][()] <= 1


def test_a_page_of_many_models_is_made_in_pieces(world: World) -> None:
    """So that one scrape never holds the loop: a family of sixty histograms is several pieces."""
    for number in range(60):
        world.load(f"m{number}")
    whole, pieces, turns = [], world.metrics.pieces(), []
    for piece in pieces:
        whole.append(piece)
        turns.append(piece.count(b"\n"))
    assert len(turns) > 20
    assert max(turns) <= 256
    assert len(set(turns[:-1])) == 1
    page = b"".join(whole).decode()
    headers = [line for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))
    samples = [line.split(" ")[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(samples) == len(set(samples))
    assert sum(name.startswith("slacktide_queue_seconds_count{") for name in samples) == 60


def test_the_metrics_port_serves_the_page(world: World) -> None:
    world.load("mlp")

    async def scrape(path: bytes) -> tuple[bytes, bytes]:
        server = HttpServer(metrics_routes(world.metrics))
        await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path)
        answer = await reader.read()
        writer.close()
        await server.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return head, body

    head, body = asyncio.run(scrape(b"/metrics"))
    assert head.startswith(b"HTTP/1.1 200 ")
    assert f"content-type: {CONTENT_TYPE}" in head.decode().lower()
    assert b'nv_inference_count{model="mlp",version="1"} 0\n' in body
    head, _ = asyncio.run(scrape(b"/v2/models/mlp"))
    assert head.startswith(b"HTTP/1.1 404 ")


def test_rescued_requests_are_counted_by_family() -> None:
    pools = (PoolId("f", "1", "128"), PoolId("new", "1", "a"), PoolId("m", "1"))
    counts = {"f": ModelCounts(requests=9, rescued=7), "m": ModelCounts(requests=1)}
    snapshot: Any = SimpleNamespace(lanes={}, pools=dict.fromkeys(pools), counts=counts)
    workers: Any = SimpleNamespace(processes=0, cpu_s=0.0, memory_bytes=0)
    page = write(server_families(snapshot, MemoryBudget(1), workers)).decode()
    assert [line for line in page.splitlines() if line.startswith("slacktide_rescued")] == [
        'slacktide_rescued_total{model="f"} 7',
        'slacktide_rescued_total{model="new"} 0',
    ]
