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
from typing import NamedTuple

from slacktide.planning.pipelines.costs import (
    BUSY,
    FULL,
    EstimateRules,
    Load,
    PlacementScore,
    StageCost,
    Transfer,
    share,
    transfers,
)
from slacktide.planning.pipelines.problem import (
    DeviceView,
    FormTimes,
    LinkView,
    PipelineView,
    PlacedStage,
    PlacementQuestion,
)


class PipelineEstimate(NamedTuple):
    """What a placement of one pipeline does."""

    score: PlacementScore
    latencies: tuple[float, ...]
    """By stage: from a frame's arrival to the end of its batch."""
    latency: float
    """Seconds of the longest path, with the way back."""
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
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        """`links`: the question's, by their ends. `numbers`: those of its devices, by name."""
        self.question, self.pipeline, self.rules = question, pipeline, rules
        self.devices: list[DeviceView] = question.candidates(pipeline)
        """The source first."""
        numbers = numbers or numbers_of(question)
        self.places = [numbers[device.name] for device in self.devices]
        """Number of each device in the question."""
        self._rooms = [
            (
                place,
                host.lanes,
                FULL * host.lanes,
                host.accelerators * host.memory,
                host.accelerators * host.utilisation,
            )
            for host, place in zip(self.devices, self.places, strict=True)
        ]
        self.rates = pipeline.rates()
        self.downstream = pipeline.downstream()
        self.budget = rules.budget * pipeline.slo
        self.slope = 1.0 / max(pipeline.slo - self.budget, 1e-3 * pipeline.slo)
        """What a second more costs."""
        links = links or links_by_ends(question)
        self.links = {
            (begin, end): links[begin_device.name, end_device.name]
            for begin, begin_device in enumerate(self.devices)
            for end, end_device in enumerate(self.devices)
            if (begin_device.name, end_device.name) in links
        }
        self.sinks = [at for at, successors in enumerate(self.downstream) if not successors]
        self.hand_overs: list[tuple[int, int, float, float]] = []
        """(from, to, how many per second, bytes of each) of any two stages; −1: where frames come
        in and answers go. The rows of one frame cross together."""
        for at, (stage, rate) in enumerate(zip(pipeline.stages, self.rates, strict=True)):
            rows = max(1.0, rate / pipeline.rate) if pipeline.rate else 1.0
            for inflow in stage.inflows:
                hand_over_rate = self.rates[inflow.stage] * inflow.fan_out / rows
                self.hand_overs.append((inflow.stage, at, hand_over_rate, rows * stage.row_bytes))
            if not at:
                self.hand_overs.append((-1, 0, rate, stage.row_bytes))
            if not self.downstream[at]:
                self.hand_overs.append((at, -1, rate / rows, rows * stage.answer_bytes))
        self._into: list[list[tuple[int, float]]] = [[] for _ in pipeline.stages]
        """By stage: (from, bytes of each) of `hand_overs`."""
        self._back: list[float | None] = [None] * len(pipeline.stages)
        """By stage: bytes of its answers, if it is a sink."""
        for begin, at, _, size in self.hand_overs:
            if at >= 0:
                self._into[at].append((begin, size))
            else:
                self._back[begin] = size
        exact = [max(form.accuracy for form in stage.forms) for stage in pipeline.stages]
        for at, stage in enumerate(pipeline.stages):
            exact[at] *= min((exact[inflow.stage] for inflow in stage.inflows), default=1.0)
        self.most = math.fsum(self.rates[at] * exact[at] for at in self.sinks)
        """No placement is worth more."""
        self._known: dict[tuple[int, int, int, int], StageCost | None] = {}
        self._hosts: dict[tuple[int, int, int], FormTimes | None] = {}

    def cost(self, stage: int, device: int, form: int = 0, batch: int = 0) -> StageCost | None:
        """Of one choice; None if it cannot be. It has the replicas that its rows need, where there
        are as many lanes."""
        key = stage, device, form, batch
        if key not in self._known:
            self._known[key] = self._cost(*key)
        return self._known[key]

    def _times(self, stage: int, device: int, form: int) -> FormTimes | None:
        """None: it cannot run there."""
        view, host = self.pipeline.stages[stage], self.devices[device]
        stage_form = view.forms[form]
        if (
            (view.devices and host.name not in view.devices)
            or stage_form.weights + stage_form.intermediate > host.memory
            or stage_form.utilisation > host.utilisation
        ):
            return None
        return next((times for times in stage_form.times if times.kind == host.kind), None)

    def _cost(self, at: int, device: int, form_at: int, batch_at: int) -> StageCost | None:
        key = at, device, form_at
        if key not in self._hosts:
            self._hosts[key] = self._times(*key)
        times = self._hosts[key]
        if times is None or batch_at >= len(times.p99):
            return None
        stage, host = self.pipeline.stages[at], self.devices[device]
        form, rate = stage.forms[form_at], self.rates[at]
        lanes = self._rooms[device][1]
        rows, seconds = self.question.batches[batch_at], times.expected[batch_at]
        busy = rate * seconds / rows
        replicas = min(lanes, max(1, math.ceil(busy / self.rules.room - 1e-9)))
        part = busy / replicas
        ratio = min(part, BUSY)
        fill, rounds = 0.0, 1
        if not self.rules.fill:
            per_frame = max(1.0, rate / self.pipeline.rate) if self.pipeline.rate else 1.0
            rounds = math.ceil(per_frame / (rows * replicas) - 1e-9)
        elif rate:
            together = max(1.0, 0.5 + 0.5 * stage.burstiness**2)
            fill = max(0.0, rows - together) / rate
        running, loaded_bytes = form.intermediate, form.weights
        if lanes > 1:
            running, loaded_bytes = 0.0, form.weights + form.intermediate
        # a server's replicas are for all: it takes the part of one that it keeps busy
        loaded_bytes *= busy / self.rules.room if host.server else replicas
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
            (busy * max(1, form.cores) if host.server else 0.0) + gigabyte * loaded_bytes,
            gigabyte * running,
            form.accuracy,
            form.row_share,
        )

    def work(self, costs: Sequence[StageCost], load: Load) -> float:
        """Work of servers, in lanes or what counts as such. `load`: that of these `costs`."""
        total = math.fsum([cost.work for cost in costs])
        if self.rules.memory:
            for device in {cost.device for cost in costs}:
                total += max(cost.running for cost in costs if cost.device == device)
        for ends, (rate, _) in load.links.items() if self.rules.links else ():
            link = self.links.get(ends)
            if link is not None and link.bandwidth > 0.0:
                total += self.rules.links * rate / link.bandwidth
        return total

    def choices(self, stage: int, *, forms: bool = True) -> list[StageCost]:
        """All choices for one stage."""
        choices = []
        for form in range(len(self.pipeline.stages[stage].forms) if forms else 1):
            for device in range(len(self.devices)):
                for batch in range(len(self.question.batches)):
                    cost = self.cost(stage, device, form, batch)
                    if cost is None:
                        break
                    choices.append(cost)
        return choices

    def load(self, costs: Sequence[StageCost]) -> Load:
        """Load of devices and links, by the pipeline's own numbers of devices."""
        load = Load(len(self.devices))
        busy, squares, utilisation = load.busy, load.squares, load.utilisation
        places = []
        for cost in costs:
            device = cost.device
            places.append(device)
            busy[device] += cost.busy
            squares[device] += cost.squares
            utilisation[device] += cost.utilisation
            load.memory[device] += cost.memory
        places.append(0)  # of −1
        for begin, at, rate, size in self.hand_overs:
            if places[begin] != places[at]:
                ends = places[begin], places[at]
                size *= costs[at].row_share if at >= 0 else 1.0
                link_load = load.links.get(ends, (0.0, 0.0))
                load.links[ends] = link_load[0] + rate * size, link_load[1] + rate * size * size
        return load

    def transfer(self, begin: int, end: int, size: float, load: tuple[float, float]) -> float:
        """Seconds that one hand-over of `size` bytes takes, where the link carries `load`."""
        if begin == end:
            return 0.0
        return transfers(self.links.get((begin, end)), load)(size)

    def estimate(self, costs: Sequence[StageCost], load: Load | None = None) -> PipelineEstimate:
        """Estimate these choices beside `load`, which stays as it is."""
        part, load = self.load(costs), load or Load(len(self.question.devices))
        waits, limits = self._on_devices(part, load)
        ways = self._ways(part, load) if part.links else {}
        places: list[int] = []
        latencies: list[float] = []
        shares: list[float] = []
        accuracies: list[float] = []
        rules, slo = self.rules, self.pipeline.slo
        worth = throughput = longest = 0.0
        for at, cost in enumerate(costs):  # in topological order
            device, row_share = cost.device, cost.row_share
            began, served, exact = 0.0, 1.0, 1.0
            for begin, size in self._into[at]:
                origin, over, some, rough = 0, 0.0, 1.0, 1.0
                if begin >= 0:
                    origin, over = places[begin], latencies[begin]
                    some, rough = shares[begin], accuracies[begin]
                if origin != device:
                    transfer, passing = ways[origin, device]
                    over += transfer(size * row_share)
                    some = min(some, passing)
                began = over if over > began else began
                served = some if some < served else served
                exact = rough if rough < exact else exact
            wait, room = cost.alone, limits[device]
            if rules.shared and waits[device] > wait:
                wait = waits[device]
            room = cost.share if cost.share < room else room
            over = began + cost.latency + wait
            served, exact = room if room < served else served, exact * cost.accuracy
            places.append(device)
            latencies.append(over)
            shares.append(served)
            accuracies.append(exact)
            back = self._back[at]
            if back is None:
                continue
            if device:
                transfer, passing = ways[device, 0]
                over += transfer(back)
                served = min(served, passing)
            longest = max(longest, over)
            likely = 1.0 - (over - self.budget) * self.slope
            hope = rules.hope * slo / over if over > 0.0 else 0.0
            served *= min(1.0, max(hope, likely))
            throughput += self.rates[at] * served
            worth += self.rates[at] * served * exact
        return PipelineEstimate(
            PlacementScore(worth, -self.work(costs, part) if worth > 0.0 else -longest),
            tuple(latencies),
            longest,
            tuple(shares),
            throughput,
        )

    def _ways(self, part: Load, load: Load) -> dict[tuple[int, int], tuple[Transfer, float]]:
        """By link that is used: what a hand-over takes, by its bytes, and the share that passes."""
        ways = {}
        for ends, (rate, squares) in part.links.items():
            places = self.places[ends[0]], self.places[ends[1]]
            link_load = load.links.get(places, (0.0, 0.0))
            link = self.links.get(ends)
            spare_bandwidth = 0.0 if link is None else FULL * link.bandwidth - link_load[0]
            transfer = transfers(link, (rate + link_load[0], squares + link_load[1]))
            ways[ends] = transfer, share(spare_bandwidth, rate)
        return ways

    def _on_devices(self, part: Load, load: Load) -> tuple[list[float], list[float]]:
        """By device: the wait for its lanes, and the share of what is asked for that it has the
        room for."""
        waits, limits = [], []
        for at, (place, lanes, full, memory, most) in enumerate(self._rooms):
            busy, needed = load.busy[place], part.busy[at]
            ratio = (busy + needed) / lanes
            ratio = ratio if ratio < BUSY else BUSY
            waits.append((load.squares[place] + part.squares[at]) / lanes / (2.0 * (1.0 - ratio)))
            room = share(full - busy, needed) if needed > 0.0 else 1.0
            if part.memory[at] and load.memory[place] + part.memory[at] > memory:
                room = 0.0
            if part.utilisation[at] > 0.0:
                spare = most - load.utilisation[place]
                room = min(room, share(spare, part.utilisation[at]))
            limits.append(room)
        return waits, limits

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
        """The costs of placed stages. Raises ValueError if one cannot run so."""
        names = [device.name for device in self.devices]
        costs = []
        for at, stage in enumerate(placed):
            batch = self.question.batches.index(stage.batch)
            cost = self.cost(at, names.index(stage.device), stage.form, batch)
            if cost is None:
                raise ValueError(f"{self.pipeline.stages[at].name!r} cannot run as {stage}")
            costs.append(cost)
        return costs


