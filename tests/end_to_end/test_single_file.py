"""`slacktide serve model.onnx`: one file, no repository."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest

import slacktide


@pytest.mark.slow
def test_a_file_is_served_and_its_profile_kept_below_the_state_folder(
    program: Any, zoo: Any, house: Any, tmp_path: Path
) -> None:
    file = tmp_path / "files" / "my net.onnx"
    file.parent.mkdir()
    shutil.copy(zoo.matmul(), file)
    flags = ("--http-port", "0", "--grpc-port", "-1", "--metrics-port", "-1")
    state = tmp_path / "state"
    for start in range(2):
        served = program(file, *flags, "--profile-budget", "200ms", "--state-dir", state)
        port = served.port("http")
        call = json.dumps(house.matmul_call())
        assert house.ask(port, "POST", "/v2/models/my_net/infer", call).status == 200
        assert house.ask(port, "GET", "/v2/health/ready").status == 200
        served.process.terminate()
        assert served.end() == 0
        log = "".join(served.said)
        assert f"serving {file} as model my_net" in log
        assert "serving 1 of 1 models" in log
        assert ("measuring" in log) == (start == 0)
    (profile,) = set(state.rglob("profile.*.json")) - set(state.rglob("*.learnt.json"))
    assert f"its profile is stored in {profile.parent}" in log
    assert os.listdir(file.parent) == [file.name]


def test_from_python_with_external_data_and_the_users_own_state_folder(
    zoo: Any, house: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The data are read from beside the file, and what else lies there is not touched."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "unreadable").symlink_to("nowhere")
    file = tmp_path / "net.onnx"
    whole = onnx.load(zoo.matmul())
    onnx.save(whole, file, save_as_external_data=True, location="net.data", size_threshold=0)
    assert (tmp_path / "net.data").stat().st_size
    with slacktide.Server(file, grpc_port=None, profile_budget_s=0.1) as server:
        call = json.dumps(house.matmul_call())
        for _ in range(2):
            answer = house.ask(server.http_port, "POST", "/v2/models/net/infer", call)
            assert answer.json["outputs"][0]["data"] == pytest.approx(house.WEIGHT[0].tolist())
            server.load("net")
    kept = [path.name for path in (tmp_path / "state/slacktide/profiles").rglob("profile.*.json")]
    assert len([name for name in kept if not name.endswith(".learnt.json")]) == 1
