"""What a placement would do: latency, effective throughput, memory, work. Equations 1 to 5.

The latency of a stage is what its batch waits to fill, its p99, and what it waits for a lane; that
of a path adds the transfers between devices, and the way back of the answer. Waits:

    fill      (b − m) / λ    m = (1 + CV²) / 2 rows come together, as in a Poisson process of groups
                             of geometric size whose rows have that CV; none if b ≤ m
    lane      ρ / (2 μ (1 − ρ))    M/D/1 of one replica: μ = 1 / latency(b), ρ = λ / (n b μ)
    shared    Σ λ/b · latency(b)² / (2 (1 − ρ)) over all that shares the lanes of a device, if they
              have no timetable: the larger of both counts (M/G/1; of one stage alone the same)

Where batches do not wait to be full, a frame's rows come together: a stage takes as many p99 as
they need batches, one after another.

A sink is worth its rows per second, times the share of them that stages and links on their way have
the capacity for (n b / latency(b); a replica is never more than `FULL` busy), times the accuracies,
times the share that is likely to be in time: all, if its path takes no longer than the budget, a
share of the SLO; none (or by chance, `hope`) from the whole SLO on; in between in proportion. Where
a link or a lane has too much to do, what waits too long is dropped, so that the rest waits as at
`BUSY`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slacktide.planning.pipelines.problem import (
    DeviceView,
    LinkView,
    PipelineView,
    PlacedStage,
    PlacementQuestion,
)

FULL = 0.95
"""Most of its time that a lane or link is busy. What comes beyond that is dropped."""
BUSY = 0.8
"""Share of its time that a lane or link is busy, at most, as far as waits for it go."""
NEVER = 1e9
"""Seconds of a transfer over a link that is not there."""


@dataclass(frozen=True, slots=True)
class EstimateRules:
    """How placements are judged."""

    budget: float = 0.5
    """Share of the SLO that a path may take. Half: OctopInf's streams let a row wait for one duty
    cycle, the other half (§III-C)."""
    room: float = 0.8
    """Replicas are added until each is no busier than this."""
    fill: bool = True
    """Whether batches wait until they are full."""
    shared: bool = True
    """Whether stages wait for one another on the lanes of a device."""
    hope: float = 0.0
    """Share that is in time of a path that takes the whole SLO, by chance; of longer ones less, in
    proportion. So of what is late, that is best which serves much and is not very late."""
    memory: float = 0.0
    """Lanes of a server that a gigabyte counts as, where two placements serve the same."""
    links: float = 0.0
    """The same, of a link that is always busy: what is sent over one may soon be late."""


class StageCost(NamedTuple):
    """What one choice for one stage costs, whatever the other stages."""

    device: int
    """Among the pipeline's candidates."""
    form: int
    batch: int
    """Index of it among the question's."""
    replicas: int
    expected: float
    p99: float
    latency: float
    """Fill and p99 of all batches that a frame's rows need, without waits for a lane."""
    alone: float
    """Wait for a lane of its own."""
    busy: float
    """Lanes, on average."""
    squares: float
    """Batches per second, times their seconds squared."""
    utilisation: float
    """Accelerators, on average."""
    memory: float
    share: float
    """Of its rows that its replicas have the capacity for."""
    work: float
    """Lanes of servers, on average (their cores, where the form says how many), and what its memory
    counts as."""
    running: float
    """What its memory while it runs counts as, where it is the only one to run."""
    accuracy: float
    row_share: float


class Load:
    """What devices and links are loaded with. Changes."""

    __slots__ = ("busy", "links", "memory", "squares", "utilisation")

    def __init__(self, devices: int) -> None:
        self.busy = [0.0] * devices
        self.squares = [0.0] * devices
        self.utilisation = [0.0] * devices
        self.memory = [0.0] * devices
        self.links: dict[tuple[int, int], tuple[float, float]] = {}
        """(bytes per second, hand-overs per second times their bytes squared)."""

    def add(self, other: Load, places: Sequence[int], sign: float = 1.0) -> None:
        """`other` counts devices as `places` says."""
        for local, place in enumerate(places):
            self.busy[place] += sign * other.busy[local]
            self.squares[place] += sign * other.squares[local]
            self.utilisation[place] += sign * other.utilisation[local]
            self.memory[place] += sign * other.memory[local]
        for (begin, end), (rate, squares) in other.links.items():
            ends = places[begin], places[end]
            known = self.links.get(ends, (0.0, 0.0))
            self.links[ends] = known[0] + sign * rate, known[1] + sign * squares


class PlacementScore(NamedTuple):
    """The larger, the better."""

    worth: float
    """Rows at the sinks in time per second, times their accuracy."""
    spare: float
    """Minus the servers' work, in lanes, and what counts as such (`EstimateRules.memory`); of what
    is worth nothing, minus its latency."""