def estimators(question: PlacementQuestion, rules: EstimateRules) -> list[PipelineEstimator]:
    """One for each pipeline."""
    links, numbers = links_by_ends(question), numbers_of(question)
    return [PipelineEstimator(question, view, rules, links, numbers) for view in question.pipelines]


def numbers_of(question: PlacementQuestion) -> dict[str, int]:
    """Numbers of its devices, by name."""
    return {device.name: at for at, device in enumerate(question.devices)}


def links_by_ends(question: PlacementQuestion) -> dict[tuple[str, str], LinkView]:
    """Both ways; where a link is stated for one way only, it is the other's, too."""
    back = {(link.end, link.begin): link for link in question.links}
    return back | {(link.begin, link.end): link for link in question.links}


def total_score(
    question: PlacementQuestion, placed: Sequence[Sequence[PlacedStage]], rules: EstimateRules
) -> PlacementScore:
    """The score of all pipelines together, each beside the others."""
    judges = estimators(question, rules)
    pairs = zip(judges, placed, strict=True)
    return score_of_all(judges, [judge.chosen(stages) for judge, stages in pairs])


def score_of_all(
    judges: Sequence[PipelineEstimator], costs: Sequence[Sequence[StageCost]]
) -> PlacementScore:
    """The score of all pipelines by what each stage costs."""
    load = Load(len(judges[0].question.devices) if judges else 0)
    loads = [judge.load(stage_costs) for judge, stage_costs in zip(judges, costs, strict=True)]
    for judge, part in zip(judges, loads, strict=True):
        load.add(part, judge.places)
    worth = spare = 0.0
    for judge, stage_costs, part in zip(judges, costs, loads, strict=True):
        load.add(part, judge.places, -1.0)
        worth += judge.estimate(stage_costs, load).score.worth
        load.add(part, judge.places)
        spare -= judge.work(stage_costs, part)
    return PlacementScore(worth, spare)
