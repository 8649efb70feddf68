"""Families of several files: a worker killed in mid-batch, a changed plan, too little time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from slacktide.domain import Plan, PlanChanged

pytestmark = pytest.mark.slow  # each of its servers learns and measures for seconds

SETTINGS = """
slo: 60s
max_batch: 2
lane: family
cores: 1
variants:
  files: {quick: quick.onnx, middle: middle.onnx, slow: slow.onnx}
  planner: none
"""
TURNS = {"quick": 300, "middle": 3_000, "slow": 90_000}
"""About 1 ms, 10 ms and 300 ms."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("family_faults") / "repository")
    for name in ("depths", "unrescued"):
        for variant, turns in TURNS.items():
            settings = SETTINGS if name == "depths" else f"{SETTINGS}  rescue: false\n"
            zoo.slow(name, turns=turns, file=f"{variant}.onnx", settings=settings)
    zoo.matmul()
    with serve(zoo) as house:
        yield house


@pytest.fixture
def house(server: Any) -> Iterator[Any]:
    yield server
    server.settle()


def call(house: Any, **parameters: Any) -> dict[str, Any]:
    document = house.call_of({"x": ("FP32", [1, 2], [1.0, 2.0])})
    return {**document, "parameters": parameters} if parameters else document


def ran(answer: Any) -> str:
    assert answer.status == 200, answer
    assert answer.json["outputs"][0]["data"] == [1.0, 2.0]
    return str(answer.json["parameters"]["variant"])


def route_to(house: Any, model: str, variant: str) -> None:
    """Put a plan in force in which the plain route of `model` leads to `variant`."""

    def change(app: Any) -> None:
        plan: Plan = app.engine.plan
        routes = tuple(
            replace(route, pool=route.pool._replace(variant=variant))
            if route.model == model
            else route
            for route in plan.routes
        )
        app.driver.post(PlanChanged(replace(plan, routes=routes)))

    house.look(change)
    house.until(
        lambda app: any(
            route.model == model and route.pool.variant == variant
            for route in app.engine.plan.routes
        ),
        f"requests for {model} go to {variant}",
    )


def test_a_worker_killed_in_mid_batch_costs_no_request_and_no_other_variant(house: Any) -> None:
    workers = {name: house.worker("depths", name) for name in TURNS}
    assert len(set(workers.values())) == 3, "each file has a process of its own"
    os.kill(workers["slow"], signal.SIGSTOP)
    waiting = [house.later("depths", call(house, variant="slow")) for _ in range(3)]
    house.running("depths")
    others = [house.later("depths", call(house, variant="quick")) for _ in range(3)]
    house.queued("depths", len(waiting) + len(others) - 2)
    os.kill(workers["slow"], signal.SIGKILL)
    assert [ran(pending.result()) for pending in waiting] == ["slow"] * 3
    assert [ran(pending.result()) for pending in others] == ["quick"] * 3
    assert house.worker("depths", "slow") != workers["slow"]
    assert house.worker("depths", "quick") == workers["quick"]


def test_requests_that_wait_follow_a_plan_to_another_variant(house: Any) -> None:
    route_to(house, "depths", "slow")
    worker = house.worker("depths", "slow")
    os.kill(worker, signal.SIGSTOP)
    running = [house.later("depths", call(house))]
    house.running("depths")
    waiting = [house.later("depths", call(house)) for _ in range(4)]
    house.queued("depths", 4)

    def waits(app: Any) -> dict[int, tuple[str, float]]:
        return {
            id: (entry.pool.id.variant, entry.request.deadline)
            for id, entry in app.engine.state.request_table.entries.items()
            if entry.state.value == "queued"
        }

    before = house.look(waits)
    route_to(house, "depths", "quick")
    after = house.look(waits)
    assert {id: ("quick", due) for id, (_, due) in before.items()} == after
    os.kill(worker, signal.SIGCONT)
    assert ran(running[0].result()) == "slow"
    assert [ran(pending.result()) for pending in waiting] == ["quick"] * 4


@pytest.mark.parametrize("model", ["depths", "unrescued"])
def test_a_quicker_variant_answers_when_the_slow_one_has_no_time(house: Any, model: str) -> None:
    route_to(house, model, "slow")
    times = house.look(
        lambda app: {
            pool.id.variant: pool.times.of(1, 1) for pool in app.engine.snapshot().serving(model)
        }
    )
    budget = 0.7 * times["slow"].quantile(0.001)
    assert times["middle"].p99 < budget / 2
    answer = house.infer(model, call(house, timeout=round(budget * 1e6)))
    if model == "unrescued":
        assert answer.status in (429, 503, 504), answer
    else:
        assert ran(answer) == "middle"
        page = house.ask(house.server.metrics_port, "GET", "/metrics").body.decode()
        assert 'slacktide_rescued_total{model="depths"} 1' in page
