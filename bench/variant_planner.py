"""How good the plans of variants are, and how long they take. Pure, no server.

Instances as in Jellyfish §7.6, none left out: rates of 10, 15 or 25 frames a second, objectives of
75, 100 or 150 ms, bandwidths from 7.5 to 50 Mbit/s, 16 sizes of a detector on so many replicas. A
plan is compared with the upper bound that counting replicas gives (`exact.bound`, a mixed-integer
program), at last with clients undivided; where it stays below that with two replicas, or by more
than 1.5 % with four, with the optimum, if that is proven within 60 s. Large fleets
are compared with the linear program. The needed time is CPU time of one core.

Goals: of optima ≥ 0.998 in the mean, of bounds ≥ 0.985, at worst ≥ 0.97; large fleets ≥ 0.97
of the linear program; ≤ 50 ms for 8 × 48, ≤ 500 ms for 16 × 160 and 64 × 1,000 clients, also where
the plan begins with what is known of sessions, and for overloaded fleets; one mapping ≤ 0.2 ms.
Needs scipy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import mean, median
from time import process_time

import numpy as np

from bench.machine import RESULTS, cores, pin
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from slacktide.planning import SessionMeasured, SessionOpened
from slacktide.planning.variants import (
    AssignmentScore,
    Client,
    Family,
    FamilyVariant,
    Fleet,
    VariantsOptions,
    published,
    search,
)
from slacktide.planning.variants.mapping import map_clients
from slacktide.planning.variants.question import Headroom, Question
from slacktide_papers.bounds.exact import bound, optimum
from slacktide_papers.jellyfish.setting import KBIT, SIDES, load_data

SEED = 1
PROFILE = load_data(None)
"""A detector at 16 sizes: a profile that agrees with every number the paper states."""
VARIANTS = PROFILE.variants
KBITS = np.array([PROFILE.frame_bytes[side] for side in SIDES]) / KBIT
"""Of a frame of each size as JPEG."""

SMALL = tuple((2, n) for n in (8, 12, 16, 20)) + tuple((4, n) for n in (16, 24, 32, 40))
MEDIUM = ((8, 32), (8, 48), (8, 64))
LARGE = ((16, 160), (64, 1000))
OVERLOADED = (80, 120)
"""Clients of 25 frames a second on eight replicas, which serve 57 to 60 of them."""
"""Replicas and clients; in the last row clients send 5 frames a second."""
BOUND_S, PROOF_S = 10.0, 20.0
"""Time of the solver for one bound, and for each step of a proof, of the small settings."""


def clients_at_random(
    replicas: int, clients: int, seed: int, rate: float | None
) -> Iterator[tuple[float, float, float]]:
    """Frames per second, objective and Mbit/s of each."""
    drawn = np.random.default_rng((SEED, replicas, clients, seed))
    for _ in range(clients):
        frames = rate or float(drawn.choice((10.0, 15.0, 25.0)))
        yield frames, float(drawn.choice((0.075, 0.1, 0.15))), drawn.uniform(7.5, 50.0)


def instance(replicas: int, clients: int, seed: int, *, rate: float | None = None) -> Fleet:
    """A fleet drawn at random."""
    clients_drawn = []
    for frames, slo, mbit in clients_at_random(replicas, clients, seed, rate):
        budgets = np.where(mbit * 1000 / KBITS > frames, slo - KBITS / (mbit * 1000), 0.0)
        clients_drawn.append(
            Client(f"client {len(clients_drawn)}", frames, tuple(budgets.tolist()))
        )
    return Fleet(VARIANTS, clients_drawn, replicas)


def question(replicas: int, clients: int, seed: int, *, rate: float | None = None) -> Question:
    """The same as the live planner asks it: what is known of sessions, not yet a fleet."""
    sessions = []
    for frames, slo, mbit in clients_at_random(replicas, clients, seed, rate):
        opened = SessionOpened(f"s:{len(sessions)}", "detector", frames, slo)
        sessions.append((opened, SessionMeasured(opened.id, mbit * 125e3, 0.0, 0.6)))
    family = Family(tuple(FamilyVariant(v.name, v.accuracy, int(v.name)) for v in VARIANTS))
    seconds = tuple(variant.seconds for variant in VARIANTS)
    headroom = Headroom(1.0, 1.0)
    return Question(
        seconds, family, VariantsOptions(), headroom, tuple(sessions), (), replicas, (), serial=0
    )


def run(options: Options) -> Result:
    pin(cores().server)
    result = Result("variant_planner", seeds=(SEED,))
    if not options.rows or "small" in options.rows:
        _small(3 if options.quick else 38, result, options)
    if options.wants("medium"):
        _beside_bound("medium", MEDIUM, 2 if options.quick else 10, result)
    if options.wants("large"):
        _beside_bound("large", LARGE, 1 if options.quick else 5, result)
    if options.wants("overloaded"):
        _overloaded(1 if options.quick else 3, result)
    if options.wants("live"):
        _live(1 if options.quick else 5, result)
    return result


@dataclass(frozen=True, slots=True)
class _Judged:
    """One plan beside the best there is."""

    ratio: float
    """Of its accuracy to the optimum's, or to a bound."""
    proven: bool
    """Whether that is the optimum."""
    fewer: float | None
    """Clients that the optimum maps beyond it; None: not known."""
    published_mapped: float
    """Clients that the published selection maps beyond it."""
    published_ratio: float
    """Of the published selection's accuracy to its own."""