@dataclass(frozen=True, slots=True)
class PipelineEstimate:
    """What a placement of one pipeline does."""

    score: PlacementScore
    latencies: tuple[float, ...]
    """By stage: from a frame's arrival to the end of its batch."""
    latency: float
    """Of the longest path, with the way back."""
    shares: tuple[float, ...]
    """By stage: of its rows that come so far and are served."""
    throughput: float
    """Rows at the sinks per second that are in time, whatever their accuracy."""


class PipelineEstimator:
    """Judges placements of one pipeline."""

    def __init__(
        self,
        question: PlacementQuestion,
        pipeline: PipelineView,
        rules: EstimateRules,
        links: Mapping[tuple[str, str], LinkView] | None = None,
    ) -> None:
        """`links`: the question's, by their ends."""
        self.question, self.pipeline, self.rules = question, pipeline, rules
        self.devices: list[DeviceView] = question.candidates(pipeline)
        """The source first."""
        names = {device.name: at for at, device in enumerate(question.devices)}
        self.places = [names[device.name] for device in self.devices]
        """Of each, its number in the question."""
        self.rates = pipeline.rates()
        self.downstream = pipeline.downstream()
        self.budget = rules.budget * pipeline.slo
        self.slope = 1.0 / max(pipeline.slo - self.budget, 1e-3 * pipeline.slo)
        """What a second more costs."""
        local = {device.name: at for at, device in enumerate(self.devices)}
        self.links = {
            (local[begin], local[end]): link
            for (begin, end), link in (links or links_by_ends(question)).items()
            if begin in local and end in local
        }
        self.sinks = [at for at, each in enumerate(self.downstream) if not each]
        self.hand_overs: list[tuple[int, int, float, float]] = []
        """(from, to, how many per second, bytes of each) of any two stages; −1: where frames come
        in and answers go. The rows of one frame cross together."""
        for at, (stage, rate) in enumerate(zip(pipeline.stages, self.rates, strict=True)):
            rows = max(1.0, rate / pipeline.rate) if pipeline.rate else 1.0
            for inflow in stage.inflows:
                each = self.rates[inflow.stage] * inflow.fan_out / rows
                self.hand_overs.append((inflow.stage, at, each, rows * stage.row_bytes))
            if not at:
                self.hand_overs.append((-1, 0, rate, stage.row_bytes))
            if not self.downstream[at]:
                self.hand_overs.append((at, -1, rate / rows, rows * stage.answer_bytes))
        exact = [max(form.accuracy for form in stage.forms) for stage in pipeline.stages]
        for at, stage in enumerate(pipeline.stages):
            exact[at] *= min((exact[each.stage] for each in stage.inflows), default=1.0)
        self.most = math.fsum(self.rates[at] * exact[at] for at in self.sinks)
        """No placement is worth more."""
        self._known: dict[tuple[int, int, int, int], StageCost | None] = {}

    def cost(self, stage: int, device: int, form: int = 0, batch: int = 0) -> StageCost | None:
        """Of one choice; None if it cannot be. It has the replicas that its rows need, where there
        are as many lanes."""
        key = stage, device, form, batch
        if key not in self._known:
            self._known[key] = self._cost(*key)
        return self._known[key]

    def _cost(self, at: int, device: int, form_at: int, batch_at: int) -> StageCost | None:
        stage, host = self.pipeline.stages[at], self.devices[device]
        form, rate = stage.forms[form_at], self.rates[at]
        times = next((each for each in form.times if each.kind == host.kind), None)
        if (
            times is None
            or batch_at >= len(times.p99)
            or (stage.devices and host.name not in stage.devices)
            or form.weights + form.intermediate > host.memory
            or form.utilisation > host.utilisation
        ):
            return None
        rows, seconds = self.question.batches[batch_at], times.expected[batch_at]
        busy = rate * seconds / rows
        replicas = min(host.lanes, max(1, math.ceil(busy / self.rules.room - 1e-9)))
        part = busy / replicas
        ratio = min(part, BUSY)
        together = max(1.0, 0.5 + 0.5 * stage.burstiness**2)
        fill, rounds = 0.0, 1
        if not self.rules.fill:
            per_frame = max(1.0, rate / self.pipeline.rate) if self.pipeline.rate else 1.0
            rounds = math.ceil(per_frame / (rows * replicas) - 1e-9)
        elif rate:
            fill = max(0.0, rows - together) / rate
        running, kept = form.intermediate, form.weights
        if host.lanes > 1:
            running, kept = 0.0, form.weights + form.intermediate
        # a server's replicas are for all: it takes the part of one that it keeps busy
        kept *= busy / self.rules.room if host.server else replicas
        gigabyte = 1e-9 * self.rules.memory
        return StageCost(
            device,
            form_at,
            batch_at,
            replicas,
            seconds,
            times.p99[batch_at],
            fill + rounds * times.p99[batch_at],
            ratio * seconds / (2.0 * (1.0 - ratio)),
            busy,
            busy * seconds,
            busy * form.utilisation,
            replicas * (form.weights + form.intermediate),
            min(1.0, FULL / part) if part > 0.0 else 1.0,
            (busy * max(1, form.cores) if host.server else 0.0) + gigabyte * kept,
            gigabyte * running,
            form.accuracy,
            form.row_share,
        )

    def work(self, costs: Sequence[StageCost], load: Load) -> float:
        """Of servers, in lanes, and what counts as such. `load`: what `load` says of them."""
        found = math.fsum(cost.work for cost in costs)
        if self.rules.memory:
            for device in {cost.device for cost in costs}:
                found += max(cost.running for cost in costs if cost.device == device)
        for ends, (rate, _) in load.links.items() if self.rules.links else ():
            link = self.links.get(ends)
            if link is not None and link.bandwidth > 0.0:
                found += self.rules.links * rate / link.bandwidth
        return found

    def choices(self, stage: int, *, forms: bool = True) -> list[StageCost]:
        """All that can be, of one stage."""
        found = []
        for form in range(len(self.pipeline.stages[stage].forms) if forms else 1):
            for device in range(len(self.devices)):
                for batch in range(len(self.question.batches)):
                    cost = self.cost(stage, device, form, batch)
                    if cost is None:
                        break
                    found.append(cost)
        return found

    def load(self, costs: Sequence[StageCost]) -> Load:
        """Of devices and links, by the pipeline's own numbers of devices."""
        load = Load(len(self.devices))
        for cost in costs:
            load.busy[cost.device] += cost.busy
            load.squares[cost.device] += cost.squares
            load.utilisation[cost.device] += cost.utilisation
            load.memory[cost.device] += cost.memory
        for begin, at, rate, size in self.hand_overs:
            ends = costs[begin].device if begin >= 0 else 0, costs[at].device if at >= 0 else 0
            if ends[0] != ends[1]:
                size *= costs[at].row_share if at >= 0 else 1.0
                known = load.links.get(ends, (0.0, 0.0))
                load.links[ends] = known[0] + rate * size, known[1] + rate * size * size
        return load

    def transfer(self, begin: int, end: int, size: float, load: tuple[float, float]) -> float:
        """Seconds that one hand-over of `size` bytes takes, where the link carries `load`."""
        if begin == end:
            return 0.0
        link = self.links.get((begin, end))
        if link is None or link.bandwidth <= 0.0:
            return NEVER
        ratio = min(load[0] / link.bandwidth, BUSY)
        wait = load[1] / link.bandwidth**2 / (2.0 * (1.0 - ratio))
        return link.latency + max(0.0, size - link.burst) / link.bandwidth + wait

    def estimate(self, costs: Sequence[StageCost], others: Load | None = None) -> PipelineEstimate:
        """What these choices do beside `others`, who keep what they have."""
        own = self.load(costs)
        waits, limits = zip(
            *[self._device(device, own, others) for device in range(len(self.devices))],
            strict=True,
        )
        carried, passing = {}, {}
        for ends, (rate, squares) in own.links.items():
            there = self._others_on(ends, others)
            carried[ends] = rate + there[0], squares + there[1]
            link = self.links.get(ends)
            left = 0.0 if link is None else FULL * link.bandwidth - there[0]
            passing[ends] = share(left, rate)
        began = [0.0] * len(costs)
        shares, accuracies = [1.0] * len(costs), [1.0] * len(costs)
        latencies = [math.nan] * len(costs)
        worth = throughput = longest = 0.0
        for begin, at, _, size in self.hand_overs:  # in topological order
            over, served, exact = 0.0, 1.0, 1.0
            if begin >= 0:
                cost = costs[begin]
                if math.isnan(latencies[begin]):  # all that it waits for has been seen
                    wait = max(cost.alone, waits[cost.device]) if self.rules.shared else cost.alone
                    latencies[begin] = began[begin] + cost.latency + wait
                    shares[begin] = min(shares[begin], cost.share, limits[cost.device])
                    accuracies[begin] *= cost.accuracy
                over, served, exact = latencies[begin], shares[begin], accuracies[begin]
            ends = costs[begin].device if begin >= 0 else 0, costs[at].device if at >= 0 else 0
            if ends[0] != ends[1]:
                size *= costs[at].row_share if at >= 0 else 1.0
                over += self.transfer(*ends, size, carried[ends])
                served = min(served, passing[ends])
            if at >= 0:
                began[at] = max(began[at], over)
                shares[at], accuracies[at] = min(shares[at], served), min(accuracies[at], exact)
                continue
            longest = max(longest, over)
            likely = 1.0 - (over - self.budget) * self.slope
            hope = self.rules.hope * self.pipeline.slo / over if over > 0.0 else 0.0
            served *= min(1.0, max(hope, likely))
            throughput += self.rates[begin] * served
            worth += self.rates[begin] * served * exact
        work = self.work(costs, own)
        return PipelineEstimate(
            PlacementScore(worth, -work if worth > 0.0 else -longest),
            tuple(latencies),
            longest,
            tuple(shares),
            throughput,
        )

    def _device(self, at: int, own: Load, others: Load | None) -> tuple[float, float]:
        """(wait for its lanes, share of what is asked for that it has the room for)."""
        host, place = self.devices[at], self.places[at]
        busy = squares = utilisation = memory = 0.0
        if others is not None:
            busy, squares = others.busy[place], others.squares[place]
            utilisation, memory = others.utilisation[place], others.memory[place]
        ratio = min((busy + own.busy[at]) / host.lanes, BUSY)
        wait = (squares + own.squares[at]) / host.lanes / (2.0 * (1.0 - ratio))
        room = share(FULL * host.lanes - busy, own.busy[at])
        if own.memory[at] and memory + own.memory[at] > host.accelerators * host.memory:
            room = 0.0
        most = host.accelerators * host.utilisation
        return wait, min(room, share(most - utilisation, own.utilisation[at]))

    def _others_on(self, ends: tuple[int, int], others: Load | None) -> tuple[float, float]:
        if others is None:
            return 0.0, 0.0
        return others.links.get((self.places[ends[0]], self.places[ends[1]]), (0.0, 0.0))

    def placed(self, costs: Sequence[StageCost]) -> tuple[PlacedStage, ...]:
        """As data."""
        return tuple(
            PlacedStage(
                self.devices[cost.device].name,
                self.question.batches[cost.batch],
                cost.replicas,
                cost.form,
            )
            for cost in costs
        )

    def chosen(self, placed: Sequence[PlacedStage]) -> list[StageCost]:
        """The reverse. Raises ValueError for what cannot be."""
        names = [device.name for device in self.devices]
        found = []
        for at, each in enumerate(placed):
            batch = self.question.batches.index(each.batch)
            cost = self.cost(at, names.index(each.device), each.form, batch)
            if cost is None:
                raise ValueError(f"{self.pipeline.stages[at].name!r} cannot run as {each}")
            found.append(cost)
        return found


