"""The demo of video clients: its links and its report, and one short run of all of it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.client import FrameOutcome, FrameResult
from slacktide.lab.cli.demo.clients import (
    FASTEST,
    SLOWEST,
    ClientsRun,
    clients_report,
    show_clients,
)
from slacktide.lab.cli.demo.shared import show_parts
from slacktide.lab.load.played_frames import Seen
from slacktide.planning.variants import FamilyVariant

SETTINGS = """
max_batch: 4
variants:
  sizes: [32, 64, 128]
  accuracy: {"32": 0.3, "64": 0.5, "128": 0.8}
"""
VARIANTS = tuple(
    FamilyVariant(name, accuracy, int(name))
    for name, accuracy in (("32", 0.3), ("64", 0.5), ("128", 0.8))
)


def tiny_family(folder: Path, settings: str = SETTINGS) -> None:
    """A model `sight` that takes images of any size and gives their mean colour."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["x"], ["m"], axes=[1, 2, 3], keepdims=0),
            helper.make_node("Mul", ["m", "one"], ["mean"]),
        ],
        "g",
        [value("image", TensorProto.UINT8, ["n", "height", "width", 3])],
        [value("mean", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.float32(1.0), "one")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "sight" / "1").mkdir(parents=True)
    onnx.save(model, str(folder / "sight" / "1" / "model.onnx"))
    (folder / "sight" / "slacktide.yaml").write_text(settings)


def run_of(**changed: Any) -> ClientsRun:
    return ClientsRun("sight", Path("models"), **changed)


def test_links_change_in_turn_and_repeat_with_the_seed() -> None:
    run = run_of(clients=3, seconds=30.0, change_s=6.0)
    first, second, third = (link.trace for link in run.links)
    assert first.starts.tolist()[:3] == [0.0, 2.0, 8.0]
    assert second.starts.tolist()[:3] == [0.0, 4.0, 10.0]
    assert third.period > 30.0
    for trace, again in zip((first, second, third), run.links, strict=True):
        assert ((trace.rates >= SLOWEST) & (trace.rates <= FASTEST)).all()
        assert trace.rates.tolist() == again.trace.rates.tolist()
    assert first.rates.tolist() != run_of(seed=2).links[0].trace.rates.tolist()


@pytest.fixture
def report() -> dict[str, Any]:
    run = run_of(clients=1, seconds=6.0, change_s=6.0)
    (link,) = run.links
    rates = [(at, link.trace.rate(at)) for at in (1.0, 3.0, 4.0)]
    factors = (9.0, 1.1, 1.3)
    answered, late = FrameResult.ANSWERED, FrameResult.LATE
    camera: Any = SimpleNamespace(
        name="client 1",
        link=link,
        captured=[0.5, 1.5, 2.5, 3.5],
        outcomes=[
            FrameOutcome(answered, 0.1, 64, "128"),
            FrameOutcome(answered, 0.1, 0, "128"),
            FrameOutcome(answered, 0.1, 128, "32"),
            FrameOutcome(late, 0.2, 32, "32"),
        ],
        seen=[Seen(at, rate, k * rate, 64) for (at, rate), k in zip(rates, factors, strict=True)],
        encoding_s=0.6,
        late_s=0.002,
    )
    simulated = {"ours": {"missed": 0.01, "accuracy": 0.6}, "32": {"missed": 0.0, "accuracy": 0.3}}
    return clients_report(run, [camera], VARIANTS, simulated, cpu_s=0.9) | {"cpu_share": 1.0}


def test_a_frame_is_worth_the_smaller_of_what_was_sent_and_what_ran(report: Any) -> None:
    (client,) = report["clients"]
    assert client["missed"] == 0.25
    assert client["accuracy"] == pytest.approx((0.5 + 0.8 + 0.3) / 4)
    assert client["results"] == {"answered": 3, "late": 1}
    assert report["live"]["accuracy"] == pytest.approx(client["accuracy"])


def test_estimates_count_once_the_link_has_had_its_rate_for_a_while(report: Any) -> None:
    assert report["clients"][0]["near"] == 0.5, "of those after 3 s and 4 s"


def test_encoding_is_told_apart(report: Any) -> None:
    live = report["live"]
    assert (live["client_cores"], live["encoding_cores"]) == pytest.approx((0.05, 0.1))


def test_the_tables_say_so(report: Any) -> None:
    out = Console(width=160, record=True, file=StringIO())
    show_parts(show_clients(json.loads(json.dumps(report))), out)
    text = out.export_text()
    for part in (
        "client 1",
        "32 @ 6.3",
        "0.400",
        "25",
        "simulated, ours",
        "0.600",
        "5.0 % of a core",
    ):
        assert part in text, text


def test_sizes_are_not_compared_where_other_programs_held_the_cores(report: Any) -> None:
    out = Console(width=160, record=True, file=StringIO())
    show_parts(show_clients({**report, "cpu_share": 0.5}), out)
    text = out.export_text()
    assert "other programs used 50 % of these cores" in text
    assert "simulated" not in text
    assert "client 1" in text


@pytest.mark.slow
def test_a_short_run_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_family(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    flags = ["--clients", "2", "--seconds", "3", "--change", "1500ms", "--slo", "1s"]
    where = ["--repository", str(tmp_path / "models"), "--model", "sight"]
    done = CliRunner().invoke(app, ["demo", "clients", *flags, *where])
    assert done.exit_code == 0, done.output
    assert "simulated, ours" in done.stdout
    assert "written: clients-report.json" in done.stdout
    found = json.loads((tmp_path / "clients-report.json").read_text())
    assert [each["frames"] for each in found["clients"]] == [29, 29]
    for each in found["clients"]:
        assert sum(each["results"].values()) == 29
        assert each["results"].get("answered", 0) > 0
        assert each["seen"]
    assert list(found["simulated"]) == ["ours", "32", "64", "128"]
    assert found["simulated"]["32"] == {"missed": 0.0, "accuracy": pytest.approx(0.3)}


@pytest.mark.parametrize(
    ("settings", "model", "sentence"),
    [
        ("max_batch: 4\n", "sight", "sight: expected variants.sizes in its settings"),
        (SETTINGS, "other", "other"),
    ],
)
def test_a_model_that_is_no_family_of_sizes_is_named(
    settings: str,
    model: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny_family(tmp_path / "models", settings)
    monkeypatch.chdir(tmp_path)
    where = ["--repository", str(tmp_path / "models"), "--model", model, "--seconds", "1"]
    done = CliRunner().invoke(app, ["demo", "clients", *where])
    assert done.exit_code != 0
    assert sentence in done.output
