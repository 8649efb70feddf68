"""A setting is stated once: its check, its reading, its printed form and its row follow."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.options import (
    OptionError,
    Options,
    option,
    options_of,
    plain,
    read_options,
    written,
)
from slacktide.domain.registry import Registry
from slacktide.domain.units import BYTES, SECONDS, SHARE


@dataclass(frozen=True, slots=True)
class Some(Options):
    wait: float = option(0.5, "Longest wait.", unit=SECONDS, least=0, aliases=("w",))
    share: float = option(0.5, "Share.", unit=SHARE, least=0, most=1)
    size: int | None = option(None, "Size; none: any.", unit=BYTES, above=0)
    sizes: tuple[int, ...] = option((), "Sizes.", least=1)
    kind: Literal["a", "b"] = option("a", "Kind.")
    place: Path | None = option(None, "Place.")
    other: object = None

    def check(self) -> None:
        if self.kind == "b" and self.size is None:
            raise OptionError(("size", "needed by b"))


def test_a_document_is_read_with_its_units_and_names() -> None:
    options = read_options(Some, {"w": "20ms", "size": "1KiB", "sizes": [1, 2]}, bare=False)
    assert options == Some(wait=0.02, size=1024, sizes=(1, 2))
    assert read_options(Some, {"wait": 2, "share": 0.25, "place": Path("x")}).wait == 2.0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"wai": "1s"}, "wai: unknown key; did you mean 'wait'?"),
        ({"w": "1s", "wait": "1s"}, "wait: stated twice: 'wait' is another name for it"),
        ({"wait": 1.0}, "wait: expected a duration with its unit"),
        ({"w": "-1s"}, "w: expected a duration"),
        ({"share": "200%"}, "share: expected a percentage"),
        ({"size": "0B"}, "size: expected more than 0B, got 0B"),
        ({"sizes": [3, 0]}, "sizes: expected at least 1, got 0"),
        ({"sizes": "3"}, "sizes: expected a list, got '3'"),
        ({"kind": "c"}, "kind: expected 'a' or 'b', got 'c'"),
        ({"kind": "b"}, "size: needed by b"),
        ({"wait": "x", "sizes": [0.5]}, "; sizes: expected a whole number, got 0.5"),
        ({"other": 1}, "other: unknown key"),
    ],
)
def test_every_mistake_is_named(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options(Some, values, subject="some", bare=False)
    assert str(caught.value).startswith("some: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("value", [-0.1, inf, nan])
def test_bounds_hold_where_the_class_is_made_too(value: float) -> None:
    with pytest.raises(OptionError, match="wait: expected at least 0s, got"):
        Some(wait=value)


@given(
    st.builds(
        Some,
        wait=st.just(0.0) | st.floats(1e-6, 1e6),
        share=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
        size=st.none() | st.integers(1, 2**40),
        sizes=st.lists(st.integers(1, 99)).map(tuple),
    )
)
def test_written_options_read_back(options: Some) -> None:
    assert read_options(Some, written(options, options_of(Some)), bare=False) == options
    assert read_options(Some, plain(options)) == options


class Thing:
    Options = Some


def test_a_name_is_looked_up_where_it_is_first_used() -> None:
    registry: Registry[Thing] = Registry("thing", {"here": Thing}, aliases={"there": "here"})
    loads: list[str] = []

    def load() -> type[Thing]:
        loads.append("loaded")
        return Thing

    registry.offer("later", load)
    registry.offer("here", load)  # what is built in stays
    assert registry.find("there").name == "here"
    assert loads == []
    assert not registry.find("later").built_in
    assert registry.find("later").options is Some
    assert loads == ["loaded"]
    with pytest.raises(OptionError, match="expected a thing, got 'latr'; did you mean 'later'"):
        registry.find("latr")
