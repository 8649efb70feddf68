"""Each policy has a page: what it assumes, when to choose it, its formula, its options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slacktide.scheduling import POLICIES

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {name: name.removesuffix("_text") for name in POLICIES}


def test_the_overview_links_to_every_page() -> None:
    overview = (DOCS / "scheduling.md").read_text()
    linked = dict(re.findall(r"\[`(\w+)`\]\(schedulers/(\w+)\.md\)", overview))
    assert linked == PAGES
    assert {page.stem for page in (DOCS / "schedulers").glob("*.md")} == set(PAGES.values())


@pytest.mark.parametrize("name", POLICIES)
def test_a_page_names_its_policy_and_has_its_options(name: str) -> None:
    text = (DOCS / "schedulers" / f"{PAGES[name]}.md").read_text()
    assert f"`{name}`" in text.splitlines()[0]
    assert f"<!-- options of {PAGES[name]} -->" in text


@pytest.mark.parametrize("name", POLICIES)
def test_a_page_says_what_is_assumed_when_to_choose_it_and_where_it_comes_from(name: str) -> None:
    text = (DOCS / "schedulers" / f"{PAGES[name]}.md").read_text()
    for part in ("**Assumes**", "**Choose it**", "**Rule.**", "Source"):
        assert part in text, part
