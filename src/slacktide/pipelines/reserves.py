"""`Reserves`: how much of a frame's time to reserve for the stages behind a stage.

A stage's request is due earlier than its frame, by the time that the longest branch behind the
stage takes: the p99 of each stage alone, for the likely number of rows, and of transfers between
devices. Waiting times are not included: schedulers handle them, since they know deadlines. If less
time is left than all p99 together, it is shared in proportion: usually such a frame is still on
time. For a branch that alone takes more time than is left, nothing is reserved: its first stage
refuses the rows itself, and finds out (engine/trials.py) whether the branch still takes that long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slacktide.domain import Plan, Request, StagePlace
from slacktide.domain.pipelines import Pipeline
from slacktide.engine import Engine, ServedBy
from slacktide.engine.next_start import next_start_like
from slacktide.pipelines.fan_out import FanOut
from slacktide.profiles import BatchTimes

REFRESH_S = 0.1
"""Seconds after which predictions are renewed."""
FORGET_S, ANSWERED = 10.0, 0.25
"""If for FORGET_S seconds a stage answers less than a share ANSWERED of its requests, the fan-outs
of its edges are forgotten. Otherwise fan-outs learnt in a burst could reserve so much time that the
stage is always refused, and little or nothing would be learnt any more."""


class _Silence:
    """Detects that a stage gets requests but hardly ever answers. Seconds."""

    __slots__ = ("begin", "last", "requests", "rows")

    def __init__(self) -> None:
        self.begin = self.last = -math.inf
        self.requests = self.rows = 0
        """Number of requests since `begin`, and of rows answered before `begin`."""

    def lasts(self, rows: int, budget: float, *, now: float) -> bool:
        """Count a request due in `budget`; return whether the stage is silent. `rows`: rows that
        the stage has answered so far."""
        rested = now - self.last > FORGET_S
        self.last = now
        self.requests += 1
        if not rested and now - self.begin < FORGET_S + 2.0 * budget:
            return False
        silent = not rested and rows - self.rows < ANSWERED * self.requests
        self.begin, self.requests, self.rows = now, 0, rows
        return silent


class Reserves:
    """The reserves of one pipeline whose models one engine serves. The engine is only read."""

    def __init__(self, pipeline: Pipeline, fan_outs: Sequence[FanOut], engine: Engine) -> None:
        """`fan_outs`: for each edge of the pipeline."""
        self._pipeline = pipeline
        self._engine = engine
        by_edge = [*zip(pipeline.edges, fan_outs, strict=True)]
        self._edges = {
            name: [pair for pair in by_edge if pair[0].upstream == name] for name in pipeline.order
        }
        self._probes = {
            stage.name: Request(
                0, stage.model, 0.0, 0.0, version=stage.version, client=pipeline.name
            )
            for stage in pipeline.stages
        }
        """A request of each stage, to find where it is routed. A placement may route a pipeline by
        its name."""
        self._plan: Plan | None = None
        self._until = -math.inf
        self._times: list[BatchTimes] = []
        self._revision = 0
        """Sum of the revisions of `_times`, from which predictions were made."""
        self._work: dict[str, float] = {}
        """Seconds of each stage alone. The times behind a stage follow from these and the plan."""
        self._behind: dict[str, float] = {}
        """Seconds of the longest branch behind each stage."""
        self.most_rows: dict[str, int] = {}
        """Maximum rows of a request of each stage, as of the last refresh; 0: its model is not
        served."""
        self._places: Mapping[str, StagePlace] = {}
        self._shared: Mapping[str, StagePlace] = {}
        """Places of stages that also run here."""
        self._local: dict[str, float] = {}
        """By stage that runs here: seconds of its branch if it begins here, without waits."""
        self._behind_local: dict[str, float] = {}
        """By shared stage: seconds of the longest branch behind it, if it runs here."""
        self.elsewhere: dict[str, float] = {}
        """By stage with a place: seconds from the arrival of its rows there to the answer here."""
        self._silences = {name: _Silence() for name, edges in self._edges.items() if edges}

    def reserve(self, stage: str, budget: float, *, now: float) -> float:
        """The part of a frame's `budget` seconds to reserve for the stages behind `stage`."""
        silence = self._silences.get(stage)
        if silence is not None:
            edges = self._edges[stage]
            if silence.lasts(edges[0][1].rows, budget, now=now):
                for _, fan_out in edges:
                    fan_out.forget()
                self._until = -math.inf
        self._refresh(now)
        behind = self._behind[stage]
        if stage in self._shared:
            behind = self._behind_local[stage]
        if behind >= budget:
            steps = [self._step(stage, after) for after in self._pipeline.downstream(stage)]
            behind = max((step for step in steps if step < budget), default=0.0)
        needed = behind + self._work[stage]
        return behind if needed <= budget or not behind else behind * max(0.0, budget) / needed

    def place(self, stage: str, *, now: float) -> StagePlace | None:
        """The other device that runs a stage and all stages behind it; None: this device."""
        self._refresh(now)
        return self._places.get(stage)

    def shared(self, stage: str, *, now: float) -> StagePlace | None:
        """The other device of a stage that also runs here; None: there is none."""
        self._refresh(now)
        return self._shared.get(stage)

    def seconds(self, stage: str, *, now: float) -> float:
        """Seconds until the branch of rows that arrive now is answered, if the stage runs here."""
        start = next_start_like(self._engine, self._probes[stage], now=now)
        return start.wait_s + self._local.get(stage, math.inf)

    def _refresh(self, now: float) -> None:
        plan = self._engine.plan
        if plan is not self._plan:
            self._plan = plan
            self._take_places(plan)
            self._work.clear()
        elif now < self._until and self._revision == sum([t.revision for t in self._times]):
            return
        self._until = now + REFRESH_S
        pipeline, snapshot = self._pipeline, self._engine.snapshot(now=now)
        rows = {pipeline.source: 1}
        for name in pipeline.order:
            for edge, fan_out in self._edges[name]:
                likely = fan_out.likely(rows[name])
                rows[edge.downstream] = max(rows.get(edge.downstream, 0), likely)
        served = {name: snapshot.served_by(self._probes[name]) for name in pipeline.order}
        if self._shared:
            self._refresh_local(rows, served)
        self._times = [pool.times for pool in served.values() if pool is not None]
        self._revision = sum([times.revision for times in self._times])
        work = {name: self._work_of(name, rows[name], served[name]) for name in pipeline.order}
        if work == self._work:
            return
        self._work = work
        for name in reversed(pipeline.order):
            self._behind[name] = max(
                (self._step(name, after) for after in pipeline.downstream(name)),
                default=self._way_back(name),
            )

    def _take_places(self, plan: Plan) -> None:
        places = self._places_of(plan)
        self._places = {name: at for name, at in places.items() if at.takes != "late"}
        self._shared = {name: at for name, at in places.items() if at.takes != "all"}
        self.elsewhere = {}
        for name in reversed(self._pipeline.order):
            if (at := places.get(name)) is not None:
                after = [self.elsewhere.get(to, 0.0) for to in self._pipeline.downstream(name)]
                self.elsewhere[name] = at.p99 + max(after, default=at.back)

    def _places_of(self, plan: Plan) -> Mapping[str, StagePlace]:
        pipeline = self._pipeline
        return {
            place.stage: place
            for place in plan.places
            if place.pipeline == pipeline.name
            and place.device
            and place.stage in pipeline.by_name
            and pipeline.is_closed(place.stage)
        }

    def _refresh_local(
        self, rows: Mapping[str, int], served: Mapping[str, ServedBy | None]
    ) -> None:
        for name in reversed(self._pipeline.order):
            place = self._places.get(name)
            if place is not None and place.takes == "all":
                self._local[name] = place.transfer + self.elsewhere[name]
                continue
            after = [self._local[to] for to in self._pipeline.downstream(name)]
            self._behind_local[name] = behind = max(after, default=0.0)
            self._local[name] = _seconds(rows[name], served[name]) + behind

    def _work_of(self, stage: str, rows: int, served: ServedBy | None) -> float:
        self.most_rows[stage] = 0 if served is None else served.max_batch
        place = self._places.get(stage)
        return _seconds(rows, served) if place is None else place.p99

    def _step(self, before: str, after: str) -> float:
        place = self._places.get(after)
        way = 0.0
        if self._device(after) != self._device(before):
            way = self._way_back(before) if place is None else place.transfer
        return way + self._work[after] + self._behind[after]

    def _way_back(self, stage: str) -> float:
        place = self._places.get(stage)
        return 0.0 if place is None else place.back

    def _device(self, stage: str) -> str:
        place = self._places.get(stage)
        return "" if place is None else place.device


def _seconds(rows: int, served: ServedBy | None) -> float:
    """p99 of all batches of a request here; 0 if its model is not served."""
    if served is None:
        return 0.0
    most = served.max_batch
    rounds = math.ceil(math.ceil(rows / most) / max(1, served.replicas))
    return rounds * served.times.of(min(rows, most), served.cores).p99
