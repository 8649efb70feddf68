"""The page of the library, and the camera example: they run, and do what they say."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import cv2
import numpy as np
import pytest
from tests.client.fake_server import FakeServer

from slacktide.client import FrameResult, SessionOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text()
FRAMES = 8


@pytest.fixture
def detector() -> Iterator[FakeServer]:
    """A server whose detector finds two of three boxes likely."""
    with FakeServer() as running:
        running.outputs = {
            "boxes": np.tile(np.float32([0.1, 0.1, 0.5, 0.5]), (1, 3, 1)),
            "scores": np.array([[0.9, 0.8, 0.1]], np.float32),
        }
        yield running


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (320, 240))
    frames = np.random.default_rng(0).integers(0, 255, (FRAMES, 240, 320, 3), np.uint8)
    for frame in frames:
        writer.write(frame)
    writer.release()
    return path


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=cwd, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_of_the_page_runs(detector, video):
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert "127.0.0.1:8001" in script
    script = script.replace("127.0.0.1:8001", detector.target).replace("slo=0.5", "slo=20")
    lines = run("-c", script, cwd=video.parent).splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"frame \d+: 2 objects, sent at (128|256) px", line), line


def test_the_camera_example_prints_and_draws(detector, video, tmp_path):
    words = ["--server", detector.target, "--slo", "20", "--rate", "50", "--save", "found.avi"]
    path = str(ROOT / "examples" / "camera.py")
    lines = run(path, str(video), *words, cwd=tmp_path).splitlines()
    assert len(lines) == FRAMES + 1
    assert lines[-1] == f"{FRAMES} answered"
    assert all("2 objects" in line for line in lines[:-1])
    recording = cv2.VideoCapture(str(tmp_path / "found.avi"))
    assert recording.get(cv2.CAP_PROP_FRAME_COUNT) == FRAMES


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches children, also where tests run in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_camera_example_at_once(detector, video, tmp_path):
    detector.silent = True  # the replies to frames in flight would be long in coming
    path = str(ROOT / "examples" / "camera.py")
    words = [path, str(video), "--server", detector.target, "--slo", "600", "--rate", "1"]
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        while not detector.hellos:
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        out, errors = running.communicate(timeout=60)
    assert b"Traceback" not in errors
    assert running.returncode == 0
    assert out == b"\n"


def test_the_page_names_every_option_and_result():
    for option in fields(SessionOptions):
        assert f"`{option.name}`" in PAGE or f"{option.name}=" in PAGE, option.name
    for result in FrameResult:
        assert f"`{result}`" in PAGE, result
