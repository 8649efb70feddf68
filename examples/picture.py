"""Draw the picture of the README: goodput by load for three schedulers, in virtual time.

    make picture

Writes docs/goodput.svg. Needs the extra `[report]`.
"""

from __future__ import annotations

from pathlib import Path

from slacktide.lab.reports.plots import Curve, curves
from slacktide.lab.simulation.scenario import read_scenario, run_cell

ROOT = Path(__file__).parents[1]
SCENARIO = ROOT / "examples" / "scenarios" / "bursty-classifier.yaml"
PICTURE = ROOT / "docs" / "goodput.svg"
CAPACITY = 16 / 0.053
"""Requests per second of the scenario's model in its largest batches."""
LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
"""Mean arrivals as shares of the capacity."""
SCHEDULERS = {
    "slack": "slack (default)",
    "edf": "earliest deadline first",
    "fifo": "dynamic batching",
}
SEEDS = (1, 2, 3)


def goodput(scheduler: str, load: float) -> float:
    """Percentage of requests answered on time, as a mean over the seeds."""
    arrivals = f"gamma:{load * CAPACITY:.1f}:cv=3"
    settings = [f"grid={{scheduler: [{scheduler}]}}", f"applications.cameras.arrivals={arrivals}"]
    (cell,) = read_scenario(SCENARIO, settings)
    return 100 * sum(run_cell(cell, seed=seed).goodput for seed in SEEDS) / len(SEEDS)


def main() -> None:
    lines = [
        Curve(label, LOADS, tuple(goodput(scheduler, load) for load in LOADS), number)
        for number, (scheduler, label) in enumerate(SCHEDULERS.items())
    ]
    picture = curves(
        lines,
        x_label="load ÷ capacity (bursty arrivals, deadlines of 60 to 250 ms)",
        y_label="answered on time (%)",
        y_most=105,
        size=(7.0, 2.8),
    )
    # White behind it, since its text is black and pages may be dark.
    PICTURE.write_text(picture.replace("<svg ", '<svg style="background: white" ', 1))
    print(f"wrote {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