def _small(count: int, result: Result, options: Options) -> None:
    """The small settings that are wanted, `count` instances each, in turn. What earlier runs have
    judged is read (unless `fresh`), for all of it takes an hour or more."""
    stored = RESULTS / "variant_planner.jsonl"
    if options.fresh:
        stored.unlink(missing_ok=True)
    wanted = [setting for setting in SMALL if options.wants("small {} × {}".format(*setting))]
    kept = stored.read_text("utf-8").splitlines() if stored.exists() else ()
    judged_before = {tuple(key): _Judged(**judged) for key, judged in map(json.loads, kept)}
    for seed, setting in product(range(count), wanted):
        if (*setting, seed) not in judged_before:
            judged = judged_before[*setting, seed] = _judged(*setting, seed)
            stored.parent.mkdir(exist_ok=True)
            with stored.open("a", encoding="utf-8") as file:
                print(json.dumps(((*setting, seed), asdict(judged))), file=file)
    of = {setting: [judged_before[*setting, seed] for seed in range(count)] for setting in wanted}
    every = [judgement for judgements in of.values() for judgement in judgements]
    optima = [judgement.ratio for judgement in every if judgement.proven]
    bounds = [judgement.ratio for judgement in every if not judgement.proven]
    rows = [
        (
            "{} × {}".format(*setting),
            str(len(own)),
            str(sum(judgement.proven for judgement in own)),
            f"{mean(judgement.ratio for judgement in own):.4f}",
            f"{min(judgement.ratio for judgement in own):.4f}",
        )
        for setting, own in of.items()
    ]
    columns = ("setting", "instances", "optima", "mean", "worst")
    result.tables.append(Table("accuracy ÷ optimum or bound", columns, tuple(rows)))
    fewer = [judgement.fewer for judgement in every if judgement.fewer is not None]
    theirs = mean(judgement.published_mapped for judgement in every)
    result.figures += [
        Figure(f"mean of {len(optima)} proven optima", mean(optima), "×", at_least(0.998)),
        Figure(f"mean of {len(bounds)} bounds", mean(bounds or [1.0]), "×", at_least(0.985)),
        Figure("worst", min(optima + bounds), "×", at_least(0.97)),
        Figure(
            f"as many clients mapped as can be, of {len(fewer)} where that is known",
            mean(difference <= 0 for difference in fewer),
            "×",
            at_least(0.99),
        ),
        Figure("most clients fewer", max(fewer), "", at_most(1.0)),
        Figure("the published selection: clients mapped beside ours", theirs),
        Figure(
            "the published selection: accuracy ÷ ours",
            mean(judgement.published_ratio for judgement in every),
            "×",
        ),
    ]
    result.remarks.append(
        f"{BOUND_S:g} s for a bound, {PROOF_S:g} s for each of the two steps of a proof"
    )


