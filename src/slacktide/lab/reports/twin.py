"""Shows a prediction beside the recording, as a table for people and as a JSON document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from slacktide.domain import percent
from slacktide.lab.load.report import Percentiles, Report, StreamReport
from slacktide.lab.reports.table import OUTCOME_COLUMNS, TextTable, listed, rich_table
from slacktide.lab.simulation import Prediction
from slacktide.lab.simulation.scenario.sweep import mean

_LEVELS = ("p50", "p90", "p99")


def render_prediction(prediction: Prediction) -> Group:
    """Return a table of recorded and predicted goodput, outcomes and latencies by stream."""
    seeds = len(prediction.predicted)
    points = prediction.difference * 100
    heading = (
        f"goodput recorded {percent(prediction.recorded.goodput)}, predicted "
        f"{percent(prediction.recorded.goodput + prediction.difference)}: {points:+.1f} points "
        f"({seeds} draws of batch times)"
    )
    lines = [
        (recorded.name if number == 0 else "", of, *cells)
        for recorded, predicted in _pairs(prediction)
        for number, (of, cells) in enumerate(_rows(recorded, predicted))
    ]
    headings = ("stream", "of", "recorded", "predicted", "se")
    table = rich_table(TextTable("", headings, lines, words=2))
    notes = [Text(note, style="dim") for note in prediction.notes]
    return Group(Text(heading, style="bold"), table, *notes)


def prediction_document(prediction: Prediction) -> dict[str, Any]:
    """Return plain JSON values: all reports in full, and the difference of goodputs."""
    return {
        "difference": prediction.difference,
        "recorded": prediction.recorded.to_dict(),
        "predicted": [report.to_dict() for report in prediction.predicted],
        "notes": list(prediction.notes),
    }


def _pairs(prediction: Prediction) -> list[tuple[StreamReport, list[StreamReport]]]:
    """Return each recorded stream with its predictions."""

    def by_name(report: Report) -> dict[str, StreamReport]:
        return {stream.name: stream for stream in listed(report)}

    drawn = [by_name(report) for report in prediction.predicted]
    return [(stream, [run[stream.name] for run in drawn]) for stream in listed(prediction.recorded)]


def _rows(
    recorded: StreamReport, predicted: Sequence[StreamReport]
) -> list[tuple[str, tuple[str, str, str]]]:
    """Return (label, cells) of each line; outcomes that no request had are left out."""
    rows = [
        ("submitted", (str(recorded.submitted), str(predicted[0].submitted), "")),
        ("goodput", _cells(recorded, predicted, lambda stream: stream.goodput * 100, "{:.1f} %")),
    ]
    for kind in OUTCOME_COLUMNS:
        if any(stream.outcomes.get(kind, 0) for stream in (recorded, *predicted)):

            def count(stream: StreamReport, kind: str = kind) -> float:
                return stream.outcomes.get(kind, 0)

            rows.append((kind, _cells(recorded, predicted, count, "{:.0f}")))
    for level in _LEVELS:

        def latency(stream: StreamReport, level: str = level) -> float | None:
            samples: Percentiles | None = stream.latency
            return None if samples is None else getattr(samples, level) * 1e3

        rows.append((f"latency {level}", _cells(recorded, predicted, latency, "{:.1f} ms")))
    return rows


def _cells(
    recorded: StreamReport,
    predicted: Sequence[StreamReport],
    of: Callable[[StreamReport], float | None],
    form: str,
) -> tuple[str, str, str]:
    """Return texts of the recorded value, the mean prediction, and its standard error."""
    live = of(recorded)
    drawn = [value for stream in predicted if (value := of(stream)) is not None]
    predicted_mean = mean(drawn) if drawn else None
    return (
        "–" if live is None else form.format(live),
        "–" if predicted_mean is None else form.format(predicted_mean.mean),
        "" if predicted_mean is None or predicted_mean.se is None else f"{predicted_mean.se:.1f}",
    )
