"""`Rest`: how long the stages behind a stage are expected to take, and so how long it may take.

A stage's request has the frame's deadline less the rest of its longest branch: the p99 of each
stage alone, for as many rows as are likely, and of transfers between devices. How long requests
will wait is not in it: that is for the schedulers, which know their deadlines. Where less time is
left than all p99 take together, the lack is shared in proportion: as a rule such a frame is still
in time. No time is kept for a branch that by itself takes more than is left: its own stage is to
refuse it, and to find out so whether it still takes as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slacktide.domain import Plan, Request, StagePlace
from slacktide.domain.pipelines import Pipeline
from slacktide.engine import Engine, ServedBy
from slacktide.pipelines.fan_out import FanOut

REFRESH_S = 0.1
"""Seconds that predictions are used for before they are made anew."""
FORGET_S, ANSWERED = 10.0, 0.25
"""Where a stage answers so small a share of what it is asked for in so many seconds, it is
forgotten how many rows it hands on. What was learnt in a burst would else keep so much time for
them that the stage is refused for ever, and nothing, or little, is learnt any more."""


class _Silence:
    """Whether a stage is asked for and hardly ever answers. Seconds."""

    __slots__ = ("asked", "begin", "last", "rows")

    def __init__(self) -> None:
        self.begin = self.last = -math.inf
        self.asked = self.rows = 0
        """Requests since it began, and rows that were answered before."""

    def lasts(self, rows: int, budget: float, *, now: float) -> bool:
        """It is asked for now, for a frame due in `budget`; `rows` were answered so far."""
        rested = now - self.last > FORGET_S
        self.last = now
        self.asked += 1
        if not rested and now - self.begin < FORGET_S + 2.0 * budget:
            return False
        silent = not rested and rows - self.rows < ANSWERED * self.asked
        self.begin, self.asked, self.rows = now, 0, rows
        return silent


class Rest:
    """Of one pipeline, as its models are served by one engine, which is only read."""

    def __init__(self, pipeline: Pipeline, fan_outs: Sequence[FanOut], engine: Engine) -> None:
        """`fan_outs`: of each edge of the pipeline."""
        self._pipeline = pipeline
        self._engine = engine
        by_edge = [*zip(pipeline.edges, fan_outs, strict=True)]
        self._edges = {
            name: [pair for pair in by_edge if pair[0].upstream == name] for name in pipeline.order
        }
        self._asked = {
            stage.name: Request(0, stage.model, 0.0, 0.0, version=stage.version)
            for stage in pipeline.stages
        }
        """What is asked for to find where a stage's requests are routed."""
        self._plan: Plan | None = None
        self._until = -math.inf
        self._work: dict[str, float] = {}
        """Seconds of each stage, on its own. What is behind a stage follows from these and the
        plan."""
        self._behind: dict[str, float] = {}
        """Seconds of the longest branch behind each stage."""
        self.most_rows: dict[str, int] = {}
        """Of one request of each stage, as when a place or reserve was last asked for; 0: its model
        is not served."""
        self._places: Mapping[str, StagePlace] = {}
        self._silences = {name: _Silence() for name, edges in self._edges.items() if edges}

    def reserve(self, stage: str, budget: float, *, now: float) -> float:
        """Of the `budget` seconds of a frame, those to be kept for what is behind `stage`."""
        silence = self._silences.get(stage)
        if silence is not None:
            edges = self._edges[stage]
            if silence.lasts(edges[0][1].rows, budget, now=now):
                for _, fan_out in edges:
                    fan_out.forget()
                self._until = -math.inf
        self._refresh(now)
        behind = self._behind[stage]
        if behind >= budget:
            steps = [self._step(stage, after) for after in self._pipeline.downstream(stage)]
            behind = max((step for step in steps if step < budget), default=0.0)
        needed = behind + self._work[stage]
        return behind if needed <= budget or not behind else behind * max(0.0, budget) / needed

    def place(self, stage: str, *, now: float) -> StagePlace | None:
        """Where another device is to run a stage and all behind it; None: it runs here."""
        self._refresh(now)
        return self._places.get(stage)

    def _refresh(self, now: float) -> None:
        plan = self._engine.plan
        if plan is not self._plan:
            self._plan = plan
            self._places = self._places_of(plan)
            self._work.clear()
        elif now < self._until:
            return
        self._until = now + REFRESH_S
        pipeline, snapshot = self._pipeline, self._engine.snapshot(now=now)
        rows = {pipeline.source: 1}
        for name in pipeline.order:
            for edge, fan_out in self._edges[name]:
                likely = fan_out.likely(rows[name])
                rows[edge.downstream] = max(rows.get(edge.downstream, 0), likely)
        work = {
            name: self._work_of(name, rows[name], snapshot.served_by(self._asked[name]))
            for name in pipeline.order
        }
        if work == self._work:
            return
        self._work = work
        for name in reversed(pipeline.order):
            self._behind[name] = max(
                (self._step(name, after) for after in pipeline.downstream(name)),
                default=self._way_back(name),
            )

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

    def _work_of(self, stage: str, rows: int, served: ServedBy | None) -> float:
        self.most_rows[stage] = 0 if served is None else served.max_batch
        if (place := self._places.get(stage)) is not None:
            return place.p99
        if served is None:
            return 0.0
        most = served.max_batch
        rounds = math.ceil(math.ceil(rows / most) / max(1, served.replicas))
        return rounds * served.times.of(min(rows, most), served.cores).p99

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
