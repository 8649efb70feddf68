"""A Kubernetes API server that knows one pod, and the resizes of a kubelet that behaves as told."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

POD = "/api/v1/namespaces/vision/pods/slacktide-0"
GUARANTEED = {
    "requests": {"cpu": "1500m", "memory": "1Gi"},
    "limits": {"cpu": "1500m", "memory": "1Gi"},
}


class FakeApi:
    """`looks` says what each look at the pod after a resize finds, the last one for ever:
    `settled`, `in_progress`, `Deferred` or `Infeasible`. `refusals` are answered first."""

    def __init__(self, *, resources: Mapping[str, Any]) -> None:
        self.resources = json.loads(json.dumps(resources))
        """Of the container, in the specification."""
        self.actual = json.loads(json.dumps(resources))
        self.looks: deque[str] = deque(["settled"])
        self.refusals: deque[Mapping[str, Any]] = deque()
        self.patches: list[tuple[str, Any]] = []
        """(content type, body) of each that was accepted."""
        self.generation = 1
        self._resized = False
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with outer._lock:
                    self._answer(*((200, outer.pod()) if self.path == POD else (404, _status(404))))

            def do_PATCH(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    if self.path != f"{POD}/resize":
                        self._answer(404, _status(404))
                    elif outer.refusals:
                        refusal = outer.refusals.popleft()
                        self._answer(refusal["code"], _status(**refusal))
                    else:
                        outer.patches.append((self.headers["Content-Type"], body))
                        outer.take(body)
                        self._answer(200, outer.pod())

            def _answer(self, code: int, document: Any) -> None:
                content = json.dumps(document).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def take(self, patch: Any) -> None:
        (container,) = patch["spec"]["containers"]
        assert container["name"] == "server"
        for kind, amounts in container["resources"].items():
            self.resources[kind].update(amounts)
        self.generation += 1
        self._resized = True

    def pod(self) -> dict[str, Any]:
        """As the API shows it; a look."""
        conditions: list[dict[str, Any]] = [{"type": "Ready", "status": "True"}]
        if self._resized:
            look = self.looks[0] if len(self.looks) == 1 else self.looks.popleft()
            if look == "settled":
                self.actual = json.loads(json.dumps(self.resources))
            elif look in ("Deferred", "Infeasible"):
                conditions.append(
                    {
                        "type": "PodResizePending",
                        "status": "True",
                        "reason": look,
                        "message": "Node didn't have enough capacity: cpu",
                        "observedGeneration": self.generation,
                    }
                )
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "slacktide-0", "namespace": "vision", "generation": self.generation,
            },
            "spec": {
                "containers": [{"name": "server", "image": "s", "resources": self.resources}],
            },
            "status": {
                "phase": "Running",
                "qosClass": "Guaranteed",
                "conditions": conditions,
                "containerStatuses": [{"name": "server", "resources": self.actual}],
            },
        }  # fmt: skip

    def kubeconfig(self, folder: Path) -> Path:
        """A file that leads clients here."""
        port = self._server.server_address[1]
        path = folder / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                }
            )
        )
        return path

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _status(code: int, message: str = "not found") -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeApi]]:
    """Starts such a server, which clients made afterwards find; a pod of 1500m unless told."""
    apis: list[FakeApi] = []

    def start(resources: Mapping[str, Any] = GUARANTEED) -> FakeApi:
        apis.append(FakeApi(resources=resources))
        monkeypatch.setenv("KUBECONFIG", str(apis[-1].kubeconfig(tmp_path)))
        return apis[-1]

    yield start
    for server in apis:
        server.close()
