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
from slacktide.lab.cli.demo import clients
from slacktide.lab.cli.demo.clients import (
    FASTEST,
    SLOWEST,
    ClientsRun,
    clients_report,
    show_clients,
)
from slacktide.lab.cli.demo.shared import print_report
from slacktide.lab.load.played_frames import LinkReading
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
    """A model `street` that takes images of any size and gives their mean colour."""
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
    (folder / "street" / "1").mkdir(parents=True)
    onnx.save(model, str(folder / "street" / "1" / "model.onnx"))
    (folder / "street" / "slacktide.yaml").write_text(settings)


def test_links_change_in_turn_and_repeat_with_the_seed() -> None:
    run = ClientsRun(clients=3, seconds=30.0, change_s=6.0)
    first, second, third = (link.trace for link in run.links)
    assert first.starts.tolist()[:3] == [0.0, 2.0, 8.0]
    assert second.starts.tolist()[:3] == [0.0, 4.0, 10.0]
    assert third.period > 30.0
    for trace, again in zip((first, second, third), run.links, strict=True):
        assert ((trace.rates >= SLOWEST) & (trace.rates <= FASTEST)).all()
        assert trace.rates.tolist() == again.trace.rates.tolist()
    assert first.rates.tolist() != ClientsRun(seed=2).links[0].trace.rates.tolist()


@pytest.fixture
def report() -> dict[str, Any]:
    run = ClientsRun(clients=1, seconds=6.0, change_s=6.0)
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
        readings=[
            LinkReading(at, rate, k * rate, 64)
            for (at, rate), k in zip(rates, factors, strict=True)
        ],
        encoding_s=0.6,
        late_s=0.002,
    )
    return clients_report(run, [camera], VARIANTS, cpu_s=0.9)


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
    print_report(json.loads(json.dumps(report)), show_clients, out)
    text = out.export_text()
    for part in (
        "client 1",
        "32 @ 6.3",
        "0.400",
        "25",
        "25.0 % of 4 frames were missed",
        "accuracy over all frames 0.400.",
        "5.0 % of a core",
    ):
        assert part in text, text


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes minutes
def test_a_short_run_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "make_repository", lambda folder, models: tiny_family(folder))
    monkeypatch.chdir(tmp_path)
    flags = ["--clients", "2", "--seconds", "3", "--slo", "1s"]
    done = CliRunner().invoke(app, ["demo", "clients", *flags])
    assert done.exit_code == 0, done.output
    assert "written: clients-report.json" in done.stdout
    report = json.loads((tmp_path / "clients-report.json").read_text())
    assert [client["frames"] for client in report["clients"]] == [29, 29]
    for client in report["clients"]:
        assert sum(client["results"].values()) == 29
        assert client["results"].get("answered", 0) > 0
        assert client["seen"]
