"""Experiments to reproduce: settings and contenders. A row of results is a mean over a few runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from slacktide_papers.harness.experiments import Contender, Experiment, Point, TraceCell, TraceScope
from slacktide_papers.jellyfish.setting import (
    ALONE,
    HOMOGENEOUS,
    LARGE,
    MIDDLE,
    MIXED,
    SCATTERED,
    SETTINGS,
    SIDES,
    JellyfishSetting,
)

DURATION = 200
"""Seconds of a run after the last client has joined: the length of the longest trace."""

OURS = Contender("ours", "variants")
PUBLISHED = Contender("published", "published")
B_L, B_M, B_H = (
    Contender.of(f"B_{letter}", "static", variant=float(at))
    for letter, at in (("L", 0), ("M", MIDDLE), ("H", len(SIDES) - 1))
)


def _adapting(label: str, share: float, **options: float) -> Contender:
    named = f"{label} {100 * share:g} %" if share else label
    return Contender.of(named, "published", share=share, **options)


DA = (
    _adapting("DA_off", 0.0, fixed=MIDDLE),
    *(_adapting("DA_bw", share, aligned=0) for share in (0.5, 0.75)),
    *(_adapting("DA_slo", share, aligned=0, network=1) for share in (0.5, 0.75)),
)
"""Frame sizes chosen independently of variants; percentages: the server's share of the SLO."""
LOADING = (
    *(Contender.of(f"published, {n} resident", "published", resident=float(n)) for n in (5, 3)),
    *(Contender.of(f"ours, {n} resident", "variants", resident=float(n)) for n in (5, 3)),
)
"""Each variant is a file of its own; a worker keeps 5 or 3 variants loaded."""
EXITS = (
    Contender.of("ours, exits", "variants", exits=1.0),
    Contender.of("ours, exits, rows run on", "variants", exits=2.0),
)
"""Every variant has an exit. Rows that take it leave the batch or, for the second contender, run
on."""
CONSTANT = tuple(
    Contender.of(f"only {side}", "variants", only=float(at))
    for at, side in enumerate(SIDES)
    if 224 <= side <= 448
)
"""Our server and client with one size for all frames; other sizes are never the best."""
SCATTER = "scatter"
SCATTER_S = 60
"""Seconds of a run with batch times that scatter, of which there are many."""
MECHANISMS = ("urgent", "rescue")
"""Mechanisms of our planner and scheduler that ablations switch off."""
ABLATIONS = (
    *(Contender(f"ours, no {name}", "variants", ((name, 0.0),)) for name in MECHANISMS),
    Contender.of("ours, nothing learned", "variants", bandwidth_share=1.0, capacity_share=1.0),
    Contender.of("ours, every variant on every lane", "variants", lanes="all"),
)


WHOLE = TraceScope(seeds=1, duration=DURATION)
QUICK = TraceScope(seeds=1, duration=20, quick=True)
"""Under two minutes: a few settings of each experiment."""


def _experiment(
    name: str, title: str, settings: Sequence[JellyfishSetting], contenders: Sequence[Contender]
) -> Experiment[TraceScope, TraceCell]:
    """Each contender in each setting; with a quick scope, in only a few of the settings."""

    def points(scope: TraceScope) -> Iterator[Point[TraceCell]]:
        if name == SCATTER:
            scope = replace(scope, duration=min(scope.duration, SCATTER_S))
        every = max(1, len(settings) // 3) if scope.quick else 1
        for setting in settings[every // 2 :: every]:
            for contender in contenders:
                yield scope.point(name, setting.name, contender)

    return Experiment(title, points if settings else None)


_ALL = tuple(HOMOGENEOUS.values())
_SEVERAL = [setting for setting in _ALL if setting.clients > 1]
_STEPS = [setting for setting in _SEVERAL if setting.network == "synthetic"]
_MOVING = [setting for setting in _SEVERAL if setting.network != "synthetic"]
_TWO = [SETTINGS[f"{name} 2 at 25 fps, 100 ms"] for name in ("synthetic", "wifi", "lte")]
_MIXED, _LARGE = tuple(MIXED.values()), tuple(LARGE.values())
_BUSY = [setting for setting in (*_LARGE, *_MIXED) if setting.clients in (8, 32)]
_BOTH = (OURS, PUBLISHED)

EXPERIMENTS: Mapping[str, Experiment[TraceScope, TraceCell]] = {
    name: _experiment(name, title, settings, contenders)
    for name, title, settings, contenders in (
        ("figure-10", "The profile: milliseconds, frames/s, accuracy, frame size", (), ()),
        ("figure-11", "Sizes over time on the synthetic trace", _TWO[:1], _BOTH),
        (
            "figure-12",
            "Misses, accuracy, utilisation and (Figure 13) latency on three networks",
            _ALL,
            _BOTH,
        ),
        ("figure-14", "Sizes over time on WiFi and LTE", _TWO[1:], _BOTH),
        ("figure-15", "Compared with one fixed variant", _SEVERAL, (*_BOTH, B_L, B_M, B_H)),
        ("table-2", "Clients of different rates and SLOs", _MIXED, (*_BOTH, B_M)),
        ("figure-16", "Data and variants adapted separately", _STEPS, (*_BOTH, *DA)),
        ("figure-17", "Eight workers, up to 32 clients, LTE", _LARGE, _BOTH),
        ("figure-18", "Planning time, and plans compared with the optimum", (), ()),
        (
            "figure-19",
            "Variants in separate files: prefetching (§7.7) and mismatches",
            _MOVING,
            LOADING,
        ),
        ("figure-20", "An early exit: milliseconds until requests in a batch are answered", (), ()),
        ("figure-21", "Early exits, one worker, WiFi", tuple(ALONE.values()), (OURS, *EXITS)),
        (
            SCATTER,
            "Batch times that scatter: ours, and each size alone",
            tuple(SCATTERED.values()),
            (OURS, *CONSTANT),
        ),
        ("ablations", "Ours without one of its mechanisms", _BUSY, (OURS, *ABLATIONS)),
    )
}
"""All experiments, by name."""