def _judged(replicas: int, number: int, seed: int) -> _Judged:
    fleet = instance(replicas, number, seed)
    score = fleet.score(search(fleet))
    best, proven, fewer = _best(fleet, score, prove_below=1.0 if replicas == 2 else 0.985)
    other = fleet.score(published(fleet, seed=seed))
    return _Judged(
        score.accuracy / best,
        proven,
        fewer,
        other.mapped - score.mapped,
        other.accuracy / score.accuracy,
    )


def _best(
    fleet: Fleet, score: AssignmentScore, *, prove_below: float
) -> tuple[float, bool, float | None]:
    """The accuracy that the plan is compared with, whether it is an optimum's, and how many clients
    more than the plan that maps (None: not known)."""
    most = float("inf")
    more = score.mapped + 1.0
    everyone = score.mapped >= len(fleet.servable())
    fullest = everyone or bound(fleet, mapped=more, seconds=BOUND_S) == -np.inf
    for undivided in (False, True):
        closer = bound(fleet, mapped=score.mapped, undivided=undivided, seconds=BOUND_S)
        most = min(most, most if closer is None else closer)
        if fullest and score.accuracy >= most - 1e-3:
            return score.accuracy, True, 0.0
    if score.accuracy < prove_below * most or not fullest:
        best = optimum(fleet, seconds=PROOF_S)
        if best is not None and best.proven:
            return best.score.accuracy, True, best.score.mapped - score.mapped
    return most, False, 0.0 if fullest else None


def _beside_bound(
    name: str, settings: tuple[tuple[int, int], ...], count: int, result: Result
) -> None:
    """Larger fleets, and how long their plans take."""
    rows = []
    for replicas, number in settings:
        ratios, times, left = [], [], 0.0
        for seed in range(count):
            fleet = instance(replicas, number, seed, rate=5.0 if number > 100 else None)
            times.append(_ms(partial(search, fleet)))
            score = fleet.score(search(fleet))
            most = bound(fleet, mapped=score.mapped, whole=name == "medium", seconds=30.0)
            ratios.append(score.accuracy / (most or float("inf")))
            left += len(fleet.servable()) - score.mapped
        rows.append(
            (f"{replicas} × {number}", f"{mean(ratios):.4f}", f"{min(ratios):.4f}", f"{left:g}")
        )
        goal = at_most(50.0 if name == "medium" else 500.0)
        result.figures += [
            Figure(
                f"{replicas} × {number} ÷ bound",
                mean(ratios),
                "×",
                at_least(0.97 if name == "large" else 0.985),
            ),
            Figure(f"{replicas} × {number}: a plan", median(times), "ms", goal),
        ]
    result.tables.append(
        Table(
            f"{name}: accuracy ÷ bound", ("setting", "mean", "worst", "clients left"), tuple(rows)
        )
    )
    if name == "medium":
        fleet = instance(8, 48, 0)
        took = median(_ms(lambda: map_clients(fleet, range(8))) for _ in range(50))
        result.figures.append(Figure("one mapping, 8 × 48", took, "ms", at_most(0.2)))


def _overloaded(count: int, result: Result) -> None:
    """Fleets of which many clients stay unmapped: a plan must not take longer than a period."""
    for number in OVERLOADED:
        fleets = [instance(8, number, seed, rate=25.0) for seed in range(count)]
        took = max(_ms(partial(search, fleet)) for fleet in fleets)
        unmapped = mean(number - fleet.score(search(fleet)).mapped for fleet in fleets)
        name, note = f"8 × {number} at 25 fps: a plan", f"{unmapped:.0f} clients unmapped"
        period_ms = 1e3 * VariantsOptions().period
        result.figures.append(Figure(name, took, "ms", at_most(period_ms), note=note))


def _live(count: int, result: Result) -> None:
    """What goes off the loop: from sessions to the variant of each."""
    for (replicas, number), most in zip(((8, 48), *LARGE), (50.0, 500.0, 500.0), strict=True):
        rate = 5.0 if number > 100 else None
        questions = [question(replicas, number, seed, rate=rate) for seed in range(count)]
        took = median(_ms(asking.answer) for asking in questions)
        name = f"{replicas} × {number}: a plan of sessions"
        result.figures.append(Figure(name, took, "ms", at_most(most)))


def _ms(call: Callable[[], object]) -> float:
    start = process_time()
    call()
    return (process_time() - start) * 1e3
