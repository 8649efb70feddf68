"""The tables of options in the manual are those of the program.

A comment `<!-- options of NAME -->` stands above each. Run this file to write them anew.
"""

from __future__ import annotations

import re
from pathlib import Path

from slacktide.domain.options import rows
from slacktide.domain.registry import Registered
from slacktide.planning.scaling.planners import PLANNERS
from slacktide.scheduling import POLICIES

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(r"^<!-- options of (\w+) -->\n\n(?:\|.*\n)*", re.MULTILINE)
ENTRIES: dict[str, Registered[object]] = {**POLICIES, **PLANNERS}


def written(text: str) -> str:
    """A page with its tables as they should be."""

    def table(found: re.Match[str]) -> str:
        head = ("| option | default | meaning |", "| --- | --- | --- |")
        lines = (*head, *rows(ENTRIES[found[1]].options))
        return f"<!-- options of {found[1]} -->\n\n" + "".join(f"{line}\n" for line in lines)

    return TABLE.sub(table, text)


def test_every_table_of_options_is_that_of_the_program() -> None:
    for page in DOCS.rglob("*.md"):
        assert page.read_text() == written(page.read_text()), page


def test_every_policy_and_planner_has_its_options_in_the_manual() -> None:
    found = [name for page in DOCS.rglob("*.md") for name in TABLE.findall(page.read_text())]
    assert sorted(found) == sorted(set(ENTRIES) - {"orloj_text"})  # it has those of orloj


if __name__ == "__main__":
    for path in DOCS.rglob("*.md"):
        path.write_text(written(path.read_text()))
