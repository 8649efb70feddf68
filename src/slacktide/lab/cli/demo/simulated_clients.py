"""The cameras and links again, in virtual time: with our planner, and with one variant alone.

Frames have the bytes of those that were sent, batches the times of the profile that the server has
measured. The clients of a variant alone know no other size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from itertools import cycle
from random import Random
from statistics import fmean

import numpy as np

from slacktide.client.core import ClientCore
from slacktide.client.images import encode
from slacktide.client.messages import Advice, ClientSettings
from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.executors.process import ProcessExecutor
from slacktide.lab.cli.demo.clients_run import ClientsRun, Picture
from slacktide.lab.simulation import ByPool, ByProfile, Simulation
from slacktide.lab.simulation.acting import SimulatedClients
from slacktide.lab.simulation.clients import SimulatedClient
from slacktide.models.families import PreparedVersion, prepare_version
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import ModelDefinition, Repository
from slacktide.planning.variants import FamilyVariant, VariantsPlanner
from slacktide.scheduling import PoolRecipe


def family_of(run: ClientsRun) -> ModelDefinition:
    """What is to be served. Raises RepositoryError, ValueError."""
    *_, definition = Repository(run.repository).read(run.model)
    variants = definition.settings.variants
    if variants is None or not variants.sizes:
        raise ValueError(f"{run.model}: expected variants.sizes in its settings")
    return definition


async def prepared(run: ClientsRun) -> PreparedVersion:
    """The family with its times, by the profile beside it."""
    executor = ProcessExecutor()
    try:
        definition = family_of(run)
        profiles = ProfileCache(ProfileStore())
        return await prepare_version(definition, (), [run.cores[0]], executor, profiles)
    finally:
        await executor.close()


class SimulatedRun:
    """A run's cameras and links, by the profile of its family."""

    def __init__(
        self, run: ClientsRun, version: PreparedVersion, films: Sequence[Sequence[Picture]]
    ) -> None:
        """`films`: what each camera sees, uint8 [height, width, 3], red first."""
        assert version.family is not None, "see family_of"
        self._run, self._version, self._films = run, version, films
        self._family, self.variants = version.family, version.family.variants
        self._pools = {pool.definition.variant: pool for pool in version.pools}
        begin = time.thread_time()
        sizes = [each.size for each in self.variants]
        self._bytes = [
            [{side: _nbytes(frame, side) for side in (0, *sizes)} for frame in film]
            for film in films
        ]
        spent = time.thread_time() - begin
        self._encode_s = spent / sum(map(len, films)) / (len(sizes) + 1)

    def play(self, only: FamilyVariant | None = None) -> dict[str, float]:
        """Share of frames missed, and accuracy over all: of our planner, or of one variant."""
        run = self._run
        family = self._family
        chosen = family.variants if only is None else (only,)
        sizes = {each.name: each.size for each in chosen}
        ids = [PoolId(run.model, "1", each.name) for each in chosen]
        alone = self._pools[chosen[0].name].times.of(1, len(run.cores[0])).expected
        truth = ByPool(
            {
                id: ByProfile(
                    deepcopy(self._pools[id.variant].times),
                    np.random.default_rng((run.seed, place)),
                )
                for place, id in enumerate(ids)
            }
        )

        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            smaller = () if only else family.smaller(pool.variant)
            recipe = PoolRecipe("slack", size=sizes[pool.variant], rescue=smaller)
            times = deepcopy(self._pools[pool.variant].times)
            return recipe.parts(times, max_batch=max_batch, view=view)

        most = max(1, self._version.interface.max_batch)
        simulation = Simulation(
            Engine(parts),
            Plan(
                (LaneSpec("lane", run.cores[0]),),
                tuple(Deployment(id, "lane", most) for id in ids),
                (Route(run.model, ids[0]),),
            ),
            truth,
            begin=-1.0,
            planners=() if only else (VariantsPlanner(),),
            stated={} if only else {run.model: family},
            job_s=0.02,
        )
        advice = Advice(chosen[0].size, chosen[0].name)
        acting = SimulatedClients(
            [self._client(place, chosen, alone) for place in range(run.clients)],
            simulation.put_turn,
            advise=(lambda session: advice) if only else None,
        )
        simulation.join(acting)
        simulation.run(until=run.seconds + 5.0)
        frames = acting.frames
        return {
            "missed": sum(each.missed for each in frames) / max(1, len(frames)),
            "accuracy": sum(each.accuracy for each in frames) / max(1, len(frames)),
        }

    def _client(
        self, place: int, variants: tuple[FamilyVariant, ...], alone: float
    ) -> SimulatedClient:
        run, own = self._run, self._bytes[place]
        high, wide, _ = self._films[place][0].shape
        means = {side: fmean(each[side] for each in own) for side in own[0]}
        return SimulatedClient(
            id=f"s:{place + 1}",
            model=run.model,
            logic=ClientCore(ClientSettings(run.slo, run.rate), Random(run.seed)),
            link=run.links[place],
            rate=run.rate,
            slo=run.slo,
            variants=variants,
            alone=alone,
            frame_bytes=means.__getitem__,
            jitter=cycle([each[0] / means[0] for each in own]),
            leaves=run.seconds,
            camera=(wide, high),
            encode_s=self._encode_s,
        )


def _nbytes(frame: Picture, side: int) -> int:
    return len(encode(frame, side, quality=90, rgb=True, pixels=False).data)
