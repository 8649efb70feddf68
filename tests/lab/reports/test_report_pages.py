"""Tables and pages: they say what the report says, escape what they are given, fetch nothing."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console, RenderableType

from slacktide.lab.reports import (
    Comparison,
    Curve,
    Report,
    ReportError,
    comparison_page,
    curves,
    html_document,
    html_list,
    page,
    profile_page,
    render,
    render_comparison,
)
from slacktide.lab.reports.plots import log_ticks
from slacktide.profiles import LatencyTable, ProfileRecord
from slacktide.profiles.latency_fit import SizeTime

Build = Callable[..., Report]
Rows = Callable[..., Any]

HOSTILE = "<script>alert('$x$')</script>&[bold]"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Checks that tags nest, and collects text and whatever might be fetched."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._collect(attrs)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._collect(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def _collect(self, attrs: Sequence[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
                self.references.append(value or "")


def shown(renderable: RenderableType) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.fixture
def hostile(report: Build, records: Rows) -> Report:
    return report(
        records(HOSTILE, [(0.0, 0.012, 0), (1.0, 0.3, 1), (1.5, 0.001, 2)]),
        records("_plain", [(0.2, 0.02, 0)]),
        title=HOSTILE,
        warnings=(HOSTILE,),
        errors={HOSTILE: 3},
        configuration={"name": HOSTILE},
    )


def check(text: str) -> Page:
    parsed = Page(text)
    assert parsed.open == []
    assert "script" not in parsed.tags
    assert all(reference.startswith("#") for reference in parsed.references)
    assert not re.search(r"url\((?!['\"]?#)", text)
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert "\\math" not in text
    return parsed


def test_the_page_is_whole_and_fetches_nothing(hostile: Report) -> None:
    parsed = check(page(hostile))
    assert parsed.tags.count("svg") == 2
    assert HOSTILE in parsed.text
    assert "goodput 50.0 %" in parsed.text
    assert "transport" not in parsed.text


def test_the_same_report_gives_the_same_page(hostile: Report) -> None:
    assert page(hostile) == page(hostile)


def test_an_empty_run_still_has_a_page(report: Build, records: Rows) -> None:
    parsed = check(page(report(records("nothing", []))))
    assert "goodput 0.0 %" in parsed.text


def test_comparison_page(hostile: Report, report: Build, records: Rows) -> None:
    better = report(records("a", [(0.0, 0.1, 0)]))
    text = comparison_page(
        Comparison.of(HOSTILE, [("fifo", HOSTILE, hostile), (HOSTILE, HOSTILE, better)]),
        headline=f"In a sentence: {HOSTILE}",
    )
    parsed = check(text)
    assert f"In a sentence: {HOSTILE}" in parsed.text
    assert parsed.tags.count("svg") == 2 * 2
    assert text.count('class="best"') == 1
    assert "100.0 %" in parsed.text


def test_without_matplotlib_the_error_says_what_to_install(
    hostile: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Mapping[str, Any]) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ReportError, match=r"pip install 'slacktide\[report\]'"):
        page(hostile)


def test_the_table_shows_every_stream_and_the_total(hostile: Report) -> None:
    text = shown(render(hostile))
    assert HOSTILE in text
    assert "_plain" in text
    assert "total" in text
    assert "lateness of the generator" in text
    assert "warning: " in text
    assert re.search(r"refusals +1 +1\.00", text)


def test_the_comparison_table_has_bars(report: Build, records: Rows) -> None:
    full, half = (
        report(records("a", [(0.0, 0.1, 0)])),
        report(records("a", [(0.0, 0.1, 0), (0.0, 0.1, 2)])),
    )
    text = shown(
        render_comparison(Comparison.of("c", [("fifo", "1x", half), ("slack", "1x", full)]))
    )
    assert re.search(r"fifo +█{5} +50\.0 %", text)
    assert re.search(r"slack +█{10} +100\.0 %", text)


def test_a_missing_cell_is_a_dash(report: Build, records: Rows) -> None:
    run = report(records("a", [(0.0, 0.1, 0)]))
    comparison = Comparison.of("c", [("fifo", "1x", run), ("slack", "2x", run)])
    assert shown(render_comparison(comparison)).count("–") == 2
    assert "<td>–</td>" in comparison_page(comparison)


def test_curves_draw_every_line_and_escape_its_name():
    lines = [
        Curve(HOSTILE, (1.0, 10.0, 100.0), (0.2, 0.5, 0.9)),
        Curve("_hidden", (1.0, 100.0), (0.1, 0.1), colour=1, dashed=True),
    ]
    drawn = curves(lines, x_label="x (ms)", y_label="share", log="x", y_most=1.0)
    assert drawn == curves(lines, x_label="x (ms)", y_label="share", log="x", y_most=1.0)
    parsed = Page(html_document("<b>", "&", html_list("notes", ["<i>"]) + drawn))
    assert "script" not in parsed.tags
    assert "_hidden" in parsed.text
    assert HOSTILE in parsed.text
    assert "x (ms)" in parsed.text
    assert "<i>" in parsed.text
    assert curves(lines, x_label="", y_label="", log="xy").startswith("<svg")


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [
        (3.0, 40.0, "5 10 20"),
        (0.05, 0.8, "0.05 0.1 0.2 0.5"),
        (21.0, 24.0, "21 21.5 22 22.5 23 23.5 24"),
        (60_100.0, 340_000.0, "100000 150000 200000 250000 300000"),
        (0.00041, 0.00093, "0.0005 0.0006 0.0007 0.0008 0.0009"),
        (18.23, 18.31, "18.24 18.26 18.28 18.3"),
        (1.0, 1000.0, "1 2 5 10 20 50 100 200 500 1000"),
        (0.02, 90_000.0, "0.1 1 10 100 1000 10000"),
        (1e-3, 1e9, "0.001 0.1 10 1000 100000 10000000 1000000000"),
    ],
)
def test_a_logarithmic_axis_has_ticks_at_1_2_5_and_at_even_steps_where_it_is_short(
    least: float, most: float, ticks: str
) -> None:
    assert [f"{tick:.10g}" for tick in log_ticks(least, most)] == ticks.split()


@pytest.mark.parametrize(
    "values",
    [(7.3,), (21.0, 24.0), (12.0, 31.0), (3.0, 40.0), (4e-4, 9e-4), (61e3, 34e4), (1e-3, 1e9)],
)
def test_labels_of_logarithmic_axes_are_plain_numbers(values: tuple[float, ...]) -> None:
    drawn = curves([Curve("line", values, values)], x_label="", y_label="", log="xy")
    labels = [label for label in re.findall(r"<text[^>]*>([^<]+)<", drawn) if label != "line"]
    assert len(labels) >= 6
    assert all(re.fullmatch(r"\d+(\.\d+)?", label) for label in labels)
    half = len(labels) // 2
    assert len(set(labels[:half])) == half


def test_a_profile_page_draws_both_ways_and_escapes_names() -> None:
    sizes = [SizeTime(1, 1, s, 0.012 * s, ((int(100 * s),),)) for s in (0.5, 2.0, 4.0)]
    records = {
        "1": ProfileRecord(LatencyTable.linear(0.010, 0.002, 8, cores=(1, 2, 4), spread=1.3), {}),
        "2": ProfileRecord(
            LatencyTable.linear(0.010, 0.002, 8, spread=1.3), {"x": (100,)}, sizes=tuple(sizes)
        ),
    }
    text = profile_page(HOSTILE, records)
    read = check(text)
    assert text.count("<svg") == 5
    assert "L(s) = " in read.text
    assert HOSTILE in read.text
    assert "l(b, c) = 2.60 ms · b/c + 13.0 ms / c" in read.text
    assert "measured on one core count only" in read.text
    busy = replace(records["1"], cpu_share=0.4)
    text = profile_page("m", {"1": busy})
    assert "other programs used 60 % of these cores" in text
    assert "l(b, c) = " not in text
