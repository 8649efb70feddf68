"""The examples of docs/load.md are commands that can be."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import get_origin, get_type_hints

import pytest

from slacktide.lab.load.build import build_spec
from slacktide.lab.load.flags import LoadFlags
from slacktide.lab.load.request_log import ENDINGS
from slacktide.lab.load.spec import FilePayload, LoadSpec
from slacktide.lab.workloads import ConstantLink, TraceLink

PAGE = (Path(__file__).parents[3] / "docs" / "load.md").read_text()
LINES = PAGE.replace("\\\n", " ").splitlines()
COMMANDS = [line for line in LINES if line.startswith("slacktide load ")]
FLAGS = get_type_hints(LoadFlags)


def parse(command: str) -> LoadSpec:
    """What the command asks for; every flag is one of `LoadFlags` by its own name."""
    _, _, target, *words = shlex.split(command)
    flags: dict[str, str | list[str] | int] = {}
    for flag, value in zip(words[::2], words[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        if get_origin(FLAGS[name]) is tuple:
            values = flags.setdefault(name, [])
            assert isinstance(values, list)
            values.append(value)
        else:
            whole = FLAGS[name] in (int, int | None)
            flags[name] = int(value) if whole else value
    return build_spec(target, **flags)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_can_be_built(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("day.csv").write_text("time_s,rate_rps\n0,10\n")
    Path("bus.csv").write_text("time_s,bandwidth_mbps\n0,8\n")
    spec = parse(command)
    assert spec.streams[0].arrivals.mean_rate(1.0) > 0.0


def test_the_examples_show_what_they_mean_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("day.csv").write_text("time_s\n0\n")
    Path("bus.csv").write_text("time_s,bandwidth_mbps\n0,8\n")
    _, _, text, trace, constant, drawn, recorded, several = map(parse, COMMANDS)
    assert text.streams[0].shapes["attention_mask"] == ((16,), (64,), (256,))
    assert trace.streams[0].payload == FilePayload((Path("inputs.npz"),))
    assert constant.link == ConstantLink(625_000.0, 0.04)
    assert isinstance(drawn.link, TraceLink)
    assert drawn.link.trace.source == "5g"
    assert isinstance(recorded.link, TraceLink)
    assert (recorded.link.offset, recorded.connections) == (30.0, 8)
    assert [stream.label for stream in several.streams] == ["mlp/ads", "text"]
    assert several.streams[1].priority == 1


def test_an_upload_takes_a_stated_time() -> None:
    command = "slacktide load 127.0.0.1:8000 --model mlp --arrivals poisson:200 --upload 4ms"
    assert parse(f"{command} --deadline 50ms").upload == 0.004


def test_every_reason_is_in_the_table() -> None:
    for ending in ENDINGS:
        assert f"| {ending.kind.value} | {ending.label} |" in PAGE
