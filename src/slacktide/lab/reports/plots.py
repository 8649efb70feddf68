"""Plots of reports as inline SVG, drawn by matplotlib (extra `[report]`).

Every plot is one `<svg>` element as text, without XML prolog, metadata or external resources. Equal
reports give equal bytes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from slacktide.lab.load.report.document import Report, ReportError
from slacktide.lab.reports.table import listed

GOOD, REFUSED, OTHER, OFFERED = "#2a7f62", "#d9a441", "#b5403c", "#8a93a3"
_SERIES = ("#3465a4", "#2a7f62", "#d9a441", "#b5403c", "#75507b", "#5c6b73", "#c17d11", "#4e9a06")

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, selectable, drawn with the page's font
    "text.parse_math": False,  # a `$` in a name is a `$`
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
}
_MOST_MARKS = 60
_DECADES_OF_FIVES, _LOG_LABELS = 3.0, 8
"""Maximum decades of an axis that has labels at 2 and 5; maximum labels on a longer axis."""
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def outcomes_over_time(report: Report) -> str:
    """Plot stacked bars: outcomes of the requests due in each bin of the timeline."""

    def draw(axes: Any) -> None:
        line = report.timeline
        width = line.bin_s
        starts = [number * width for number in range(len(line.arrivals))]
        bottom = [0] * len(line.arrivals)
        for label, counts, colour in (
            ("on time", line.on_time, GOOD),
            ("refused", line.refused, REFUSED),
            ("late, failed, cancelled", line.other, OTHER),
        ):
            axes.bar(
                starts, counts, bottom=bottom, width=width, align="edge", color=colour, label=label
            )
            bottom = [low + count for low, count in zip(bottom, counts, strict=True)]
        axes.set_xlabel("second in which they were due")
        axes.set_ylabel("requests" if width == 1.0 else f"requests in {width:g} s")
        axes.legend(frameon=False, loc="upper left", ncols=3)
        axes.set_ylim(0, max(1.0, *line.arrivals, *bottom) * 1.2)

    return _svg(draw, (8.0, 2.8), "outcomes")


def latency_curves(report: Report) -> str:
    """Plot the share of answers within a latency, by stream, over logarithmic milliseconds."""

    drawn = []
    for number, stream in enumerate(listed(report)):
        if seconds := stream.latency_curve:
            ms = tuple(max(latency_s * 1e3, 1e-3) for latency_s in seconds)
            drawn.append(Curve(stream.name, ms, tuple(range(len(ms))), number))
    x_label = f"latency from the {report.latency_from} (ms)"
    return curves(drawn, x_label=x_label, y_label="% of answers", log="x", size=(8.0, 2.8))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a plot. `colour` is an index into the palette; related lines share it."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    colour: int = 0
    dashed: bool = False
    error: tuple[float, ...] = ()
    """Half the height of a band around each point; empty: no band."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a plot; `error` is half the length of the whisker at its end."""

    label: str
    length: float
    error: float = 0.0


def curves(
    lines: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    log: str = "",
    y_most: float | None = None,
    size: tuple[float, float] = (8.0, 3.2),
) -> str:
    """Plot lines, with marks at the points if there are few. `log` names the logarithmic axes: x, y
    or xy."""

    def draw(axes: Any) -> None:
        for line in lines:
            axes.plot(
                line.x,
                line.y,
                color=_SERIES[line.colour % len(_SERIES)],
                linestyle="--" if line.dashed else "-",
                marker="" if line.dashed or len(line.x) > _MOST_MARKS else "o",
                markersize=3.0,
                label=_literal(line.label),
            )
            if line.error:
                axes.fill_between(
                    line.x,
                    [y - error for y, error in zip(line.y, line.error, strict=True)],
                    [y + error for y, error in zip(line.y, line.error, strict=True)],
                    color=_SERIES[line.colour % len(_SERIES)],
                    alpha=0.2,
                    linewidth=0.0,
                )
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.axis_name in log:
                _make_logarithmic(axes, axis)
        if "y" not in log:
            axes.set_ylim(0, y_most)
        if lines:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)

    return _svg(draw, size, "curves")


def bars(some: Sequence[Bar], *, x_label: str, x_most: float | None = None) -> str:
    """Plot horizontal bars, the first on top."""

    def draw(axes: Any) -> None:
        drawn = axes.barh(
            range(len(some)),
            [bar.length for bar in some],
            xerr=[bar.error for bar in some],
            height=0.7,
            color=GOOD,
            ecolor=OFFERED,
            capsize=2.0,
        )
        axes.bar_label(drawn, fmt="%.1f", fontsize=8, padding=4)
        axes.set_yticks(range(len(some)), [_literal(bar.label) for bar in some])
        axes.invert_yaxis()
        axes.set_xlim(0, x_most)
        axes.set_xlabel(x_label)
        axes.grid(axis="y", visible=False)

    return _svg(draw, (8.0, 0.8 + 0.28 * len(some)), "bars")


def log_ticks(least: float, most: float) -> list[float]:
    """Return the positions of the labels on a logarithmic axis from `least` to `most` (both > 0).

    These are 1, 2 and 5 in every decade; only powers of ten if the axis has more than three
    decades; and even steps if the range contains fewer than three of 1, 2 and 5.
    """
    from matplotlib.ticker import MaxNLocator

    low, high = math.log10(least), math.log10(most)
    powers = range(math.ceil(low), math.floor(high) + 1)
    if high - low > _DECADES_OF_FIVES:
        return [10.0**power for power in powers[:: math.ceil(len(powers) / _LOG_LABELS)]]
    decades = range(math.floor(low), math.ceil(high) + 1)
    ticks = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if least <= tick <= most]
    if len(ticks) < 3:
        even = MaxNLocator(nbins=6, steps=[1, 2, 5, 10]).tick_values(least, most)
        ticks = [float(tick) for tick in even if least <= tick <= most]
    return ticks


def _make_logarithmic(axes: Any, axis: Any) -> None:
    """Make one axis logarithmic, without labels of minor ticks, which would overlap the others."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    axes.set(**{f"{axis.axis_name}scale": "log"})
    limits = getattr(axes, f"get_{axis.axis_name}lim")()
    axis.set_major_locator(FixedLocator(log_ticks(*limits)))
    axis.set_major_formatter("{x:.10g}")
    axis.set_minor_formatter(NullFormatter())


def _svg(draw: Callable[[Any], None], size: tuple[float, float], salt: str) -> str:
    """Draw a figure with one pair of axes as an `<svg>` element. Raises ReportError."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError(
            "plots need matplotlib; install it with: pip install 'slacktide[report]'"
        ) from None
    # rc_context limits the style to this figure. pyplot is not used, because it keeps figures.
    with rc_context({**_STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        out = StringIO()
        figure.savefig(out, format="svg", metadata=_NO_METADATA, transparent=True)
    text = out.getvalue()
    element = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)


def _literal(text: str) -> str:
    """Return a name for a legend; matplotlib would hide a name that starts with `_`."""
    return f" {text}" if text.startswith("_") else text