def estimators(question: PlacementQuestion, rules: EstimateRules) -> list[PipelineEstimator]:
    """One for each pipeline."""
    links = links_by_ends(question)
    return [PipelineEstimator(question, each, rules, links) for each in question.pipelines]


def links_by_ends(question: PlacementQuestion) -> dict[tuple[str, str], LinkView]:
    """Both ways; where a link is stated for one way only, it is the other's, too."""
    back = {(link.end, link.begin): link for link in question.links}
    return back | {(link.begin, link.end): link for link in question.links}


def share(capacity: float, demand: float) -> float:
    """Of a demand that is met."""
    return min(1.0, max(0.0, capacity) / demand) if demand > 0.0 else 1.0


def better(score: PlacementScore, than: PlacementScore) -> bool:
    """Whether it is, by more than arithmetic may be wrong."""
    if abs(score.worth - than.worth) > 1e-9 * (1.0 + abs(score.worth)):
        return score.worth > than.worth
    return score.spare > than.spare + 1e-9 * (1.0 + abs(than.spare))


def total_score(
    question: PlacementQuestion, placed: Sequence[Sequence[PlacedStage]], rules: EstimateRules
) -> PlacementScore:
    """Of all pipelines together, each beside the others."""
    judges = estimators(question, rules)
    pairs = zip(judges, placed, strict=True)
    return score_of_all(judges, [judge.chosen(stages) for judge, stages in pairs])


def score_of_all(
    judges: Sequence[PipelineEstimator], costs: Sequence[Sequence[StageCost]]
) -> PlacementScore:
    """The same, by what each stage costs."""
    load = Load(len(judges[0].question.devices) if judges else 0)
    own = [judge.load(each) for judge, each in zip(judges, costs, strict=True)]
    for judge, part in zip(judges, own, strict=True):
        load.add(part, judge.places)
    worth = spare = 0.0
    for judge, each, part in zip(judges, costs, own, strict=True):
        load.add(part, judge.places, -1.0)
        worth += judge.estimate(each, load).score.worth
        load.add(part, judge.places)
        spare -= judge.work(each, part)
    return PlacementScore(worth, spare)
