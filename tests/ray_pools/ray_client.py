"""A program on a Ray cluster: it takes a command a line, and answers each with a line of JSON."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np
import ray
from ray import serve

import slacktide.ray


@serve.deployment
class Caller:
    """Another deployment, which calls the pool."""

    async def __call__(self) -> list[float]:
        handle = serve.get_app_handle("shop")
        x = np.array([[1.0, 2.0]], ">f4")
        outputs = await handle.infer.remote("neg", {"x": x}, timeout_s=20.0)
        return [float(number) for number in outputs["y"].ravel()]


def server() -> object:
    while True:
        try:
            return serve.get_app_handle("shop").server.remote().result(timeout_s=5)
        except Exception as error:  # a replica that has just been killed
            print(error, file=sys.stderr)
            time.sleep(0.1)


def infer() -> object:
    return serve.run(Caller.bind(), name="caller", route_prefix=None).remote().result(timeout_s=60)


def refused() -> str:
    handle = serve.get_app_handle("shop")
    try:
        handle.infer.remote("nope", {"x": np.zeros((1, 2), np.float32)}).result(timeout_s=60)
    except RuntimeError as error:
        return str(error)
    return ""


def proxies() -> list[str]:
    return list(serve.status().proxies)


def asked_for() -> int:
    """Replicas that are or are about to be."""
    states = serve.status().applications["shop"].deployments["pool"].replica_states
    return sum(states.values())


COMMANDS = {command.__name__: command for command in (server, infer, refused, proxies, asked_for)}

ray.init("auto", log_to_driver=False)
assert slacktide.ray.__file__
for line in sys.stdin:
    answer = COMMANDS[line.strip()]()
    print(json.dumps({"answer": answer, "pid": os.getpid()}), flush=True)
