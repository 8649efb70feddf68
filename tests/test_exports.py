"""What each package offers: one list for all of them, so that no name comes or goes unnoticed.

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
    "slacktide.executors": """
        AffinityAllocator Arena BatchOrder BatchOutputs Confirm CoreProbe CpuAllocator Executor
        Grant LoopReplica MeasuringError ModelSource OpenedModel Outputs Payload ProcessExecutor
        ReplicaHandle Report Reporter Resized TensorRef allowed_processors busy_warning
        map_read_only pinned zero_outputs
    """,
    "slacktide.observability": """
        AnsweredRequest RequestObserver
    """,
    "slacktide": """
        Server __version__
    """,
    "slacktide.lab.cli.demo": """
        demo
    """,
    "slacktide.client": """
        Advice AdviceChanged AioConnection AioSession ClientAction ClientCore ClientError
        ClientEvent ClientSession ClientSettings Connect Connected Disconnect EncodeFrame
        FallbackDone FrameAcknowledged FrameAnswered FrameCaptured FrameEncoded FrameOutcome
        FrameReply FrameResult FrameSent MoveAdvised OnnxFallback ReportOutcome RunFallback
        SendFrame ServerConnection SessionOptions TimerDue connect
    """,
    "slacktide.cluster": """
        FolderLock Hindrance PodAllocator PodClient PodError PodName
    """,
    "slacktide.domain": """
        AbortBatch Announced Answer Batch BatchAborted BatchFailed BatchFinished BatchTiming
        Cancelled Circuit Command Datatype Deployment DriverStalled Event ExitMode
        ExitPolicy ExitReport FreeSlots Glue InputSize LaneResized LaneSpec Leaving NEVER
        MemoryShort ModelInterface ModelWindow Notice OptionError Options Outcome
        OutcomeKind Plan PlanChanged PoolId PublishExits Reason Refused Registry Replica
        ReplicaLost ReplicaUp Request ResizeLane Route RowsReleased RunBatch SECONDS
        Signature StagePlace StartReplica StopReplica Submitted TellCircuit TensorSpec
        TimerFired Timetable Unit decoding_time did_you_mean format_seconds going_on
        is_in_run is_judged nearest option options_of parse_percent percent read_options
        shown suggestion
    """,
    "slacktide.engine": """
        Engine EngineSettings Idle LaneSnapshot NextStart PoolParts PoolView Proposal ServedBy
        Snapshot SoloCounts WaitUntil check_invariants next_start
    """,
    "slacktide.lab.examples": """
        ExamplesError FRAME_RATE MODELS PIPELINES Samples example make_inputs make_repository
        make_stream pipeline_frames
    """,
    "slacktide.lab.load.report": """
        Ending Percentiles Provenance Report ReportError SCHEMA StreamReport StreamScore Window
        gather percentiles
    """,
    "slacktide.peers": """
        ForwardingRule LoadReport LoadReporter ModelLoad PeerCall PeerHello PeerLoads SessionMoves
    """,
    "slacktide.pipelines": """
        BOX Edge Pipeline PipelineStage
        FanOut Frames HAS_RESULT of_children
    """,
    "slacktide.profiles": """
        AmdahlFit AmdahlModel BatchTimes BatchLatency ClassedTimes Classes CorrectedTimes CpuShare
        ENOUGH_SAMPLES ExitTimes FixedTimes LatencyTable MOST_CLASSES PointTime ProfileError
        ProfileRecord RunClasses ShapeClasses ShapedTimes SizeTime TimeDistribution Timed
        batch_sizes busy_note classes_of_samples covering fit_amdahl fit_latency is_quiet
        session_sizes sorted_alike
    """,
    "slacktide.recording": """
        Call FramesCall PoolOpened Record RecordedLine Recorder Recording RecordingError
        export_times load_times
    """,
    "slacktide.lab.replay": """
        Difference RecordedPools Watcher replay
    """,
    "slacktide.lab.reports": """
        Comparison Curve Report ReportError StreamReport TextTable comparison_page curves
        html_document html_list html_table page profile_page render render_comparison
        render_sweep rich_table summary sweep_page
    """,
    "slacktide.runtime": """
        Runtime RuntimeCommand RuntimeEvent Watch WatchFrames
    """,
    "slacktide.scheduling": """
        ArrivalPolicy Cached DEFAULT_POLICY DeadlineOptions DeadlinePolicy Edf EdfOptions
        FifoOptions Lazy POLICIES PoolRecipe QueueOptions SlackOptions TimeByRows
        make_scheduler
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
        Composer Draft ExitEvent Job JobDone ModelBounds Owned PlanField Planner PlannerError
        SessionClosed SessionEvent SessionMeasured SessionOpened Stated
    """,
    "slacktide.planning.exits": """
        ApplicationStatus ChangesStatus ClassStatus ExitEvent ExitsArranged ExitsPlanner ExitsStatus
        FEATURE_SHARE RampFacts RampsJudged RampsLearnt RampsRefused StatedExits ThresholdSearch
    """,
    "slacktide.planning.pipelines": """
        DevicePlans DeviceView EstimateRules ConfigurationTimes Inflow LinkView PLACEMENTS
        PipelineEstimator PipelineView Placed PlacedPipeline PlacedStage PlacedWindow
        PlacementAnswer PlacementControl PlacementDecision PlacementError PlacementPolicy
        PlacementQuestion PlacementStatus STATIC ServerPipelinesPlanner StageCost StageConfiguration
        StageView StaticBatches burstiness lanes_of make_estimators make_placement placed_whole
    """,
    "slacktide.planning.scaling": """
        ModelView ReplicaView ScaledModel ScalingLimits ScalingPlanner ScalingPolicy
        ScalingStatus ScalingTarget groups_of make_scaling_policy
    """,
    "slacktide.planning.variants": """
        Annealing Assignment AssignmentScore Client Family FamilyVariant Fleet FrameEnds UNMAPPED
        Variant VariantsOptions VariantsPlanner VariantsStatus matched misses ordered published
        search
    """,
    "slacktide.lab.simulation": """
        ANSWER_BYTES AsExpected ByLength ByPool ByProfile ClientLogic DeviceTimes DrawnRequest
        EdgeRows Execution ExitCourse ExitTable FrameRecord FrameScore LocalChild Item KAPPAS
        MeasuredLink ModelTimes OracleSlack OracleSlackOptions PipelineCamera Prediction
        SimulatedClient SimulatedClients SimulatedDevices SimulatedPlacing SimulatedUpload
        Simulation SimulationError StageRows TableExits predict read_exit_table rng_for
    """,
    "slacktide.lab.simulation.scenario": """
        Cell ClientLink ScenarioError Sweep build check_cell collected done_in_processes
        read_scenario run_cell run_task task_of
    """,
    "slacktide.lab.workloads": """
        Arrivals BandwidthTrace Constant ConstantLink Deadlines Empirical Exponential Fixed
        Gamma GammaWindows Lengths Link MBIT Mix Mode Modes ObjectCounts OnOff Poisson RateTrace
        Replay SharedLink Trace TraceLink WindowCounts WorkloadError draw_4g draw_5g
        draw_object_counts parse_arrivals parse_bandwidth_trace parse_bandwidths parse_deadlines
        parse_lengths parse_link parse_number parse_object_counts parse_seconds parse_trace
    """,
    "slacktide.lab.netem": """
        LinkError LinkProcess TimerQueue
    """,
    "slacktide.exits": """
        ExitError ExitGraph ExitManifest MEMORY Ramp RampLearning RampTrainer SessionMemory
        SessionNumbers find_positions judged_rows reuse_uncertainty split
        with_features with_ramps
    """,
    "slacktide.lab.load": """
        PlayedRow ProcessError Transport exit_stats play_rows read_bandwidths read_trace serving
        split_cores
    """,
    "slacktide.models": """
        LaneError admit_all admit_name assign_lanes offer_entry_points save_ramps
    """,
    "slacktide.models.repository": """
        ModelDefinition ModelSettings ProfileStore Repository RepositoryError Section dotted
        model_hash open_repository read_bounded validation_problems
    """,
    "slacktide.testing": """
        FakeClock FakeExecutor FakeReplica LinearTimes VirtualWorld make_notice make_request
        one_model_plan
    """,
    "slacktide.cli": """
        ExtensionGroup FELL_SHORT can_write console fail make_command option plots_missing
        print_json progress require_goodput seconds_of share_of with_flags write_page
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
        if node.module != "slacktide._faces"
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
        names_package = isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(
            f"{package}."
        )
        if isinstance(node, ast.ImportFrom) and names_package:
            assert [alias.name for alias in node.names if alias.asname != alias.name] == []


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_it_is(package: str) -> None:
    assert ast.get_docstring(ast.parse(packages()[package].read_text()))


def test_no_package_is_listed_that_is_not_there() -> None:
    assert set(EXPORTS) <= set(packages())
