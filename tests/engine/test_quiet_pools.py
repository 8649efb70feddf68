"""Pools where nothing waits are not asked what has expired, until they are told something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.engine.conftest import World, pool_id

from slacktide.domain import BatchFinished, Deployment, LaneSpec, Plan, Reason, Route, Submitted

MODELS = [f"m{number}" for number in range(17)]
POOLS = {model: pool_id(model) for model in MODELS}
PLAN = Plan(
    (LaneSpec("lane", (0,)),),
    tuple(Deployment(pool, "lane", 4) for pool in POOLS.values()),
    tuple(Route(model, pool) for model, pool in POOLS.items()),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[World, list[str]]:
    """One lane of many models, and the models that were asked when something expires."""
    world, models = World(), []
    world.deploy(PLAN)
    for model, pool in POOLS.items():
        scheduler = world.schedulers[pool]

        def next_expiry(model: str = model, before=scheduler.next_expiry) -> float | None:
            models.append(model)
            return before()

        monkeypatch.setattr(scheduler, "next_expiry", next_expiry)
    return world, models


def test_a_request_asks_only_the_pool_that_it_goes_to(asked: tuple[World, list[str]]) -> None:
    world, models = asked
    for id in range(10):
        model = MODELS[id % 3]
        request = world.request(id, model=model)
        (run,) = world.engine.handle_all((Submitted(request),), now=world.now)
        assert world.engine.next_wakeup() is not None
        models.clear()
        world.engine.handle_all((BatchFinished(run.batch.id),), now=world.now)
        assert world.engine.next_wakeup() is None
        assert set(models) == {model}
        assert len(models) <= 2


def test_a_pool_is_asked_again_when_its_batch_has_ended(
    asked: tuple[World, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some look then for what has no time any more, though nothing waits yet."""
    world, _ = asked
    beside = Plan(
        (*PLAN.lanes, LaneSpec("beside", (1,))),
        (
            *PLAN.deployments,
            *(replace(deployment, lane="beside") for deployment in PLAN.deployments),
        ),
        PLAN.routes,
    )
    world.deploy(beside)
    scheduler, looks = world.schedulers[POOLS["m3"]], []
    monkeypatch.setattr(scheduler, "next_expiry", lambda: world.now if scheduler.left else None)

    def expire(*, now: float) -> Sequence[tuple[int, Reason]]:
        looks.append(now)
        scheduler.left.clear()
        return ()

    monkeypatch.setattr(scheduler, "expire", expire)
    world.submit(1, model="m3")
    world.submit(2, model="m4")  # the other lane looks round, and finds nothing for m3
    assert world.engine.state.pools[POOLS["m3"]].quiet
    assert looks == []
    world.send(BatchFinished(world.batches[0].id), after=0.01)
    assert looks == [world.now]


def test_a_pool_that_expects_a_body_is_asked() -> None:
    world = World()
    world.deploy(
        Plan(
            (LaneSpec("lane", (0,)),), (Deployment(pool_id(), "lane", 4),), (Route("m", pool_id()),)
        )
    )
    world.submit(0)
    world.finish()
    pool = world.engine.state.pools[pool_id()]
    assert pool.quiet
    world.announce(1)
    assert not pool.quiet
    world.submit(1)
    world.finish()
    assert pool.quiet
