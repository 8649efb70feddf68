"""No sentence of the manual has more than 35 words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_WORDS = 35
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def paragraphs(text: str) -> Iterator[str]:
    """Prose and items of lists, without code, tables, headings and comments."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#| {4}\S).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(-|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield " ".join(paragraph.split())


def long_sentences(text: str) -> list[str]:
    """Sentences of more than `MOST_WORDS` words. A link counts as its text, code as one word."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    sentences = (
        sentence
        for paragraph in paragraphs(text)
        for sentence in re.split(r"(?<=[.!?])[)*]* +(?=[^a-z])", paragraph)
    )
    code = re.compile(r"`[^`]*`")
    return [line for line in sentences if len(code.sub("code", line).split()) > MOST_WORDS]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_sentences_are_short(page: Path) -> None:
    sentences = long_sentences(page.read_text())
    assert not sentences, "\n\n".join(sentences)


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    long = "Some " + " ".join(["word"] * 35) + "."
    short = "Some " + " ".join(["word"] * 34) + "."
    assert long_sentences(f"# Head\n\n{short} {short}\n\n| {long} |\n```\n{long}\n```\n") == []
    assert long_sentences(f"{short} {long}") == [long]
    assert long_sentences(f"- {short}\n- {long}\n1. {long}") == [long, long]
    assert long_sentences(f"`{long}` [word](a b c d) {short[:-11]}.") == []
