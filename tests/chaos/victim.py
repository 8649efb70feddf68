"""The server of a chaos run: a process of its own, its models, its small disk, and what it says."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from account import Said

from slacktide.domain import Reason

PATIENCE = 120.0
"""Seconds that anything may take before it counts as never."""
TOKEN = "correct-horse-battery-staple"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
DISK_MIB = 64
FORGIVING = "max_batch: 8\n"
CHAIN = "stages: {first: link, last: tail}\nedges: [{from: first, to: last, tensors: {y: x}}]\n"
LATE = "late"
"""A model that comes while the disk is full: its profile cannot be stored."""


def whole_servers(module: str) -> ModuleType:
    """A module of the tests of whole servers."""
    path = Path(__file__).parent.parent / "end_to_end" / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"whole_servers_{module}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def lane_of_its_own() -> str:
    """What a model states, where there are cores for two lanes."""
    return "cores: 1\n" if len(os.sched_getaffinity(0)) > 1 else ""


def disturbed_models(zoo: Any) -> None:
    """Those of a chaos run."""
    zoo.matmul("quick", settings="max_batch: 16\n")
    zoo.spin("spin", settings=FORGIVING)
    zoo.spin("own", settings=f"{FORGIVING}{lane_of_its_own()}scheduler: edf\n")
    zoo.gather()
    (zoo.root / "gather").rename(zoo.root / "picky")
    zoo.matmul("coming")
    zoo.spin("hanging", settings=FORGIVING)
    zoo.matmul("link", settings="max_batch: 4\n")
    zoo.double("tail")
    (zoo.root / "chain").mkdir()
    (zoo.root / "chain" / "pipeline.yaml").write_text(CHAIN)


class Disk:
    """What the server writes to: a small tmpfs in a mount namespace of its own, or, where the
    system allows none, its folder with a limit on the size of files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._process = 0
        self.kind, self.prefix = "a limit on the size of files", []
        models = folder.with_name("models")
        models.mkdir(exist_ok=True)
        for flags in ("-m", "-Urm"):
            script = 'mount -t tmpfs -o size="$1" tmpfs "$2" && cp -a "$3"/. "$2" && shift 3 && '
            prefix = ["unshare", flags, "sh", "-c", script + 'exec "$@"', "sh"]
            prefix += [f"{DISK_MIB}m", str(folder), str(models)]
            with contextlib.suppress(OSError):
                tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
                if tried.returncode == 0:
                    self.kind, self.prefix = f"a tmpfs of {DISK_MIB} MiB", prefix
                    break

    def belongs_to(self, process: int) -> None:
        self._process = process

    @property
    def seen(self) -> Path:
        """The folder as the server sees it."""
        if not self.prefix:
            return self.folder
        return Path(f"/proc/{self._process}/root{self.folder}")

    @property
    def _ballast(self) -> Path:
        return self.seen / "ballast"

    def fill(self) -> None:
        if not self.prefix:
            size = (self.seen / "recording").stat().st_size
            resource.prlimit(self._process, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            return
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        if not self.prefix:
            everything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            resource.prlimit(self._process, resource.RLIMIT_FSIZE, everything)
            return
        self._ballast.unlink(missing_ok=True)


class Victim:
    """A running server. Use it in a `with` statement: nothing of it outlives that."""

    def __init__(
        self,
        folder: Path,
        *,
        limit_files: bool = False,
        make: Callable[[Any], None] = disturbed_models,
        program: Sequence[str] = ("-m", "slacktide"),
    ) -> None:
        """`make` makes its models in a zoo; `program`: what Python is to run."""
        self.folder = folder
        self._program = program
        folder.mkdir(parents=True, exist_ok=True)
        zoo = whole_servers("zoo")
        self.weight: list[float] = zoo.WEIGHT[0].tolist()
        make(zoo.Zoo(folder / "models"))
        self._late = zoo.Zoo(folder / "later").matmul(LATE).parent.parent
        self.token = folder / "token"
        self.token.write_text(TOKEN + "\n")
        self.token.chmod(0o600)
        self.disk = Disk(folder / "disk")
        if limit_files:
            self.disk.kind, self.disk.prefix = "a limit on the size of files", []
        if not self.disk.prefix:
            shutil.copytree(folder / "models", self.disk.folder, dirs_exist_ok=True)
        self.log = folder / "server.log"
        self.log.touch()
        self.process: subprocess.Popen[bytes] = self._start()
        self.ports: dict[str, int] = {}

    def _start(self) -> subprocess.Popen[bytes]:
        words = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--control-port=0"]
        words += ["--profile-budget=100ms", "--access-log", "--log-format=json"]
        words += ["--allow-fewer-cores", "--max-connections=200", "--drain-timeout=20s"]
        words += [f"--token-file={self.token}", f"--record={self.disk.folder / 'recording'}"]
        serve = [sys.executable, *self._program, "serve", str(self.disk.folder), *words]
        # Through a pipe: its log is no file of its own, which a full disk would cut.
        process = subprocess.Popen([*self.disk.prefix, *serve], stderr=subprocess.PIPE, bufsize=0)
        self.disk.belongs_to(process.pid)
        self._logging = threading.Thread(target=self._keep_log, args=(process,), daemon=True)
        self._logging.start()
        return process

    def _keep_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with process.stderr, self.log.open("wb", buffering=0) as log:
            while chunk := process.stderr.read(1 << 16):
                log.write(chunk)

    def __enter__(self) -> Victim:
        try:
            until(lambda: b"ready: " in self.log.read_bytes() or self._ended(), "it is ready")
            if self._ended():
                raise AssertionError(f"it did not start: {self.log.read_text()[-2000:]}")
            (ready_line,) = re.findall(r'"(ready: [^"]*)"', self.log.read_text())
            ports = re.findall(
                r"(\w+) (?:http://)?[^ ,]*:(\d+)", ready_line.removeprefix("ready: ")
            )
            self.ports = {name: int(port) for name, port in ports}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self._ended():
            family = self.family()
            self.process.kill()
            self.process.wait()
            for pid in family:
                signal_to(pid, signal.SIGKILL)
        self._logging.join(PATIENCE)

    def _ended(self) -> bool:
        return self.process.poll() is not None

    # ── its processes ────────────────────────────────────────────────────────────────────────

    def family(self) -> list[int]:
        """Its children and theirs."""
        pids = [self.process.pid]
        for pid in pids:
            with contextlib.suppress(OSError):
                pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return pids[1:]

    def forking(self) -> list[int]:
        """Processes that start workers: one, or two if one has been given up."""
        return [pid for pid in self.family() if parent(pid) == self.process.pid and _forks(pid)]

    def workers(self) -> list[int]:
        forking = set(self.forking())
        return [pid for pid in self.family() if parent(pid) in forking]

    def anonymous_bytes(self) -> int:
        """Private memory of the server itself."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (kib,) = re.findall(r"RssAnon:\s+(\d+) kB", text)
        return int(kib) << 10

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def bring_late(self) -> None:
        """Put a model into the repository that was not there at the start."""
        shutil.copytree(self._late, self.disk.seen / LATE)

    # ── what it is asked ─────────────────────────────────────────────────────────────────────

    def ask(self, method: str, path: str, *, port: str = "http", body: str = "") -> tuple[int, str]:
        """Status and text; status 0 if it cannot be reached."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[port], timeout=PATIENCE)
        try:
            connection.request(method, path, body or None, AUTHORIZATION)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def control(self, model: str, verb: str) -> int:
        return self.ask("POST", f"/v2/repository/models/{model}/{verb}", port="control")[0]

    def metrics(self) -> Metrics:
        status, page = self.ask("GET", "/metrics", port="metrics")
        assert status == 200, page
        return Metrics(page)

    # ── what it said ─────────────────────────────────────────────────────────────────────────

    def entries(self) -> Iterator[dict[str, Any]]:
        """Lines of its log. Raises ValueError for one that is not ours."""
        for line in self.log.read_text().splitlines():
            yield json.loads(line)

    def said(self) -> Iterator[Said]:
        """What the access log says of requests for inferences."""
        for entry in self.entries():
            if entry["logger"] != "slacktide.access":
                continue
            if entry["transport"] == "grpc":
                if entry["method"].endswith("/ModelInfer"):
                    yield Said(entry["request_id"], entry["model"], entry["status"])
            elif entry["path"].endswith("/infer"):
                model = entry["path"].split("/")[3]
                yield Said(entry["request_id"], model, str(entry["status"]))


class Metrics:
    """A page of metrics."""

    def __init__(self, page: str) -> None:
        self._values: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for line in page.splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match is not None:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))
                self._values[match[1]].append((labels, float(match[3])))

    def total(self, family: str) -> float:
        return sum(value for _, value in self._values[family])

    def outcomes(self) -> dict[str, dict[Reason, int]]:
        """By model and reason."""
        reasons = {reason.label: reason for reason in Reason}
        counts: dict[str, dict[Reason, int]] = defaultdict(dict)
        for labels, value in self._values["slacktide_outcomes_total"]:
            counts[labels["model"]][reasons[labels["reason"]]] = int(value)
        return counts

    def succeeded_and_failed(self) -> dict[str, int]:
        """Under Triton's names, by model."""
        counts: dict[str, int] = defaultdict(int)
        for family in ("nv_inference_request_success", "nv_inference_request_failure"):
            for labels, value in self._values[family]:
                counts[labels["model"]] += int(value)
        return counts


def parent(pid: int) -> int:
    """0 if it has gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _forks(pid: int) -> bool:
    try:
        return b"slacktide.executors.fork_server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def signal_to(pid: int, number: int) -> bool:
    """Whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def until(condition: Any, event: str, *, patience: float = PATIENCE) -> None:
    """Wait until something is so. Raises AssertionError if it never is."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"it never came to pass that {event}")
        time.sleep(0.02)
