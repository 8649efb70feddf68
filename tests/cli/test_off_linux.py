"""What runs off Linux: the client, simulations, `models check` and every help. A process plays
another system: it has neither the calls that only Linux has, nor the files in /proc and /sys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slacktide.cli.main import VERBS

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "scenarios"
ELSEWHERE = """
import fcntl, os, resource, runpy, select, signal, socket, sys, sysconfig, time
import numpy, onnx, onnxruntime, urllib.request  # what others make of a system is theirs

sysconfig.get_config_vars()
for module, names in {
    fcntl: "F_ADD_SEALS F_GETPIPE_SZ F_SEAL_GROW F_SEAL_SEAL F_SEAL_SHRINK F_SETPIPE_SZ",
    os: "copy_file_range eventfd getresuid memfd_create pidfd_open posix_fadvise posix_fallocate"
    " sched_getaffinity sched_getscheduler sched_setaffinity sched_setscheduler setresuid splice",
    resource: "RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_SIGPENDING RUSAGE_THREAD prlimit",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "AF_NETLINK AF_VSOCK MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED"
    " TCP_QUICKACK TCP_USER_TIMEOUT",
    time: "CLOCK_BOOTTIME pthread_getcpuclockid",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in [name for name in vars(os) if name.startswith(("EFD_", "MFD_", "SCHED_"))]:
    delattr(os, name)

def hide(event, arguments):
    if event in ("open", "os.listdir", "os.scandir"):
        if str(arguments[0]).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "not on this system", arguments[0])

sys.addaudithook(hide)
sys.platform = "darwin"
"""
PROGRAM = 'runpy.run_module("slacktide", run_name="__main__", alter_sys=True)'
IMPORTS = """
import importlib, pkgutil, slacktide, slacktide.client
assert not hasattr(os, "memfd_create")
for package in ("client", "lab", "domain", "scheduling", "planning"):
    package = importlib.import_module(f"slacktide.{package}")
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for name in dir(slacktide.client):
    getattr(slacktide.client, name)
"""


def elsewhere(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", ELSEWHERE + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_client_and_lab_are_imported() -> None:
    done = elsewhere(IMPORTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_every_help_is_printed(verb: str) -> None:
    done = elsewhere(PROGRAM, *verb.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bursty-classifier", "two-modal"])
def test_a_scenario_is_simulated(name: str) -> None:
    done = elsewhere(PROGRAM, "simulate", EXAMPLES / f"{name}.yaml", "--duration", "2s")
    assert done.returncode == 0, done.stderr
    assert "slack" in done.stdout


def test_files_of_models_are_checked_and_the_models_not_loaded(example_models: Path) -> None:
    done = elsewhere(PROGRAM, "models", "check", example_models)
    assert done.returncode == 0, done.stderr
    assert "models load only on Linux" in done.stdout
    assert "1 model checked, no problems" in done.stdout


@pytest.mark.parametrize(("verb", "below"), [("serve", ""), ("profile", "mlp")])
def test_verbs_that_run_models_say_that_they_need_linux(
    verb: str, below: str, example_models: Path
) -> None:
    done = elsewhere(PROGRAM, verb, example_models / below)
    assert done.returncode == 2
    assert (
        done.stderr == "error: models run in worker processes, which need Linux; this is darwin\n"
    )
