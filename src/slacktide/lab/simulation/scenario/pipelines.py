"""A scenario with pipelines: makes devices, links and cameras from its sections, and runs it.

Faults are found before anything runs, and errors name the key: devices and models that do not
exist, stages that fit no device, counts that cannot be read. The report's requests are frames. Its
rows are objects at stages that feed no other; rows on time are objects answered in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from slacktide.domain import LaneSpec, PoolId, suggestion
from slacktide.domain.pipelines import PipelineError
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.load.report import Provenance, Report
from slacktide.lab.load.traces import read_object_counts
from slacktide.lab.simulation.frame_score import FrameScore, PipelineScore
from slacktide.lab.simulation.items import rng_for
from slacktide.lab.simulation.oracle_slack import OracleSlackOptions
from slacktide.lab.simulation.placing import SimulatedPlacing
from slacktide.lab.simulation.scenario.cell_reader import CellReader
from slacktide.lab.simulation.scenario.pipeline_sections import DeviceSection, SimulatedPipeline
from slacktide.lab.simulation.scenario.profiles import slower, stated
from slacktide.lab.simulation.scenario.reading import Cell
from slacktide.lab.simulation.world.device_times import DeviceTimes, ModelTimes
from slacktide.lab.simulation.world.devices import SimulatedDevices
from slacktide.lab.simulation.world.results import Scorer
from slacktide.lab.simulation.world.stage_rows import EdgeRows, PipelineCamera, StageRows
from slacktide.lab.workloads import BandwidthTrace
from slacktide.lab.workloads.object_counts import ObjectCounts, draw_object_counts
from slacktide.models.repository.settings_file import Path as Place
from slacktide.pipelines import BOX, Edge, Pipeline, PipelineStage
from slacktide.planning.pipelines import (
    ConfigurationTimes,
    DeviceView,
    Inflow,
    LinkView,
    PipelineView,
    PlacementControl,
    PlacementError,
    PlacementQuestion,
    StageConfiguration,
    StageView,
    lanes_of,
    make_placement,
)
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import PoolRecipe

SETTLES_S = 1.0
"""Seconds that the run goes on after the SLO of the last frame, so that all frames end."""
_DRAWN_S = 300.0
"""Seconds of drawn object counts; longer runs repeat them."""
_VERSION = "1"


class PipelinesWorld(CellReader):
    """One cell with pipelines, ready to run with any seed. Raises ScenarioError."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        scenario = cell.scenario
        self._tables = {name: self._table(name) for name in scenario.models}
        self._recipes = {name: self._recipe(name) for name in scenario.models}
        self._links = dict(self._made_links())
        self.rows = {name: self._rows(name, spec) for name, spec in scenario.pipelines.items()}
        for name, spec in scenario.pipelines.items():  # find faults before the run
            self._camera(name, spec, 0)
        self._check_links()
        self._question(0)

    def run(
        self, seed: int, provenance: Provenance, progress: Callable[[float], None] | None = None
    ) -> Report:
        """Run the scenario. `progress` is called with the share of the time that has passed."""
        scenario = self._scenario
        scorer = Scorer(warmup_s=scenario.warmup, duration_s=scenario.duration)
        score = FrameScore(start=scenario.warmup, end=scenario.length, answered=scorer.answered)
        devices = SimulatedDevices(
            [rows.pipeline for rows in self.rows.values()],
            {ends: (link.trace, 0.5 * link.rtt, link.offset) for ends, link in self._links.items()},
            score=score,
        )
        question = self._question(seed)
        placement = scenario.placement
        policy = make_placement(placement.policy.name, placement.policy.stated())
        control = PlacementControl(question, policy, interval=placement.every)
        control.decide(now=0.0)
        assert control.plans is not None
        lanes = {view.name: lanes_of(view) for view in question.devices}
        for view in question.devices:
            devices.add(
                view.name,
                Engine(self._engine_parts(scenario.devices[view.name])),
                control.plans.of(view.name, lanes[view.name]),
                self._hardware(view, lanes[view.name], seed),
                cameras=[
                    self._camera(name, spec, seed)
                    for name, spec in scenario.pipelines.items()
                    if spec.device == view.name
                ],
                begin=-scenario.start_s,
                start_s=scenario.start_s,
            )
        SimulatedPlacing(devices, control, lanes, self._carried, until=scenario.length)
        longest = max(spec.slo for spec in scenario.pipelines.values())
        end = scenario.length + longest + SETTLES_S
        steps = 100 if progress is not None else 1
        for step in range(1, steps + 1):
            devices.run(until=end * step / steps)
            if progress is not None:
                progress(step / steps)
        labels = (f"{key}={value}" for key, value in self._cell.labels.items())
        report = scorer.report(
            title=" ".join((scenario.title, *labels)),
            seed=seed,
            configuration={**self._cell.document, "seeds": [seed]},
            provenance=provenance,
            cores=sum(d.simulation.hardware.busy_s for d in devices.devices.values()) / end,
        )
        return _with_objects(report, score)

    # ── what runs ────────────────────────────────────────────────────────────────────────────

    def _engine_parts(self, device: DeviceSection) -> Callable[[PoolId, int, PoolView], PoolParts]:
        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            times = CorrectedTimes(slower(self._tables[pool.model], 1.0 / device.speed))
            return self._recipes[pool.model].parts(times, max_batch=max_batch, view=view)

        return parts

    def _hardware(self, view: DeviceView, lanes: tuple[LaneSpec, ...], seed: int) -> DeviceTimes:
        models = self._scenario.models
        return DeviceTimes(
            {
                PoolId(name, _VERSION): ModelTimes(table, models[name].utilisation)
                for name, table in self._tables.items()
            },
            {lane.name: int(lane.name.split(".")[0]) for lane in lanes},
            rng_for(seed, f"batch times on {view.name}"),
            contention=self._scenario.placement.contention,
            utilisation=view.utilisation,
            slower=1.0 / self._scenario.devices[view.name].speed,
        )

    def _carried(self, now: float) -> list[LinkView]:
        """Return all links with their mean bandwidth over the last second."""
        return [link.view(ends, now) for ends, link in self._links.items()]

    # ── from sections ────────────────────────────────────────────────────────────────────────

    def _table(self, name: str) -> LatencyTable:
        model, place = self._scenario.models[name], ("models", name)
        if model.latency is None:
            raise self._refuse(place, "expected 'latency' in a scenario with 'pipelines'")
        for key in ("cores", "lane", "replicas", "scaling", "window"):
            if key in model.model_fields_set:
                text = "expected none in a scenario with 'pipelines': the placement decides it"
                raise self._refuse((*place, key), text)
        with self._named((*place, "latency")):
            return stated(model.latency).record.table

    def _recipe(self, name: str) -> PoolRecipe:
        model = self._scenario.models[name]
        choice = model.scheduler or self._scenario.scheduler
        if isinstance(choice.options, OracleSlackOptions):
            place: Place = ("models", name, "scheduler") if model.scheduler else ("scheduler",)
            raise self._refuse(place, "oracle_slack needs a padded model")
        return PoolRecipe(choice.name, choice.spelt_out(), model.share or 1.0)

    def _made_links(self) -> Iterator[tuple[tuple[str, str], _SimulatedLink]]:
        pairs: set[tuple[str, str]] = set()
        for name, section in self._scenario.links.items():
            place = ("links", name)
            first, second = section.between
            for end in section.between:
                self._check_name((*place, "between"), "device", end, self._scenario.devices)
            if first == second or (first, second) in pairs:
                raise self._refuse((*place, "between"), "expected two devices, linked only once")
            if section.trace is None:
                trace, offset = BandwidthTrace([0.0], [float(section.bandwidth or 0)]), 0.0
            else:
                trace, offset = self._trace((*place, "trace"), section.trace)
            link = _SimulatedLink(trace, section.rtt, offset)
            for ends in ((first, second), (second, first)):
                pairs.add(ends)
                yield ends, link

    def _check_links(self) -> None:
        """Require links to all servers: any policy may place stages on any server."""
        devices = self._scenario.devices
        servers = [name for name, device in devices.items() if device.server]
        for begin in [*(section.device for section in self._scenario.pipelines.values()), *servers]:
            for end in servers:
                if begin != end and (begin, end) not in self._links:
                    raise self._refuse(("links",), f"expected a link between {begin!r} and {end!r}")

    def _rows(self, name: str, spec: SimulatedPipeline) -> StageRows:
        place = ("pipelines", name)
        self._check_name((*place, "device"), "device", spec.device, self._scenario.devices)
        for stage, node in spec.stages.items():
            self._check_name((*place, "stages", stage), "model", node.model, self._scenario.models)
        stages = tuple(PipelineStage(stage, node.model) for stage, node in spec.stages.items())
        fed: dict[str, str] = {}
        for number, edge in enumerate(spec.edges):
            before = fed.setdefault(edge.downstream, edge.upstream)
            if before != edge.upstream:
                text = f"expected one upstream of {edge.downstream}, which already has {before}"
                raise self._refuse((*place, "edges", number), text)
        try:
            edges = tuple(Edge(edge.upstream, edge.downstream, BOX) for edge in spec.edges)
            pipeline = Pipeline(name, stages, edges)
        except PipelineError as error:
            raise self._refuse((*place, error.key), error.message) from None
        handed = {
            (edge.upstream, edge.downstream): EdgeRows(float(edge.row), edge.each)
            for edge in spec.edges
        }
        answers = {stage: float(node.answer) for stage, node in spec.stages.items()}
        with self._named(place):
            return StageRows(pipeline, handed, answers)

    def _camera(self, name: str, spec: SimulatedPipeline, seed: int) -> PipelineCamera:
        scenario, rows = self._scenario, self.rows[name]
        pipeline = rows.pipeline
        classes = {(edge.upstream, edge.downstream): edge.classes for edge in spec.edges}
        ends = [(edge.upstream, edge.downstream) for edge in pipeline.out_of[pipeline.source]]
        for number, edge in enumerate(spec.edges):
            if (edge.upstream == pipeline.source) != bool(edge.classes):
                place = ("pipelines", name, "edges", number)
                raise self._refuse(place, "expected 'classes' only on edges of the first stage")
        with self._named(("pipelines", name)):
            return PipelineCamera(
                rows,
                self._counts(name, spec, seed),
                [classes[pair] for pair in ends],
                spec.slo,
                spec.rate,
                float(spec.frame),
                start=float(rng_for(seed, f"start of {name}").uniform(0.0, 1.0 / spec.rate)),
                end=min(spec.stops or scenario.length, scenario.length),
            )

    def _counts(self, name: str, spec: SimulatedPipeline, seed: int) -> ObjectCounts:
        if spec.counts is not None:
            with self._named(("pipelines", name, "counts")):
                return read_object_counts(spec.counts, self._cell.folder)
        assert spec.objects is not None
        seconds = min(self._scenario.length, _DRAWN_S)
        return draw_object_counts(spec.objects, seconds, rng_for(seed, f"objects of {name}"))

    def _question(self, seed: int) -> PlacementQuestion:
        """Return the question at the start, with mean object counts and link bandwidths."""
        scenario = self._scenario
        kinds = {device.speed: f"speed {device.speed:g}" for device in scenario.devices.values()}
        configurations = {name: self._configuration(name, kinds) for name in scenario.models}
        devices = [
            DeviceView(
                name,
                kinds[device.speed],
                device.accelerators,
                device.streams,
                float("inf") if device.memory is None else float(device.memory),
                device.utilisation,
                device.server,
            )
            for name, device in scenario.devices.items()
        ]
        views = []
        for name, spec in scenario.pipelines.items():
            camera, pipeline = self._camera(name, spec, seed), self.rows[name].pipeline
            order = list(pipeline.order)
            handed = dict(
                zip(
                    self.rows[name].out_of[pipeline.source],
                    camera.mean_handed(0.0, scenario.length),
                    strict=True,
                )
            )
            stages = []
            for stage in order:
                model = spec.stages[stage].model
                inflows, size = [], float(spec.frame)
                for number, edge in enumerate(pipeline.edges):
                    if edge.downstream == stage:
                        rows = self.rows[name].edges[number]
                        each_row = handed.get(number, rows.fan_out)
                        inflows.append(Inflow(order.index(edge.upstream), each_row))
                        size = rows.nbytes
                answer = float(spec.stages[stage].answer)
                stages.append(
                    StageView(stage, (configurations[model],), tuple(inflows), model, size, answer)
                )
            views.append(PipelineView(name, spec.device, spec.slo, spec.rate, tuple(stages)))
        most = max(table.max_batch for table in self._tables.values())
        batches = tuple(2**n for n in range(most.bit_length()))
        links = self._carried(0.0)
        try:
            return PlacementQuestion(tuple(devices), tuple(links), tuple(views), batches)
        except PlacementError as error:
            raise self._refuse(("pipelines",), str(error)) from None

    def _configuration(self, name: str, kinds: dict[float, str]) -> StageConfiguration:
        model, table = self._scenario.models[name], self._tables[name]
        largest = min(model.max_batch or table.max_batch, table.max_batch)
        sizes = [2**n for n in range(largest.bit_length())]
        times = tuple(
            ConfigurationTimes(
                kind,
                tuple(table.expected(size, 1) / speed for size in sizes),
                tuple(table.p99(size, 1) / speed for size in sizes),
            )
            for speed, kind in kinds.items()
        )
        return StageConfiguration(
            times,
            weights=float(model.weights),
            intermediate=float(model.intermediate),
            utilisation=model.utilisation,
        )

    # ── errors and files ─────────────────────────────────────────────────────────────────────

    def _check_name(self, place: Place, kind: str, name: str, choices: object) -> None:
        names = list(choices)  # type: ignore[call-overload]
        if name not in names:
            raise self._refuse(place, f"no {kind} {name!r}; {suggestion(name, names)}")


@dataclass(frozen=True, slots=True)
class _SimulatedLink:
    trace: BandwidthTrace
    rtt: float
    offset: float

    def view(self, ends: tuple[str, str], now: float) -> LinkView:
        """Return the link with its mean bandwidth over the second before `now`."""
        at = self.offset + now
        past = at >= 1.0
        rate = self.trace.moved(at) - self.trace.moved(at - 1.0) if past else self.trace.rate(at)
        return LinkView(*ends, rate, 0.5 * self.rtt)


def _with_objects(report: Report, score: FrameScore) -> Report:
    """Return `report` with objects as its rows."""
    total, none = score.total, PipelineScore()
    scores = [score.pipelines.get(stream.model, none) for stream in report.streams]
    streams = tuple(
        replace(stream, rows_submitted=stream_score.offered, rows_on_time=stream_score.in_time)
        for stream, stream_score in zip(report.streams, scores, strict=True)
    )
    whole = replace(report.total, rows_submitted=total.offered, rows_on_time=total.in_time)
    return replace(report, total=whole, streams=streams)
