"""Questions to place: the traffic pipeline of the paper's kind, and random ones."""

from __future__ import annotations

import numpy as np

from slacktide.planning.pipelines.problem import (
    BATCHES,
    ConfigurationTimes,
    DeviceView,
    Inflow,
    LinkView,
    PipelineView,
    PlacementQuestion,
    StageConfiguration,
    StageView,
)

MB = 1e6


def times(base: float, row: float, kinds: dict[str, float], batches=BATCHES) -> tuple:
    """base + row · b seconds, times the factor of each kind; p99 a tenth above."""
    return tuple(
        ConfigurationTimes(
            kind,
            tuple(factor * (base + row * batch) for batch in batches),
            tuple(1.1 * factor * (base + row * batch) for batch in batches),
        )
        for kind, factor in kinds.items()
    )


KINDS = {"server": 1.0, "edge": 4.0}
SERVER = DeviceView("server", "server", 2, 4, memory=8e9, server=True)
EDGE = DeviceView("edge", "edge", 1, 1, memory=4e9)


def configuration(base: float, row: float, **fields) -> StageConfiguration:
    own = {"weights": 2e7, "intermediate": 1e8, "utilisation": 0.25, **fields}
    return StageConfiguration(times(base, row, KINDS), **own)


TRAFFIC = PipelineView(
    "traffic",
    "edge",
    0.2,
    15.0,
    (
        StageView("detector", (configuration(0.003, 0.004),), row_bytes=100e3, burstiness=0.1),
        StageView("brand", (configuration(0.001, 0.001),), (Inflow(0, 4.0),), "", 8e3, 100, 2.5),
        StageView("plate", (configuration(0.001, 0.002),), (Inflow(0, 2.0),), "", 6e3, 100, 3.0),
    ),
)


def question(*pipelines: PipelineView, bandwidth: float = 10 * MB, **fields) -> PlacementQuestion:
    """One server and one edge device, unless `fields` say otherwise."""
    return PlacementQuestion(
        **{
            "devices": (EDGE, SERVER),
            "links": (LinkView("edge", "server", bandwidth, 0.005),),
            "pipelines": pipelines or (TRAFFIC,),
            **fields,
        }
    )


def at_random(
    draw: np.random.Generator, *, stages: int = 4, batches=BATCHES[:4], configurations: int = 1
) -> PlacementQuestion:
    """One pipeline of up to so many stages, on an edge device and a server."""
    kinds = {"server": 1.0, "edge": float(draw.uniform(2.0, 8.0))}
    count = int(draw.integers(1, stages + 1))
    drawn = []
    for at in range(count):
        ways = []
        for scale in range(configurations):
            factor = 1.6**-scale
            base, row = draw.uniform(0.0005, 0.006), draw.uniform(0.0003, 0.005)
            ways.append(
                StageConfiguration(
                    times(factor * base, factor * row, kinds, batches),
                    accuracy=0.95**scale,
                    weights=draw.uniform(1e7, 2e8),
                    intermediate=draw.uniform(5e7, 5e8),
                    utilisation=draw.uniform(0.2, 1.0),
                    row_share=0.7**scale,
                )
            )
        drawn.append(
            StageView(
                f"s{at}",
                tuple(ways),
                (Inflow(int(draw.integers(at)), draw.choice([0.3, 1.0, 3.0, 8.0])),) if at else (),
                row_bytes=draw.uniform(60e3, 250e3) if not at else draw.uniform(2e3, 40e3),
                answer_bytes=200.0,
                burstiness=draw.uniform(0.2, 4.0),
            )
        )
    return PlacementQuestion(
        (
            DeviceView("edge", "edge", 1, 1, memory=draw.uniform(3e8, 4e9)),
            DeviceView("server", "server", 2, 4, memory=8e9, server=True),
        ),
        (LinkView("edge", "server", draw.uniform(0.3, 20.0) * MB, draw.uniform(0.002, 0.02)),),
        (PipelineView("p", "edge", draw.uniform(0.1, 0.4), draw.uniform(5, 30), tuple(drawn)),),
        batches,
    )
