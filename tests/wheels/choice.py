"""Has pip choose between the compiled wheel and the pure one in one folder. For this Python it
takes the compiled one, for any other the pure one; the compiled one alone it refuses there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OTHER = "3.14" if sys.version_info[:2] != (3, 14) else "3.13"


def taken(folder: Path, *flags: str) -> list[str]:
    """The wheels of `folder` that pip takes; none where it says that no version fits."""
    with tempfile.TemporaryDirectory() as target:
        words = ("download", "--quiet", "--no-deps", "--no-index", "--only-binary=:all:")
        command = (sys.executable, "-m", "pip", *words, "--dest", target, "--find-links", folder)
        ended = subprocess.run([*command, *flags, "slacktide"], capture_output=True, text=True)
        assert ended.returncode == 0 or "No matching distribution found" in ended.stderr, ended
        return [path.name for path in Path(target).iterdir()]


with tempfile.TemporaryDirectory() as both, tempfile.TemporaryDirectory() as alone:
    wheels = [Path(shutil.copy(name, both)) for name in sys.argv[1:]]
    (pure,) = (wheel.name for wheel in wheels if wheel.name.endswith("-none-any.whl"))
    (compiled,) = (wheel for wheel in wheels if wheel.name != pure)
    shutil.copy(compiled, alone)
    assert taken(Path(both)) == [compiled.name]
    assert taken(Path(both), "--python-version", OTHER) == [pure]
    assert taken(Path(both), "--platform", "macosx_14_0_arm64") == [pure]
    assert taken(Path(alone), "--python-version", OTHER) == []
    print(f"pip takes {compiled.name} here, {pure} for Python {OTHER} and for another platform")
