"""The room's front: its names, its errors, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

from slacktide.models.repository.errors import Problem, RepositoryError


def test_heavy_libraries_are_not_loaded_by_importing() -> None:
    code = (
        "import sys, slacktide.models.repository;"
        "heavy = {'onnx', 'onnxruntime', 'grpc', 'asyncio'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_error_says_where_which_field_and_what_was_expected() -> None:
    error = RepositoryError("m/slacktide.yaml", Problem("slo", "expected x"), "and y")
    assert str(error) == "m/slacktide.yaml: slo: expected x; m/slacktide.yaml: and y"
    assert str(RepositoryError("", "alone")) == "alone"


def test_an_error_is_one_printable_line() -> None:
    assert str(RepositoryError("m", "a\nb\x1b[31m")) == "m: a?b?[31m"
