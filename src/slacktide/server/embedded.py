"""`Server`: a whole server inside another program, as a context manager.

    with slacktide.Server("models/", http_port=0) as server:
        requests.get(f"http://127.0.0.1:{server.http_port}/v2")

The server runs on its own event loop in a thread; models run in worker processes as usual.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import uvloop

from slacktide.executors.allocator import CpuAllocator
from slacktide.executors.ports import Executor
from slacktide.models.repository.paths import local_path
from slacktide.observability.observers import RequestObserver
from slacktide.server.app import App, ServerParts
from slacktide.server.settings import ServerSettings

T = TypeVar("T")


class Server:
    """A server that starts on entry, and drains and closes on exit."""

    def __init__(
        self,
        repository: str | Path,
        *,
        executors: Mapping[str, Executor] = MappingProxyType({}),
        cpu_allocator: CpuAllocator | str = "affinity",
        observers: Iterable[RequestObserver] = (),
        **settings: Any,
    ) -> None:
        """`executors` replace the server's own by name (`worker`, `in_process` or `profiled`);
        `cpu_allocator` is a name or an object; `observers` are notified of every answered request.
        `settings` are the other fields of `ServerSettings`; ports default to free ones. Raises
        ValueError for invalid settings, TypeError for unknown ones and for objects that lack
        methods of their contract."""
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        allocator = None
        if isinstance(cpu_allocator, str):
            settings["cpu_allocator"] = cpu_allocator
        else:
            allocator = cpu_allocator
        self._parts = ServerParts(executors, allocator, tuple(observers))
        self.settings = ServerSettings(**{**ports, **settings})
        self._repository = local_path(repository)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app: App | None = None

    @property
    def app(self) -> App:
        """The `App`, which belongs to the server's thread. Raises RuntimeError before `start`."""
        if self._app is None:
            raise RuntimeError("the server has not been started")
        return self._app

    @property
    def http_port(self) -> int:
        return self.app.front_ends.port("http") or 0

    @property
    def grpc_port(self) -> int:
        return self.app.front_ends.port("grpc") or 0

    @property
    def metrics_port(self) -> int:
        return self.app.front_ends.port("metrics") or 0

    @property
    def control_port(self) -> int:
        return self.app.front_ends.port("control") or 0

    def start(self) -> None:
        """Start, and return when each model serves or has failed. Raises OSError if a port cannot
        be bound, and RuntimeError if called twice."""
        if self._thread is not None:
            raise RuntimeError("the server was already started")
        ready = threading.Event()
        failure: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._run, args=(ready, failure), name="slacktide", daemon=True
        )
        self._thread.start()
        ready.wait()
        if failure:
            self._thread.join()
            self._thread = None
            raise failure[0]

    def stop(self) -> None:
        """Drain and close. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            thread.join()

    def call(self, work: Callable[[App], Coroutine[Any, Any, T]]) -> T:
        """Run `work(app)` on the server's loop, and return its result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(self.app), self._loop).result()

    def load(self, model: str) -> None:
        """Load or reload a model of the repository. Raises ControlError."""
        self.call(lambda app: app.models.load(app.repository, model))

    def unload(self, model: str) -> None:
        """Answer a model's requests in flight, then unload it. Raises ControlError."""
        self.call(lambda app: app.models.unload(model))

    def _run(self, ready: threading.Event, failure: list[BaseException]) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stopping = asyncio.Event()
            try:
                app = App(self._repository, self.settings, self._parts)
                await app.start()
            except BaseException as error:
                failure.append(error)
                return
            finally:
                if failure:
                    ready.set()
            self._app = app
            ready.set()
            await self._stopping.wait()
            await app.drain()
            await app.close()

        try:
            uvloop.run(main())
        finally:
            ready.set()

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
