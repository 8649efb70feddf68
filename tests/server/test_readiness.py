"""When the server is ready: what `--ready-when` makes of the states that models are in."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Reason
from slacktide.models.versions import UNLOADED, Catalog, VersionState
from slacktide.server import control_plane
from slacktide.server.calls.data_plane import why_absent
from slacktide.server.control_plane import ServerControlPlane
from slacktide.server.settings import ReadyWhen

NOTHING: Any = None
STATES = ("loading", "up", "down", "failed", "unloaded")
"""`down`: it is loaded, and no replica of it is up."""


def catalog_of(states: dict[str, str]) -> Catalog:
    """A catalog whose models of the start are in these states."""
    catalog = Catalog(states)
    for name, state in states.items():
        if state in ("up", "down"):
            version: Any = SimpleNamespace(version="1", is_up=state == "up")
            catalog.serve(name, {"1": version})
        elif state != "loading":
            reason = UNLOADED if state == "unloaded" else "it is broken"
            catalog.mark_absent(name, "1", VersionState.UNAVAILABLE, reason)
        if state != "loading":
            catalog.loading.discard(name)
    return catalog


def ready(catalog: Catalog, when: ReadyWhen) -> bool:
    return control(catalog, when).ready()


def control(catalog: Catalog, when: ReadyWhen) -> ServerControlPlane:
    return ServerControlPlane(catalog, NOTHING, NOTHING, asyncio.Event(), ready_when=when)


@pytest.mark.parametrize(
    ("states", "holds"),
    [
        ("", "loaded all any"),
        ("unloaded", "loaded all any"),
        ("up", "loaded all any"),
        ("up unloaded", "loaded all any"),
        ("up failed", "loaded any"),
        ("up down", "loaded any"),
        ("up loading", "any"),
        ("up failed loading", "any"),
        ("loading", ""),
        ("failed", ""),
        ("down", ""),
        ("failed loading", ""),
        ("failed unloaded", ""),
    ],
)
def test_each_choice_of_ready_when(states: str, holds: str) -> None:
    catalog = catalog_of({f"m{i}": state for i, state in enumerate(states.split())})
    assert [when for when in get_args(ReadyWhen) if ready(catalog, when)] == holds.split()


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from(STATES)))
def test_all_asks_for_more_than_loaded_and_loaded_for_more_than_any(states: dict[str, str]) -> None:
    catalog = catalog_of(states)
    assert ready(catalog, "all") <= ready(catalog, "loaded") <= ready(catalog, "any")


def test_all_asks_for_every_version_and_any_for_one() -> None:
    catalog = catalog_of({"m": "up"})
    two: Any = {n: SimpleNamespace(version=n, is_up=n == "1") for n in ("1", "2")}
    catalog.serve("m", two)
    assert [when for when in get_args(ReadyWhen) if ready(catalog, when)] == ["loaded", "any"]


def test_a_model_loaded_later_may_be_the_one_that_serves_and_is_never_missed() -> None:
    catalog = catalog_of({"m": "failed"})
    later: Any = SimpleNamespace(version="1", is_up=True)
    catalog.serve("later", {"1": later})
    assert ready(catalog, "loaded")
    catalog = catalog_of({"m": "up"})
    catalog.mark_absent("later", "1", VersionState.UNAVAILABLE, "it is broken")
    assert ready(catalog, "all")


@pytest.mark.parametrize("when", get_args(ReadyWhen))
def test_a_server_that_drains_or_is_broken_is_not_ready(when: ReadyWhen) -> None:
    draining = control(Catalog(), when)
    draining.draining = True
    broken = asyncio.Event()
    broken.set()
    assert not draining.ready()
    assert not ServerControlPlane(Catalog(), NOTHING, NOTHING, broken, ready_when=when).ready()


def test_a_model_that_has_not_begun_to_load_is_unavailable_and_not_unknown() -> None:
    catalog = catalog_of({"m": "loading", "broken": "failed"})
    assert why_absent(catalog, "m", None) == (
        Reason.UNAVAILABLE,
        "model 'm' is still loading",
    )
    assert why_absent(catalog, "m", "3")[0] is Reason.UNAVAILABLE
    assert "it is broken" in why_absent(catalog, "broken", None)[1]
    assert why_absent(catalog, "other", None) == (Reason.NOT_FOUND, "unknown model 'other'")


async def test_the_index_lists_models_that_wait_for_their_first_load_as_loading() -> None:
    catalog = catalog_of({"broken": "failed", "waits": "loading"})
    folders: Any = SimpleNamespace(names=lambda: ("broken", "new", "waits"))
    plane = ServerControlPlane(catalog, NOTHING, folders, asyncio.Event())
    assert await plane.repository_index(ready_only=False) == [
        {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "it is broken"},
        {"name": "new"},
        {"name": "waits", "state": "LOADING", "reason": ""},
    ]
    assert await plane.repository_index(ready_only=True) == []


async def test_a_folder_that_does_not_answer_costs_one_thread_and_the_index_no_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_plane, "LISTING_S", 0.0)
    answers, threads = threading.Event(), []

    def names() -> tuple[str, ...]:
        threads.append(threading.current_thread())
        answers.wait()
        return ("new",)

    folders: Any = SimpleNamespace(names=names)
    plane = ServerControlPlane(catalog_of({"broken": "failed"}), NOTHING, folders, asyncio.Event())
    for _ in range(3):
        assert [entry["name"] for entry in await plane.repository_index(ready_only=False)] == [
            "broken"
        ]
    answers.set()
    monkeypatch.setattr(control_plane, "LISTING_S", 30.0)
    index = await plane.repository_index(ready_only=False)
    assert [entry["name"] for entry in index] == ["broken", "new"]
    assert threading.main_thread() not in threads
    assert len(threads) == 1
