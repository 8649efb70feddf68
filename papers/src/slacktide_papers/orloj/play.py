"""Play one cell in virtual time: the engine and the policy of the server, on one lane.

Before the run, a scheduler knows c0, c1 and sample lengths of each application. It learns nothing
during the run (the paper's profiler does not run in the paper's experiments either). The length of
a request shows only in the time of its batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import mul

from slacktide.domain import (
    Batch,
    Deployment,
    LaneSpec,
    Notice,
    Outcome,
    OutcomeKind,
    Plan,
    PoolId,
    Request,
    Route,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import (
    KAPPAS,
    ByLength,
    DrawnRequest,
    Execution,
    Item,
    OracleSlack,
    OracleSlackOptions,
    SimulatedUpload,
    Simulation,
)
from slacktide.profiles import MOST_CLASSES, FixedTimes, classes_of_samples
from slacktide.scheduling import make_scheduler
from slacktide_papers.orloj.experiments import YARDSTICK, OrlojCell
from slacktide_papers.orloj.setting import SETTINGS, OrlojRequests, draw_requests

_MODEL = "model"
_POOL = PoolId(_MODEL, "1")
_LANE = LaneSpec("lane", (0,))


@dataclass(frozen=True, slots=True)
class Finish:
    """How many requests were submitted and finished in time, by application."""

    submitted: Mapping[str, int]
    on_time: Mapping[str, int]

    @property
    def rate(self) -> float:
        """The finish rate: on time ÷ submitted."""
        return sum(self.on_time.values()) / sum(self.submitted.values())

    def rate_of(self, application: str) -> float:
        """The finish rate of one application that submitted something."""
        return self.on_time[application] / self.submitted[application]


class _Slower:
    """Hardware on which each batch takes `seconds` longer than policies expect."""

    def __init__(self, execution: Execution, seconds: float) -> None:
        self._execution = execution
        self._more = seconds

    def seconds(self, batch: Batch, cores: int) -> float:
        return self._execution.seconds(batch, cores) + self._more


def play(cell: OrlojCell) -> Finish:
    """Play `cell`; equal cells give equal outcomes. Raises ReproduceError,
    OptionError."""
    requests = draw_requests(
        SETTINGS[cell.setting],
        cell.case,
        seed=cell.seed,
        requests=cell.requests,
        p99_ms=cell.p99_ms,
        trace=cell.trace,
    )
    kappas = KAPPAS if cell.contender.policy == YARDSTICK else KAPPAS[:1]
    return max((_played(cell, requests, kappa) for kappa in kappas), key=lambda finish: finish.rate)


def _played(cell: OrlojCell, requests: OrlojRequests, kappa: float) -> Finish:
    submitted = Counter(requests.applications)
    on_time: Counter[str] = Counter(dict.fromkeys(submitted, 0))

    def answered(request: Request | Notice, outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.SERVED:
            on_time[request.application] += 1

    most = requests.latency.sizes[-1]
    plan = Plan((_LANE,), (Deployment(_POOL, _LANE.name, most),), (Route(_MODEL, _POOL),))
    hardware = _Slower(ByLength(requests.latency), cell.overhead_ms / 1e3)
    simulation = Simulation(_engine(cell, requests, kappa), plan, hardware, answered=answered)
    simulation.run(_items(cell, requests))
    return Finish(dict(submitted), dict(on_time))


def _engine(cell: OrlojCell, requests: OrlojRequests, kappa: float) -> Engine:
    contender = cell.contender
    classes = classes_of_samples(
        requests.training,
        requests.latency,
        shares=requests.shares,
        # The published policies have a class per application; ours merges similar ones.
        most=MOST_CLASSES if contender.policy == "slack" else len(requests.training),
    )

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = FixedTimes(classes)
        if contender.policy == YARDSTICK:
            mean = sum(map(mul, classes.shares, classes.means))
            oracle = OracleSlack(
                requests.latency,
                mean_length=mean,
                max_batch=max_batch,
                times=times,
                view=view,
                options=OracleSlackOptions(deferral_discount=kappa),
            )
            return PoolParts(oracle, times)
        scheduler = make_scheduler(
            contender.policy, dict(contender.options), max_batch=max_batch, times=times, view=view
        )
        return PoolParts(scheduler, times)

    return Engine(parts)


def _items(cell: OrlojCell, requests: OrlojRequests) -> Iterator[Item]:
    """The requests in order of arrival. With notice, each is an upload: announced at that instant,
    and complete `notice` later. The deadline always counts from the completed arrival."""
    slo = cell.slo * requests.p99_alone
    notice = cell.contender.notice * requests.alone
    columns = zip(
        requests.arrivals.tolist(), requests.lengths.tolist(), requests.applications, strict=True
    )
    for id, (at, length, application) in enumerate(columns):
        until = at + notice + slo
        request = DrawnRequest(
            id=id, model=_MODEL, arrival=at, deadline=until, application=application, length=length
        )
        if notice:
            end = at + notice
            yield SimulatedUpload.of(request, believed=end, complete_at=end)
        else:
            yield request
