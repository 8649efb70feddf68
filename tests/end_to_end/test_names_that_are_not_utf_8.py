"""Folders and files whose names are not UTF-8, as an old archive or another system leaves them."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path
from typing import Any

from tritonclient.grpc import InferenceServerClient
from typer.testing import CliRunner

from slacktide.cli.main import app


def odd(folder: Path, name: bytes) -> Path:
    return folder / os.fsdecode(name)


def test_such_a_folder_breaks_nothing_for_the_others(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    shutil.copytree(zoo.root / "matmul", odd(zoo.root, b"m\xff"))
    (zoo.root / "bare").mkdir()
    for place in ("matmul", "bare", "matmul/1"):
        odd(zoo.root / place, b"\xfe.onnx").write_bytes(b"x")
    with serve(zoo) as house:
        index = {entry["name"]: entry for entry in house.post("/v2/repository/index").json}
        assert index["matmul"]["state"] == "READY"
        assert index["m\\xff"]["state"] == "UNAVAILABLE"
        assert "expected letters, digits" in index["m\\xff"]["reason"]
        assert index["bare"]["state"] == "UNAVAILABLE"
        with InferenceServerClient(house.grpc) as client:
            names = {model.name for model in client.get_model_repository_index().models}
            assert names == set(index)
        port = house.server.metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        assert 'slacktide_model_ready{model="m\\\\xff",version="1"} 0' in page


def test_a_repository_and_a_file_at_such_a_path_are_checked_and_named(
    zoo: Any, tmp_path: Path
) -> None:
    zoo.matmul()
    place = odd(tmp_path, b"r\xff")
    shutil.copytree(zoo.root, place)
    file = odd(place, b"net\xff.onnx")
    shutil.copy(zoo.root / "matmul" / "1" / "model.onnx", file)
    for path in (place, file):
        done = CliRunner().invoke(app, ["models", "check", str(path)])
        assert (done.exit_code, done.output) == (0, "1 model checked, no problems\n")
    words = ["serve", str(place), "--state-dir", str(place), "--print-config"]
    assert json.loads(CliRunner().invoke(app, words).stdout)["state_dir"].endswith("r\\xff")
    done = CliRunner().invoke(app, ["serve", str(odd(tmp_path, b"none\xff"))])
    assert done.exit_code == 2
    assert "none\\xff: expected a repository folder, found none" in done.stderr
