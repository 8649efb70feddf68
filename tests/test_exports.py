"""What each room offers: one list for all of them, so that no name comes or goes unnoticed.

A package imports each name as itself (`import X as X`), which says that it hands the name on. A
folder that is not listed offers no names of its own: its files are imported one by one.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "slacktide"

EXPORTS = {
    "slacktide": """
        Server __version__
    """,
    "slacktide.lab.cli.demo": """
        demo
    """,
    "slacktide.client": """
        Advice AioConnection AioSession ClientError ClientSession FrameOutcome FrameReply
        FrameResult OnnxFallback ServerConnection SessionOptions connect
    """,
    "slacktide.cluster": """
        Hindrance PodAllocator PodClient PodError PodName
    """,
    "slacktide.domain": """
        AbortBatch Announced Answer Batch BatchAborted BatchFailed BatchFinished
        BatchTiming Cancelled Circuit Command Deployment Event ExitMode ExitPolicy ExitReport
        DriverStalled FreeSlots InputSize LaneResized LaneSpec Leaving MemoryShort
        ModelWindow Notice Outcome OutcomeKind Plan PlanChanged PoolId PublishExits Reason
        Refused Replica ReplicaLost ReplicaUp Request ResizeLane Route RowsReleased RunBatch
        Signature StagePlace StartReplica StopReplica Submitted TellCircuit TimerFired Timetable
        decoding_time going_on is_judged
    """,
    "slacktide.engine": """
        BatchTimes Engine EngineSettings Idle LaneSnapshot
        PoolParts PoolView Proposal ServedBy Snapshot SoloCounts
        WaitUntil
        check_invariants
    """,
    "slacktide.lab.examples": """
        MODELS PIPELINES ExamplesError Samples example make_inputs
        make_repository make_stream pipeline_frames
    """,
    "slacktide.lab.load.report": """
        SCHEMA Ending Percentiles Provenance Report ReportError StreamReport StreamScore
        Window percentiles
    """,
    "slacktide.pipelines": """
        FanOut Frames HAS_RESULT of_children
    """,
    "slacktide.profiles": """
        ENOUGH_SAMPLES MOST_CLASSES BatchLatency
        ClassedTimes Classes CorrectedTimes CpuShare ExitTimes FixedTimes LatencyTable ProfileError
        ProfileRecord PointTime RunClasses ShapeClasses ShapedTimes
        TimeDistribution batch_sizes busy_note classes_of_samples covering fit_latency is_quiet
        session_sizes sorted_alike
    """,
    "slacktide.recording": """
        Call PoolOpened Record Recorder Recording RecordingError export_times
    """,
    "slacktide.lab.replay": """
        Difference RecordedPools Watcher replay
    """,
    "slacktide.lab.reports": """
        Comparison Curve Report
        ReportError StreamReport TextTable
        comparison_page curves html_document html_list html_table page
        profile_page render render_comparison render_sweep rich_table sweep_page summary
    """,
    "slacktide.runtime": """
        Runtime RuntimeCommand RuntimeEvent Watch WatchFrames
    """,
    "slacktide.scheduling": """
        DEFAULT_POLICY POLICIES
        FifoOptions
        PoolRecipe SlackOptions make_scheduler
    """,
    "slacktide.frontends.grpc": """
        GrpcServer
    """,
    "slacktide.frontends.http2": """
        ErrorCode Head Http2Connection Http2Stream
    """,
    "slacktide.frontends.http": """
        HttpRoute HttpServer inference_routes metrics_routes
    """,
    "slacktide.observability.metrics": """
        Machine Metrics metrics_routes
    """,
    "slacktide.planning": """
        Composer ExitEvent Job JobDone Owned PlanField Planner PlannerError SessionClosed
        SessionEvent SessionMeasured SessionOpened StageBounds Stated
    """,
    "slacktide.planning.exits": """
        ExitEvent ExitsArranged ExitsPlanner ExitsStatus RampFacts RampsJudged RampsLearnt
        RampsRefused StatedExits
    """,
    "slacktide.planning.pipelines": """
        DeviceView FormTimes Inflow LinkView PipelineView PlacedPipeline PlacedPortion PlacedStage
        PlacementAnswer PlacementError PlacementQuestion PlacementStatus ServerPipelinesPlanner
        StageForm StageView burstiness make_placement
    """,
    "slacktide.planning.scaling": """
        ModelView ReplicaView ScaledModel ScalingLimits
        ScalingPlanner ScalingPolicy ScalingStatus ScalingTarget make_planner
    """,
    "slacktide.planning.variants": """
        UNMAPPED Annealing Assignment AssignmentScore Client Family FamilyVariant Fleet Variant
        VariantsOptions VariantsPlanner VariantsStatus
        published search
    """,
    "slacktide.lab.simulation": """
        AsExpected ByLength ByPool ByProfile DrawnRequest
        Execution Item Prediction SimulatedUpload
        Simulation SimulationError predict stream
    """,
    "slacktide.lab.simulation.scenario": """
        Cell ScenarioError Sweep build check_cell collected
        done_in_processes read_scenario run_cell run_task task_of
    """,
    "slacktide.lab.workloads": """
        Arrivals BandwidthTrace Constant ConstantLink Deadlines
        Empirical Exponential Fixed Gamma GammaWindows Lengths Link
        Mix Mode Modes OnOff Poisson RateTrace Replay SharedLink Trace TraceLink
        WindowCounts WorkloadError draw_4g draw_5g parse_arrivals parse_bandwidth_trace
        parse_bandwidths parse_deadlines parse_lengths parse_link parse_number
        parse_seconds parse_trace
    """,
    "slacktide.lab.netem": """
        LinkError LinkProcess TimerQueue
    """,
}


def packages() -> dict[str, Path]:
    """Every package of the source, by its dotted name, with its `__init__.py`."""
    paths = sorted(SOURCE.rglob("__init__.py"))
    return {".".join(("slacktide", *path.parent.relative_to(SOURCE).parts)): path for path in paths}


def names_imported(path: Path) -> set[str]:
    """What an `__init__.py` imports from `slacktide`, also where only type checkers look."""
    return {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slacktide")
        for alias in node.names
    }


@pytest.mark.parametrize("package", packages())
def test_a_package_offers_what_is_listed(package: str) -> None:
    module = importlib.import_module(package)
    listed = EXPORTS.get(package, "").split()
    assert [name for name in listed if not hasattr(module, name)] == []


@pytest.mark.parametrize("package", packages())
def test_a_table_of_contents_imports_nothing_else(package: str) -> None:
    assert names_imported(packages()[package]) == set(EXPORTS.get(package, "").split())


@pytest.mark.parametrize("package", [name for name in EXPORTS if name != "slacktide"])
def test_a_package_hands_on_all_that_it_imports(package: str) -> None:
    for node in ast.walk(ast.parse(packages()[package].read_text())):
        if isinstance(node, ast.ImportFrom):
            assert [alias.name for alias in node.names if alias.asname != alias.name] == []


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_it_is(package: str) -> None:
    assert ast.get_docstring(ast.parse(packages()[package].read_text()))


def test_no_package_is_listed_that_is_not_there() -> None:
    assert set(EXPORTS) <= set(packages())
