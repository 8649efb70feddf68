"""What people write first: FastAPI and uvicorn around onnxruntime, one request at a time each.

    python plain_server.py PORT [--cap N] NAME=MODEL.onnx …

Runs in its own environment. `POST /NAME` takes a raw body. Without `--cap` every request runs at
once in FastAPI's pool of threads. With it, at most N requests are in the system and one runs at a
time; what comes on top is refused with 503: the simplest admission there is.

`GET /cpu/NAME` gives CPU and wall seconds of every run since the last time it was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from raw_model import RawModel


class Door:
    """Lets in at most `cap` requests, one of them to the model; None: everybody, at once."""

    def __init__(self, cap: int | None) -> None:
        self._cap = cap
        self._inside = 0
        self._model = asyncio.Lock()

    @property
    def full(self) -> bool:
        return self._cap is not None and self._inside >= self._cap

    @contextlib.asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        self._inside += 1
        try:
            async with self._model if self._cap is not None else contextlib.nullcontext():
                yield
        finally:
            self._inside -= 1


def make_app(models: dict[str, Path], cap: int | None) -> FastAPI:
    app = FastAPI()
    door = Door(cap)
    opened = {name: RawModel(path) for name, path in models.items()}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in models}

    def infer(name: str, body: bytes) -> bytes:
        model = opened[name]
        cpu, wall = time.thread_time(), time.perf_counter()
        (answer,) = model.run([model.read(body)])
        spent[name].append((time.thread_time() - cpu, time.perf_counter() - wall))
        return answer

    @app.get("/health")
    async def health() -> Response:
        return Response()

    @app.get("/cpu/{name}")
    async def since(name: str) -> list[tuple[float, float]]:
        spent[name], taken = [], spent[name]
        return taken

    @app.post("/{name}")
    async def post(name: str, request: Request) -> Response:
        if door.full:
            return Response(status_code=503)
        async with door.enter():
            answer = await run_in_threadpool(infer, name, await request.body())
        return Response(answer, media_type="application/octet-stream")

    return app


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL.onnx")
    parser.add_argument("--cap", type=int)
    arguments = parser.parse_args()
    models = {}
    for pair in arguments.models:
        name, _, path = pair.partition("=")
        models[name] = Path(path)
    app = make_app(models, arguments.cap)
    uvicorn.run(app, port=arguments.port, log_level="error", access_log=False)


if __name__ == "__main__":
    main()
