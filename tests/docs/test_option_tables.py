"""The tables of options in the manual are those of the program.

A comment `<!-- options of NAME -->` stands above each; of a file, the keys that are meant are named
too: `<!-- options of FILE: KEY, KEY -->`. Run this file to write the tables anew.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
import yaml

from slacktide.domain import options
from slacktide.domain.options import Options, option, options_of
from slacktide.domain.units import BYTES, SECONDS, SHARE
from slacktide.lab.simulation.scenario.sections import Scenario
from slacktide.models.plugins import offer_entry_points
from slacktide.models.repository.fields import Section
from slacktide.models.repository.pipeline import PipelineSettings
from slacktide.models.repository.settings import ModelSettings
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.planning.variants import VariantsOptions
from slacktide.scheduling import POLICIES

DOCS = Path(__file__).parents[2] / "docs"
TABLE = re.compile(r"^<!-- options of ([\w.]+)(?:: (.+))? -->\n\n(?:\|.*\n)*", re.MULTILINE)
offer_entry_points()
ENTRIES: dict[str, type[Options]] = {
    **{
        name: kind.find(name).options
        for kind in (POLICIES, SCALING_POLICIES)
        for name in kind.names()
    },
    "variants": VariantsOptions,
}
FILES: dict[str, type[Section]] = {
    "slacktide.yaml": ModelSettings,
    "pipeline.yaml": PipelineSettings,
    "scenario": Scenario,
}


def rows(kind: type[Options]) -> Iterator[str]:
    """The table of the manual: option, default, meaning."""
    for name, described in options_of(kind).items():
        value = cell(options.written(kind(), [name])[name])
        names = " or ".join(f"`{word}`" for word in (name, *described.aliases))
        bounds = f" ({described.bounds()})" if described.bounds() else ""
        yield f"| {names} | {value} | {described.text}{bounds} |"


def cell(default: Any) -> str:
    """A default, as a file has it, in a table of the manual."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        default = ", ".join(map(str, default))
    elif isinstance(default, str) and default:
        return f"`{default}`"
    return "none" if default in (None, "") else str(default)


def texts(section: type[Section]) -> dict[str, str]:
    """The string under each field. Read here, since pydantic would read it at every start."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def below(annotation: Any, name: str = "") -> tuple[str, type[Section]] | None:
    """The section that a field holds; first `NAME.` if it holds one by each name."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return name, annotation
    name = "NAME." if get_origin(annotation) is dict else name
    return next(filter(None, (below(part, name) for part in get_args(annotation))), None)


def keys(section: type[Section]) -> Iterator[tuple[str, str]]:
    """Each key of a file, dotted, with its row. A section without a text has no row of its own.

    Keys of a section that occurs several times stand under its shortest path only. Those of
    another package's section are on the page of its file.
    """
    homes: dict[type[Section], str] = {}
    level = [("", section)]
    while level:
        for path, part in level:
            homes.setdefault(part, path)
        level = [
            (f"{path}{field.alias or name}.{inner[0]}", inner[1])
            for path, part in level
            if homes[part] == path
            for name, field in part.model_fields.items()
            if (inner := below(field.annotation)) is not None
        ]
    yield from keys_below(section, "", homes)


def keys_below(
    section: type[Section], prefix: str, homes: dict[type[Section], str]
) -> Iterator[tuple[str, str]]:
    documented, defaults = texts(section), section.model_construct().model_dump(mode="json")
    for name, field in section.model_fields.items():
        key, inner = prefix + (field.alias or name), below(field.annotation)
        path = "" if inner is None else f"{key}.{inner[0]}"
        home = path if inner is None else homes[inner[1]]
        if inner is None or name in documented:
            alike = "" if home == path else f" Keys: as under `{home.removesuffix('.')}`."
            default = "" if field.is_required() else cell(plainly(defaults[name]))
            stated = {"": " Required.", "none": ""}.get(default, f" Default: {default}.")
            yield key, f"| `{key}` | {documented[name]}{alike}{stated} |"
        if inner is None or home != path:
            continue
        if name not in documented or package(inner[1]) == package(section):
            yield from keys_below(inner[1], path, homes)


def package(section: type[Section]) -> str:
    return section.__module__.split(".")[1]


def plainly(default: Any) -> Any:
    """A default as people write it: in its short form, a section as YAML in one line."""
    match default:
        case {"name": name, **others} if not others:
            return name
        case {"min": least, "max": most} if least == most:
            return least
        case dict():
            stated = {key: value for key, value in default.items() if value is not None}
            return yaml.safe_dump(stated, default_flow_style=True).strip() if stated else None
    return default


def key_rows(name: str, chosen: list[str]) -> Iterator[str]:
    """The rows of some keys of a file, each with those below it."""
    every_row = [*keys(FILES[name])]
    for above in chosen:
        yield from (row for key, row in every_row if f"{key}.".startswith(f"{above}."))


def written(text: str) -> str:
    """A page with its tables as they should be."""

    def table(placeholder: re.Match[str]) -> str:
        name, chosen = placeholder.groups()
        of_file = chosen is not None
        lines = key_rows(name, chosen.split(", ")) if of_file else rows(ENTRIES[name])
        head = "| key | meaning |" if of_file else "| option | default | meaning |"
        rule = re.sub(r"\w+", "---", head)
        marker = placeholder[0].partition("\n")[0]
        return f"{marker}\n\n" + "".join(f"{line}\n" for line in (head, rule, *lines))

    return TABLE.sub(table, text)


def test_every_table_of_options_is_that_of_the_program() -> None:
    for page in DOCS.rglob("*.md"):
        assert page.read_text() == written(page.read_text()), page


def test_every_policy_and_planner_has_its_options_in_the_manual() -> None:
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    documented = [name for page in pages for name, chosen in TABLE.findall(page) if not chosen]
    assert sorted(documented) == sorted(set(ENTRIES) - {"orloj_text"})  # it has those of orloj


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("slacktide.yaml", "configuration.md"),
        ("pipeline.yaml", "pipelines.md"),
        ("scenario", "simulation.md"),
    ],
)
def test_every_key_of_a_file_is_in_one_table(name: str, page: str) -> None:
    tables = (t[0] for t in TABLE.finditer((DOCS / page).read_text()) if t[1] == name)
    documented = [row for table in tables for row in table.splitlines() if row.startswith("| `")]
    assert sorted(documented) == sorted(row for _, row in keys(FILES[name]))


@dataclass(frozen=True, slots=True)
class Some(Options):
    wait: float = option(0.5, "Longest wait.", unit=SECONDS, least=0, aliases=("w",))
    share: float = option(0.5, "Share.", unit=SHARE, least=0, most=1)
    size: int | None = option(None, "Size; none: any.", unit=BYTES, above=0)


def test_the_rows_of_the_manual() -> None:
    assert list(rows(Some)) == [
        "| `wait` or `w` | `500ms` | Longest wait. (at least 0s) |",
        "| `share` | `50%` | Share. (0% to 100%) |",
        "| `size` | none | Size; none: any. (more than 0B) |",
    ]


if __name__ == "__main__":
    for path in DOCS.rglob("*.md"):
        path.write_text(written(path.read_text()))
