"""Readiness of a whole server while models load, fail, and serve."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from slacktide.domain.options import OptionError
from slacktide.models.model_manager import ModelManager
from slacktide.server.app import App
from slacktide.server.settings import ServerSettings

FREE: dict[str, Any] = {
    "http_port": 0,
    "grpc_port": None,
    "metrics_port": None,
    "profile_budget_s": 0.1,
}


@pytest.mark.parametrize(("when", "early", "late"), [("loaded", 503, 200), ("any", 200, 200)])
def test_while_a_model_waits_for_its_load(
    zoo: Any, house: Any, monkeypatch: Any, when: Any, early: int, late: int
) -> None:
    """The first model serves; the second has not begun to load, which is no reason for a 404."""
    zoo.matmul("first")
    zoo.matmul("second")

    async def body() -> None:
        load, reached, gate = ModelManager._try, asyncio.Event(), asyncio.Event()

        async def held(manager: ModelManager, repository: Any, name: str) -> None:
            if name == "second":
                reached.set()
                await gate.wait()
            await load(manager, repository, name)

        monkeypatch.setattr(ModelManager, "_try", held)
        app = App(zoo.root, ServerSettings(ready_when=when, **FREE))
        starting = asyncio.create_task(app.start())

        async def ask(path: str, method: str = "GET", body: str | None = None) -> Any:
            port = app.front_ends.port("http")
            return await asyncio.to_thread(house.ask, port, method, path, body)

        try:
            await reached.wait()
            assert (await ask("/v2/health/ready")).status == early
            assert (await ask("/v2/models/first/ready")).status == 200
            assert (await ask("/v2/models/second/ready")).status == 400
            for answer in (
                await ask("/v2/models/second"),
                await ask("/v2/models/second/infer", "POST", '{"inputs": []}'),
            ):
                assert (answer.status, answer.error) == (503, "model 'second' is still loading")
            assert (await ask("/v2/models/third")).status == 404
            gate.set()
            await starting
            assert (await ask("/v2/health/ready")).status == late
            assert (await ask("/v2/models/second")).status == 200
        finally:
            gate.set()
            await starting
            await app.close()

    asyncio.run(body())


def test_a_broken_model_is_named_at_the_start_and_fails_readiness_only_if_all_must_serve(
    zoo: Any, serve: Any, caplog: Any
) -> None:
    zoo.matmul()
    zoo.broken()
    (zoo.root / "none").mkdir()
    with caplog.at_level("INFO", "slacktide.server"), serve(zoo, ready_when="all") as house:
        answer = house.get("/v2/health/ready")
        assert (answer.status, answer.json) == (503, {"ready": False})
        zoo.matmul("broken")
        house.server.load("broken")
        zoo.matmul("none")
        house.server.load("none")
        answer = house.get("/v2/health/ready")
        assert (answer.status, answer.json) == (200, {"ready": True})
    (line,) = [text for text in caplog.messages if "serving " in text]
    assert line.startswith("listening on http ")
    assert ", not ready (--ready-when all): serving 1 of 3 models; unavailable: broken (" in line
    assert ", none (expected a version folder such as '1', found none)" in line
    assert not any(text.startswith("ready: ") for text in caplog.messages)


def test_a_server_of_one_file_that_is_no_model_listens_and_says_why_it_is_not_ready(
    tmp_path: Path, program: Any
) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    served = program(file, "--http-port=0", "--grpc-port=-1", "--metrics-port=-1")
    assert served.port("http")
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 0
    (line,) = [text for text in served.said if "listening on http " in text]
    assert "not ready (--ready-when loaded): serving 0 of 1 models; unavailable: net (" in line
    assert "a Git LFS pointer; run 'git lfs pull'" in line
    assert not any(" server: ready: " in text for text in served.said)


@pytest.mark.parametrize("when", ["loaded", "all", "any"])
def test_an_empty_repository_is_ready_and_the_log_says_what_was_expected(
    tmp_path: Path, serve: Any, zoo_at: Any, when: str, caplog: Any
) -> None:
    zoo = zoo_at(tmp_path / "empty")
    with serve(zoo, ready_when=when) as house:
        assert house.get("/v2/health/ready").status == 200
    expected = f"{zoo.root}: no models: expected folders such as NAME/1/model.onnx"
    assert expected in caplog.messages


def test_a_choice_that_there_is_not_is_refused() -> None:
    with pytest.raises(OptionError, match="ready_when: expected loaded or all or any, got 'some'"):
        ServerSettings(ready_when="some")  # type: ignore[arg-type]
