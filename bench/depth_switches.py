"""What a switch between depths of one file costs, live: `street_depth`, one core.

One client, one request at a time, pictures of 416 × 416 pixels. Blocks in which a depth answers
again and again take turns with blocks in which it is asked for in turn with another: what the tenth
percentile of its requests is longer there is what a switch costs, all included (what else runs on
the machine can only add). Every answer must come from the depth that was asked for.
"""

from __future__ import annotations

import http.client
import json
import time
from itertools import combinations

import numpy as np

from bench import models, servers
from bench.machine import CACHE, cores, pin
from bench.measurement import Figure, Options, Result, at_most
from slacktide.lab.examples import make_repository

MODEL, SIDE, BLOCK = "street_depth", 416, 10
DEPTHS = ("depth1", "depth2", "depth3")


def run(options: Options) -> Result:
    """300 requests of each kind (60 when quick)."""
    rounds = 6 if options.quick else 30
    result = Result("depth_switches")
    repository = CACHE / "street-depth"
    make_repository(repository, models=[MODEL], overwrite=True)
    settings = repository / MODEL / "slacktide.yaml"
    # No request is rescued, and no plan has another depth than the request names.
    own = settings.read_text().replace("slo: 150ms", "slo: 10s")
    settings.write_text(own + "  planner: none\n")
    picture = np.random.default_rng(1).integers(0, 255, (1, SIDE, SIDE, 3), np.uint8)
    body = models.oip_body({"image": picture})
    pin(cores().client)
    with servers.slacktide(repository) as serving:
        connection = http.client.HTTPConnection("127.0.0.1", serving.port)
        others = 0

        def ask(depth: str) -> float:
            nonlocal others
            begin = time.perf_counter()
            headers = {**body.headers, "slacktide-variant": depth}
            connection.request("POST", serving.path_of(MODEL), body.content, headers)
            answer = connection.getresponse()
            text = answer.read()
            taken = time.perf_counter() - begin
            length = answer.getheader("Inference-Header-Content-Length")
            document = json.loads(text[: int(length)] if length else text)
            others += document["parameters"]["variant"] != depth
            return taken

        for depth in DEPTHS:
            ask(depth)
        for pair in combinations(DEPTHS, 2):
            alone: dict[str, list[float]] = {depth: [] for depth in pair}
            turns: dict[str, list[float]] = {depth: [] for depth in pair}
            for _ in range(rounds):
                for depth in pair:
                    alone[depth] += [ask(depth) for _ in range(BLOCK)][1:]
                for _ in range(BLOCK):
                    for depth in pair:
                        turns[depth].append(ask(depth))
            for depth in pair:
                cost = 1e3 * float(
                    np.percentile(turns[depth], 10) - np.percentile(alone[depth], 10)
                )
                (other,) = set(pair) - {depth}
                result.figures.append(
                    Figure(f"switch from {other} to {depth}", cost, "ms", at_most(1.0))
                )
        result.figures.append(Figure("answers of another depth", others, "", at_most(0)))
    return result
