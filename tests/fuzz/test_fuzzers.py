"""The parsers of the server under a few damaged inputs, and the fuzzers themselves.

`make fuzz` runs them for minutes, with other inputs; see __main__.py.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROUNDS = 400
NAMES = (
    "frames", "http2", "http", "json", "grpc", "tensors", "parameters", "jpeg", "exchange",
    "grpcio", "yaml", "pipeline", "pbtxt",
    "onnx", "exits", "samples", "profiles", "learnt", "labels", "classes", "coco", "yolo",
    "pictures", "manifests", "tables",
    "recordings",
)  # fmt: skip


FOUND = {
    "yaml": [b'slo: "\\UFFFFFFFF"', b"share: " + b"1:" * 2000 + b"1.5"],
    "tensors": [b'{"datatype": "FP64", "shape": [1], "data": [1%b]}' % (b"0" * 400)],
}
"""Inputs that once failed; those of files are changed where they are tried."""


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """The modules beside this file, as `python tests/fuzz` has them, and `.targets` by name."""
    sys.path.insert(0, str(HERE))
    try:
        spec = importlib.util.spec_from_file_location("fuzz_main", HERE / "__main__.py")
        assert spec is not None
        assert spec.loader is not None
        main = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(main)
        main.targets = main.all_targets()
        yield main
    finally:
        sys.path.remove(str(HERE))
        for name in ("target", "mutate", "wire_targets", "http2_targets", "file_targets"):
            sys.modules.pop(name, None)


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_target_is_listed(fuzz: Any) -> None:
    assert tuple(fuzz.targets) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_nothing_but_what_is_declared_comes_of_damaged_inputs(
    fuzz: Any, quiet: None, tmp_path: Path, name: str
) -> None:
    target = fuzz.targets[name]
    if not target.apart:
        assert fuzz.attack(target, 1, ROUNDS, 1e9, None) is None
        return
    done = subprocess.run(
        [sys.executable, HERE, name, "--rounds", str(ROUNDS), "--seconds", "100", "--seed", "1",
         "--failures", tmp_path],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_right_and_inputs_follow_from_the_seed(fuzz: Any, name: str) -> None:
    target = fuzz.targets[name]
    count = len(target.examples())
    first, again, other = (
        [data for data, _ in zip(fuzz.inputs(target, seed), range(count + 20), strict=False)]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first[:count] == other[:count]
    assert first[count:] != other[count:]


@pytest.mark.parametrize("name", FOUND)
def test_inputs_that_failed_once_pass(fuzz: Any, name: str) -> None:
    for data in FOUND[name]:
        assert fuzz.failure(fuzz.targets[name], data) is None


def test_a_stored_profile_of_infinite_shape_is_passed_over(fuzz: Any, quiet: None) -> None:
    (example,) = fuzz.targets["profiles"].examples()
    document = json.loads(example)
    document["profile"]["interface"]["inputs"][0]["shape"] = [math.inf]
    assert fuzz.failure(fuzz.targets["profiles"], json.dumps(document).encode()) is None


def test_a_parser_that_fails_is_told_with_its_seed(fuzz: Any, tmp_path: Path) -> None:
    def parse(data: bytes) -> None:
        if b"\xff" in data:
            raise KeyError("boo")

    targets = next(iter(fuzz.targets.values())).__class__
    changes = fuzz.targets["yaml"].changes
    broken = targets("broken", lambda: [b"a: 1", b"b: 2"], parse, changes)
    kept = tmp_path / "broken"
    failed = fuzz.attack(broken, 3, 100_000, 1e9, kept)
    assert failed is not None
    assert failed.startswith("broken: input ")
    assert "of seed 3" in failed
    assert "KeyError: 'boo'" in failed
    assert b"\xff" in kept.read_bytes()
    assert fuzz.failure(broken, kept.read_bytes()) is not None


def test_an_input_that_takes_too_many_steps_is_a_failure(
    fuzz: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        pass

    def parse(data: bytes) -> None:
        for _ in range(500):
            step()

    monkeypatch.setattr(fuzz, "STEPS", 100)
    slow = next(iter(fuzz.targets.values())).__class__("slow", list, parse, lambda examples: [])
    failed = fuzz.failure(slow, b"", counted=True)
    assert failed is not None
    assert "calls for 0 bytes" in failed
