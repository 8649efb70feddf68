"""A kernel, or a sandbox, without the system calls of worker processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.executors import kernel
from slacktide.executors.kernel import UnsupportedKernelError, require_kernel


def lack(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> None:
    """Have a function of `os` fail as a system call that is missing does."""

    def missing(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, missing)


def test_this_kernel_has_what_is_needed_and_nothing_stays_open() -> None:
    before = os.listdir("/proc/self/fd")
    require_kernel()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("name", "release"), [("pidfd_open", "Linux 5.3"), ("memfd_create", "Linux 3.17")]
)
@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSYS, "Function not implemented"), (errno.EPERM, "Operation not permitted")],
)
@pytest.mark.parametrize("verb", ["serve", "models check", "profile"])
def test_every_verb_that_runs_models_names_the_call_that_is_missing(
    models,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    release: str,
    number: int,
    reason: str,
    verb: str,
) -> None:
    file: Path = models.matmul()
    lack(monkeypatch, name, number)
    place = file.parent.parent if verb == "profile" else file.parent.parent.parent
    ports = ("--http-port=0", "--grpc-port=-1", "--metrics-port=-1") if verb == "serve" else ()
    result = CliRunner().invoke(app, [*verb.split(), str(place), *ports])
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert name in line
    assert f"({release}): {reason}; use a newer kernel" in line


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch, "pidfd_open", errno.ENOSYS)
    monkeypatch.delattr(os, "memfd_create")  # as where the C library is too old
    with pytest.raises(UnsupportedKernelError, match=r"pidfd_open .* and memfd_create"):
        require_kernel()


def test_too_few_descriptors_are_no_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    lack(monkeypatch, "pidfd_open", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files") as raised:
        require_kernel()
    assert not isinstance(raised.value, kernel.UnsupportedKernelError)
