"""Each paper has a page: what was published, commands, how long they take, what deviates."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest
import typer
import yaml

import slacktide
from slacktide_papers.command import PAPERS, reproduce

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECTIONS = [
    "What was published",
    "Five commands",
    "How to read the rows",
    "Results beside the printed figures",
    "What deviates and why",
    "What could not be confirmed",
]


def page(name: str) -> str:
    return (DOCS / "reproduce" / f"{name}.md").read_text()


def commands(name: str) -> dict[str, str]:
    """The table of a page: how long each command takes."""
    rows = re.findall(r"^\| `(slacktide reproduce [^`]+)` \|.*\| ([^|]+) \|$", page(name), re.M)
    return dict(rows)


def test_the_index_links_to_every_page():
    linked = re.findall(r"\]\(reproduce/(\w+)\.md\)", (DOCS / "reproduce.md").read_text())
    assert linked == list(PAPERS)
    assert {path.stem for path in (DOCS / "reproduce").iterdir()} == set(PAPERS)


@pytest.mark.parametrize("name", PAPERS)
def test_pages_have_the_same_sections(name):
    sections = re.findall(r"^## (.+)$", page(name), re.M)
    assert sections[: len(SECTIONS)] == SECTIONS


@pytest.mark.parametrize("name", PAPERS)
def test_the_five_commands_are_taken_as_they_stand(name):
    paper = import_module(f"slacktide_papers.{name}.paper").PAPER
    command = typer.main.get_command(reproduce).commands[name]  # type: ignore[attr-defined]
    assert len(commands(name)) == 5
    for line in commands(name):
        words = shlex.split(line)[3:]
        experiments = command.make_context(name, words).params["experiment"] or ()
        assert set(experiments) <= {*paper.experiments, "plan"}, line


def test_help_readme_and_manual_state_the_same_duration_of_a_quick_reproduction():
    readme, index = (ROOT / "README.md").read_text(), (DOCS / "reproduce.md").read_text()
    for name, paper in PAPERS.items():
        stated = set(re.findall(rf"slacktide reproduce {name} --quick .*?: (under .+)\n", readme))
        stated.add(commands(name)[f"slacktide reproduce {name} --quick"])
        (duration,) = stated
        assert f"{duration}." in paper.quick
        assert re.fullmatch(r"under (two|three|four) minutes on two idle cores", duration)
        (row,) = re.findall(rf"^\| \[.*\(reproduce/{name}\.md\).*$", index, re.M)
        assert row.split(" | ")[1] == duration.removesuffix(" on two idle cores")


def test_the_citation_names_this_version_and_every_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == slacktide.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    titles = [reference["title"].lower() for reference in citation["references"]]
    for name in PAPERS:
        assert any(title.startswith(name) for title in titles), name
    for reference in citation["references"]:
        assert reference["year"] in range(2022, 2026)
        assert all(
            {"family-names", "given-names"} == set(author) for author in reference["authors"]
        )
