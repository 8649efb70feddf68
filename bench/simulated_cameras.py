"""The cameras and links of `slacktide demo clients` in virtual time: with our planner, and with one
variant alone.

Frames have the bytes of those that were sent, batches the times of the profile that the server has
measured. The clients of a variant alone know no other size.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from itertools import cycle
from pathlib import Path
from random import Random
from statistics import fmean

import numpy as np

from slacktide.client import Advice, ClientCore, ClientSettings
from slacktide.client.images import encode
from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.executors import ProcessExecutor
from slacktide.lab.cli.demo.clients import MODEL, ClientsRun
from slacktide.lab.load.played_frames import Picture
from slacktide.lab.simulation import ByPool, ByProfile, Simulation
from slacktide.lab.simulation.acting import SimulatedClients
from slacktide.lab.simulation.clients import SimulatedClient
from slacktide.models.families import prepare_version
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository import ProfileStore, Repository
from slacktide.planning.variants import FamilyVariant, VariantsPlanner
from slacktide.scheduling import PoolRecipe


class SimulatedCameras:
    """A run's cameras and links, by the profile of its family."""

    def __init__(self, run: ClientsRun, repository: Path) -> None:
        *_, self._definition = Repository(repository).read(MODEL)
        self._run = run

    async def prepare(self, films: Sequence[Sequence[Picture]], cores: tuple[int, ...]) -> None:
        """Read the times on `cores` from the profile beside the model, and encode what each camera
        sees in each size. Raises RepositoryError, MeasuringError."""
        executor = ProcessExecutor()
        try:
            profiles = ProfileCache(ProfileStore())
            version = await prepare_version(self._definition, (), [cores], executor, profiles)
        finally:
            await executor.close()
        assert version.family is not None
        self._family, self.variants = version.family, version.family.variants
        self._times = {pool.definition.variant: pool.times for pool in version.pools}
        self._most = max(1, version.interface.max_batch)
        self._cores, self._camera = cores, films[0][0].shape[1::-1]
        sides = (0, *(variant.size for variant in self.variants))
        begin = time.thread_time()
        self._bytes = [
            [{side: _nbytes(frame, side) for side in sides} for frame in film] for film in films
        ]
        self._encode_s = (time.thread_time() - begin) / sum(map(len, films)) / len(sides)

    def play(self, only: FamilyVariant | None = None) -> dict[str, float]:
        """Share of frames missed, and accuracy over all: of our planner, or of one variant."""
        run, family = self._run, self._family
        chosen = family.variants if only is None else (only,)
        sizes = {variant.name: variant.size for variant in chosen}
        pools = [PoolId(MODEL, "1", variant.name) for variant in chosen]
        truth = {
            pool: ByProfile(
                deepcopy(self._times[pool.variant]), np.random.default_rng((run.seed, place))
            )
            for place, pool in enumerate(pools)
        }

        def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
            smaller = () if only else family.smaller(pool.variant)
            recipe = PoolRecipe("slack", size=sizes[pool.variant], rescue=smaller)
            times = deepcopy(self._times[pool.variant])
            return recipe.parts(times, max_batch=max_batch, view=view)

        deployments = tuple(Deployment(pool, "lane", self._most) for pool in pools)
        lane, route = LaneSpec("lane", self._cores), Route(MODEL, pools[0])
        simulation = Simulation(
            Engine(parts),
            Plan((lane,), deployments, (route,)),
            ByPool(truth),
            begin=-1.0,
            planners=() if only else (VariantsPlanner(),),
            stated={} if only else {MODEL: family},
            job_s=0.02,
        )
        advice = Advice(chosen[0].size, chosen[0].name)
        acting = SimulatedClients(
            [self._client(place, chosen) for place in range(run.clients)],
            simulation.put_turn,
            advise=(lambda session: advice) if only else None,
        )
        simulation.join(acting)
        simulation.run(until=run.seconds + 5.0)
        frames = acting.frames
        return {
            "missed": sum(frame.missed for frame in frames) / max(1, len(frames)),
            "accuracy": sum(frame.accuracy for frame in frames) / max(1, len(frames)),
        }

    def _client(self, place: int, variants: tuple[FamilyVariant, ...]) -> SimulatedClient:
        run, film = self._run, self._bytes[place]
        means = {side: fmean(frame[side] for frame in film) for side in film[0]}
        return SimulatedClient(
            id=f"s:{place + 1}",
            model=MODEL,
            logic=ClientCore(ClientSettings(run.slo, run.rate), Random(run.seed)),
            link=run.links[place],
            rate=run.rate,
            slo=run.slo,
            variants=variants,
            smallest_run_s=self._times[variants[0].name].of(1, len(self._cores)).expected,
            frame_bytes=means.__getitem__,
            jitter=cycle([frame[0] / means[0] for frame in film]),
            leaves=run.seconds,
            camera=self._camera,
            encode_s=self._encode_s,
        )


def _nbytes(frame: Picture, side: int) -> int:
    return len(encode(frame, side, quality=90, rgb=True, pixels=False).data)
