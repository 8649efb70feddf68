"""What there is to reproduce: settings and contenders, as rows that are means over a few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from slacktide.reproduce.harness.experiments import (
    Contender,
    Experiment,
    Point,
    TraceCell,
    TraceScope,
)
from slacktide.reproduce.jellyfish.setting import (
    HOMOGENEOUS,
    LARGE,
    MIDDLE,
    MIXED,
    SETTINGS,
    SIDES,
    JellyfishSetting,
)

DURATION = 200
"""Seconds after the last client has joined: once through the longest trace."""

OURS = Contender("ours", "variants")
PUBLISHED = Contender("published", "published")
B_L, B_M, B_H = (
    Contender(f"B_{letter}", "static", (("variant", float(at)),))
    for letter, at in (("L", 0), ("M", MIDDLE), ("H", len(SIDES) - 1))
)


def _adapting(label: str, share: float, **options: float) -> Contender:
    named = f"{label} {100 * share:g} %" if share else label
    return Contender(named, "published", tuple(sorted((options | {"share": share}).items())))


DA = (
    _adapting("DA_off", 0.0, fixed=MIDDLE),
    *(_adapting("DA_bw", share, aligned=0) for share in (0.5, 0.75)),
    *(_adapting("DA_slo", share, aligned=0, network=1) for share in (0.5, 0.75)),
)
"""How data are adapted apart from variants; the share of the SLO is the server's."""
LOADING = (
    *(
        Contender(f"published, {n} resident", "published", (("resident", float(n)),))
        for n in (5, 3)
    ),
    *(Contender(f"ours, {n} resident", "variants", (("resident", float(n)),)) for n in (5, 3)),
)
"""Variants of several files, of which a worker keeps so many loaded."""
HABITS = ("urgent", "rescue")
"""That can be switched off."""
ABLATIONS = (
    *(Contender(f"ours, no {habit}", "variants", ((habit, 0.0),)) for habit in HABITS),
    Contender(
        "ours, nothing learned", "variants", (("bandwidth_room", 1.0), ("capacity_room", 1.0))
    ),
    Contender("ours, all on all lanes", "variants", (("lanes", "all"),)),
)


WHOLE = TraceScope(seeds=1, duration=DURATION)
QUICK = TraceScope(seeds=1, duration=20, quick=True)
"""Under two minutes: a few settings of each experiment."""


def _of(
    experiment: str, settings: Iterable[JellyfishSetting], contenders: Iterable[Contender]
) -> Callable[[TraceScope], Iterator[Point[TraceCell]]]:
    chosen, taking_part = tuple(settings), tuple(contenders)

    def points(scope: TraceScope) -> Iterator[Point[TraceCell]]:
        every = max(1, len(chosen) // 3) if scope.quick else 1
        for setting in chosen[every // 2 :: every]:
            for contender in taking_part:
                cells = tuple(
                    TraceCell(
                        setting.name, contender, seed, scope.duration, scope.folder, scope.digest
                    )
                    for seed in range(1, scope.seeds + 1)
                )
                yield Point(experiment, cells)

    return points


_ALL = HOMOGENEOUS.values()
_SEVERAL = [one for one in _ALL if one.clients > 1]
_TWO = [SETTINGS[f"{name} 2 at 25 fps, 100 ms"] for name in ("synthetic", "wifi", "lte")]
_MOVING = [one for one in _SEVERAL if one.network != "synthetic"]

EXPERIMENTS: Mapping[str, Experiment[TraceScope, TraceCell]] = MappingProxyType(
    {
        "figure-10": Experiment("The profile: milliseconds, frames/s, accuracy, frame size"),
        "figure-11": Experiment(
            "Sizes over time on the synthetic trace",
            _of("figure-11", _TWO[:1], (OURS, PUBLISHED)),
        ),
        "figure-12": Experiment(
            "Misses, accuracy, utilisation and (Figure 13) latency on three networks",
            _of("figure-12", _ALL, (OURS, PUBLISHED)),
        ),
        "figure-14": Experiment(
            "Sizes over time on WiFi and LTE", _of("figure-14", _TWO[1:], (OURS, PUBLISHED))
        ),
        "figure-15": Experiment(
            "Beside one variant for good",
            _of("figure-15", _SEVERAL, (OURS, PUBLISHED, B_L, B_M, B_H)),
        ),
        "table-2": Experiment(
            "Clients of different rates and SLOs",
            _of("table-2", MIXED.values(), (OURS, PUBLISHED, B_M)),
        ),
        "figure-16": Experiment(
            "Data and variants adapted apart",
            _of(
                "figure-16",
                [one for one in _SEVERAL if one.network == "synthetic"],
                (OURS, PUBLISHED, *DA),
            ),
        ),
        "figure-17": Experiment(
            "Eight workers, up to 32 clients, LTE",
            _of("figure-17", LARGE.values(), (OURS, PUBLISHED)),
        ),
        "figure-18": Experiment("Plans beside the optimum, and the time they take"),
        "figure-19": Experiment(
            "Variants of several files: prefetching (§7.7) and mismatches",
            _of("figure-19", _MOVING, LOADING),
        ),
        "ablations": Experiment(
            "Ours without one habit",
            _of(
                "ablations",
                [one for one in (*LARGE.values(), *MIXED.values()) if one.clients in (8, 32)],
                (OURS, *ABLATIONS),
            ),
        ),
    }
)
"""Everything, by name. Figures 20 and 21 (early exits, §5) have their place at its end."""
