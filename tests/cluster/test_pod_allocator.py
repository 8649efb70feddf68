"""Cores of workers in a pod: what is asked of the API server, and what becomes of grants."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from slacktide.cluster import PodAllocator, PodClient, PodName, pod_allocator
from slacktide.cluster.pod_allocator import Times
from slacktide.cluster.pod_client import PodCpu, ResizeState

QUICK = Times(poll=0.001, patience=0.05, lower_after=0.001, again_after=60.0)
SLOW_DOWN = Times(poll=0.001, patience=5.0, lower_after=3600.0)


@pytest.fixture
def bound(monkeypatch):
    """Cores by process, as bound; nothing is really moved."""
    cores_by_pid: dict[int, tuple[int, ...]] = {}

    def bind(pid, cores):
        cores_by_pid[pid] = cores
        return cores, ""

    monkeypatch.setattr(pod_allocator, "bind", bind)
    return cores_by_pid


def made(times=SLOW_DOWN, **options):
    allocator = PodAllocator(
        PodClient(PodName("slacktide-0", "vision", "server")), times=times, **options
    )
    allocator.start()
    return allocator


def grant(allocator, pid, *cores):
    """A future of the grant."""
    settled = asyncio.get_running_loop().create_future()
    allocator.grant(pid, cores, settled.set_result)
    return settled


def sizes(api):
    return [
        patch["spec"]["containers"][0]["resources"]["limits"]["cpu"] for _, patch in api.patches
    ]


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


async def test_more_cores_are_confirmed_once_the_kubelet_has_given_them(kubernetes, bound):
    api = kubernetes()
    api.looks.clear()
    api.looks.extend(["in_progress", "in_progress", "settled"])
    allocator = made()
    assert grant(allocator, 1, 0).done()  # 1500m: one core and the loop's half
    assert not api.patches
    growing = grant(allocator, 1, 0, 1, 2, 3)
    assert not growing.done()
    assert bound[1] == (0,)
    confirmed = await growing
    assert (confirmed.cores, confirmed.amount, confirmed.detail) == ((0, 1, 2, 3), 4.0, "")
    assert sizes(api) == ["4500m"]
    assert allocator.condition == ""
    await allocator.close()


async def test_fewer_cores_wait_for_nobody_and_the_pod_follows_later(kubernetes, bound):
    api = kubernetes()
    allocator = made(QUICK)
    await grant(allocator, 1, 0, 1, 2)
    assert sizes(api) == ["3500m"]
    assert grant(allocator, 1, 0).done()
    await until(lambda: sizes(api)[-1] == "1500m")
    await allocator.close()


async def test_what_is_being_taken_away_is_not_given_out(kubernetes, bound):
    api = kubernetes()
    allocator = made(Times(poll=0.001, patience=5.0, lower_after=0.001))
    await grant(allocator, 1, 0, 1, 2)
    api.looks[0] = "in_progress"
    grant(allocator, 1, 0)
    await until(lambda: sizes(api)[-1] == "1500m")
    growing = grant(allocator, 1, 0, 1, 2)
    assert not growing.done()
    api.looks[0] = "settled"
    assert (await growing).cores == (0, 1, 2)
    assert sizes(api) == ["3500m", "1500m", "3500m"]
    assert allocator.limit == allocator.needed
    await allocator.close()


async def test_workers_share_what_the_pod_has(kubernetes, bound):
    api = kubernetes()
    allocator = made()
    await asyncio.gather(grant(allocator, 1, 0, 1), grant(allocator, 2, 2, 3))
    assert sizes(api)[-1] == "4500m"
    assert allocator.needed == 4500
    assert grant(allocator, 1, 0).done()
    assert grant(allocator, 2, 1, 2, 3).done()  # what the other gave up
    allocator.forget(1)
    assert allocator.needed == 3500
    await allocator.close()


async def test_what_is_infeasible_is_settled_with_what_there_is_and_stays_a_condition(
    kubernetes, bound
):
    api = kubernetes()
    api.looks[0] = "Infeasible"
    allocator = made()
    await grant(allocator, 1, 0)
    granted = await grant(allocator, 1, 0, 1, 2, 3)
    assert granted.cores == (0,)
    assert granted.detail == "infeasible: Node didn't have enough capacity: cpu"
    assert allocator.condition == granted.detail
    patches = len(api.patches)
    assert grant(allocator, 1, 0, 1).result().cores == (0,)  # not asked again so soon
    assert len(api.patches) == patches
    await allocator.close()


async def test_a_deferred_resize_is_waited_for_while_patience_lasts(kubernetes, bound):
    api = kubernetes()
    api.looks.clear()
    api.looks.extend(["Deferred", "Deferred", "settled"])
    allocator = made()
    await grant(allocator, 1, 0)
    growing = grant(allocator, 1, 0, 1)
    await until(lambda: allocator.condition.startswith("deferred: Node"))
    assert not growing.done()
    assert (await growing).cores == (0, 1)
    assert allocator.condition == ""
    await allocator.close()

    api.looks.clear()
    api.looks.append("Deferred")
    impatient = made(QUICK)
    await grant(impatient, 1, 0)
    granted = await grant(impatient, 1, 0, 1, 2, 3)
    assert (granted.cores, granted.detail[:9]) == ((0, 1), "deferred:")  # what the pod had by now
    await until(lambda: sizes(api)[-1] == "2500m")  # nor is more wished for any longer
    await impatient.close()


async def test_what_could_not_be_had_is_confirmed_once_more_when_it_comes(kubernetes, bound):
    api = kubernetes()
    api.looks[0] = "Infeasible"
    times = Times(poll=0.001, patience=0.01, again_after=0.002, lower_after=3600.0)
    allocator = made(times)
    await grant(allocator, 1, 0)
    grants = []
    allocator.grant(1, (0, 1, 2), grants.append)
    await until(lambda: len(grants) >= 2)
    assert {settled.cores for settled in grants} == {(0,)}
    api.looks[0] = "settled"
    await until(lambda: grants[-1].cores == (0, 1, 2))
    assert (grants[-1].detail, allocator.hindrance) == ("", None)
    settled = len(grants)
    allocator.forget(1)
    await allocator.close()
    assert len(grants) == settled


def test_a_refusal_or_an_absent_server_leaves_local_means(kubernetes, bound, caplog):
    async def play():
        api = kubernetes()
        api.refusals.append({"code": 403, "message": "may not patch"})
        allocator = made(Times(poll=0.001, again_after=0.0))
        await grant(allocator, 1, 0)
        granted = await grant(allocator, 1, 0, 1)
        assert granted.cores == (0,)
        assert granted.detail.startswith("refused: patch pods/resize: may not patch (403")
        assert (await grant(allocator, 1, 0, 1)).cores == (0, 1)  # it is asked again, and may
        assert allocator.condition == ""
        api.close()
        granted = await grant(allocator, 1, 0, 1, 2)
        assert (granted.cores, "cannot be reached" in granted.detail) == ((0, 1), True)
        assert (await grant(allocator, 1, 0)).cores == (0,)
        await allocator.close()

    with caplog.at_level("WARNING", logger="slacktide.cores"):
        asyncio.run(play())
    assert len([r for r in caplog.records if "may not patch" in r.getMessage()]) == 1


async def test_only_the_newest_wish_of_a_process_is_settled(kubernetes, bound):
    api = kubernetes()
    api.looks.clear()
    api.looks.extend(["in_progress"] * 3 + ["settled"])
    allocator = made()
    await grant(allocator, 1, 0)
    old = grant(allocator, 1, 0, 1)
    await until(lambda: api.patches)
    assert (await grant(allocator, 1, 0, 1, 2, 3)).cores == (0, 1, 2, 3)
    assert not old.done()
    assert sizes(api)[-1] == "4500m"
    await allocator.close()


async def test_threads_of_a_real_process_are_moved_and_one_that_is_gone_is_named(kubernetes):
    import os

    kubernetes()
    allocator = made()
    core = min(os.sched_getaffinity(0))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert (await grant(allocator, child.pid, core)).cores == (core,)
        assert os.sched_getaffinity(child.pid) == {core}
    finally:
        child.communicate()
    with pytest.raises(ProcessLookupError):
        allocator.grant(child.pid, (core,), print)
    assert allocator.needed == 500
    await allocator.close()


def test_a_negative_overhead_is_refused():
    with pytest.raises(ValueError, match=r"overhead: expected 0 or more millicores, got -1"):
        PodAllocator(PodClient.__new__(PodClient), overhead=-1)


async def test_no_grant_waits_for_ever_on_an_answer_that_nobody_understands(bound):
    class Odd:
        def read(self):
            return PodCpu(1500, 1500, ResizeState.SETTLED)

        def resize(self, millicores):
            raise AttributeError("no pod at all")

    allocator = PodAllocator(Odd(), times=SLOW_DOWN)
    allocator.start()
    await grant(allocator, 1, 0)
    async with asyncio.timeout(10):
        granted = await grant(allocator, 1, 0, 1)
    assert (granted.cores, granted.detail) == ((0,), "refused: unexpected AttributeError")
    await allocator.close()
