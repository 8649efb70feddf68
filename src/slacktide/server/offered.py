"""`OfferedShare`: the work that clients offer, as a share of the lanes' capacity.

    share = sum over models (rows offered per second × seconds of a row) ÷ lanes

The rows of the last seconds count, whether they were answered, refused or forwarded to a peer; rows
that a peer has forwarded to this server count at that peer. A row takes its part of the best batch
whose p99 is within the model's slo. Lanes that share models form a group; the busiest group counts.

A pipeline's work is what its stages have run, times the frames offered per frame admitted. Requests
count when they end. No request pays for this: the counters are read twice a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from slacktide.domain import OutcomeKind, Reason
from slacktide.engine import Engine
from slacktide.engine.snapshot import PoolSnapshot
from slacktide.models.versions import Catalog, LoadedVersion
from slacktide.profiles import batch_sizes

TICK_S: Final = 0.5
WINDOW_TICKS: Final = 6
"""Ticks over which rows are counted: a doubled load is fully seen after three seconds."""
_INVALID: Final = (Reason.BAD_INPUT, Reason.NOT_FOUND, Reason.TOO_LARGE)


class RowCounts(NamedTuple):
    """Rows of one version so far."""

    offered: int
    admitted: int
    """Rows that were not refused immediately; exact if requests have one row, as frames do."""
    served: int
    run: float
    """Rows in executed batches, for clients, stages of pipelines and peers."""

    def since(self, before: RowCounts) -> RowCounts:
        return RowCounts(
            self.offered - before.offered,
            self.admitted - before.admitted,
            self.served - before.served,
            self.run - before.run,
        )


class OfferedShare:
    """Reads the counters of all versions now and then. Belongs to the server's loop."""

    def __init__(
        self,
        catalog: Catalog,
        engine: Engine,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """`later(seconds, function)` calls the function after that time."""
        self._catalog = catalog
        self._engine = engine
        self._clock = clock
        self._later = later
        self._samples: deque[tuple[float, dict[str, RowCounts]]] = deque(maxlen=WINDOW_TICKS)
        self._share: float | None = 0.0
        """The share since the last tick; None: not computed yet."""

    def start(self) -> None:
        """Begin to count."""
        self._samples.append((self._clock(), self._counts()))
        self._share = None
        self._later(TICK_S, self.start)

    def share(self) -> float:
        """The share now; above 1: more than the lanes can do in time."""
        if self._share is None:
            self._share = self._computed()
        return self._share

    def _counts(self) -> dict[str, RowCounts]:
        return {
            f"{version.name}:{version.pin}": _rows_of(version) for version in self._catalog.all()
        }

    def _computed(self) -> float:
        since, before = self._samples[0]
        now, counts = self._clock(), self._counts()
        if now - since < TICK_S / 2:
            return 0.0
        versions = {f"{version.name}:{version.pin}": version for version in self._catalog.all()}
        nothing = RowCounts(0, 0, 0, 0.0)
        rows = _offered_rows(
            versions, {key: row.since(before.get(key, nothing)) for key, row in counts.items()}
        )
        slos = {
            version.pool.id: (rows[key], version.definition.settings.slo)
            for key, version in versions.items()
            if rows.get(key)
        }
        snapshot = self._engine.snapshot(now=max(now, self._engine.now))
        pools = [pool for pool in snapshot.pools.values() if pool.in_service and pool.replicas]
        work: dict[str, float] = {}
        for pool in pools:
            offered, slo = slos.get(pool.id, (0.0, None))
            if offered:
                lane = pool.replicas[0].replica.lane
                work[lane] = work.get(lane, 0.0) + offered * seconds_per_row(pool, slo)
        groups = lane_groups([replica.replica.lane for replica in pool.replicas] for pool in pools)
        busiest = max(
            (sum(work.get(lane, 0.0) for lane in lanes) / len(lanes) for lanes in groups),
            default=0.0,
        )
        return busiest / (now - since)


def seconds_per_row(pool: PoolSnapshot, slo: float | None) -> float:
    """Expected seconds of a row in the best batch whose p99 is at most `slo` seconds (None: in any
    batch). If there is no such batch: seconds of a row alone."""
    times = {rows: pool.times.of(rows, pool.cores) for rows in batch_sizes(pool.max_batch)}
    return min(
        (time.expected / rows for rows, time in times.items() if slo is None or time.p99 <= slo),
        default=times[1].expected,
    )


def lane_groups(pools: Iterable[Iterable[str]]) -> list[set[str]]:
    """Join the lanes of each pool, so that lanes of different groups share no pool."""
    groups: list[set[str]] = []
    for lanes in pools:
        joined = set(lanes)
        apart = [group for group in groups if group.isdisjoint(joined)]
        groups = [*apart, joined.union(*[group for group in groups if group not in apart])]
    return groups


def _rows_of(version: LoadedVersion) -> RowCounts:
    counters = version.counters
    invalid = sum([counters.by_reason.get(reason, 0) for reason in _INVALID])
    rejected = sum([count for reason, count in counters.by_reason.items() if _is_refusal(reason)])
    offered = counters.rows_offered
    run = counters.batch_rows.total
    return RowCounts(offered - invalid, max(0, offered - rejected), counters.rows_served, run)


def _is_refusal(reason: Reason) -> bool:
    return reason.kind is OutcomeKind.REJECTED


def _offered_rows(
    versions: Mapping[str, LoadedVersion], deltas: Mapping[str, RowCounts]
) -> dict[str, float]:
    """Rows offered to each model's version, including rows of pipelines' frames."""
    rows = {
        key: float(deltas[key].offered) for key, version in versions.items() if not version.stages
    }
    for stage, (offered, admitted) in _frames(versions, deltas).items():
        run = max(0.0, deltas[stage].run - deltas[stage].served)
        # If no frame was admitted, each is assumed to take one row.
        rows[stage] += offered * (run / admitted if admitted else 1.0)
    return rows


def _frames(
    versions: Mapping[str, LoadedVersion], deltas: Mapping[str, RowCounts]
) -> dict[str, tuple[int, int]]:
    """Frames offered and admitted that needed a version as a stage, by version."""
    frames: dict[str, tuple[int, int]] = {}
    for key, pipeline in versions.items():
        for stage in {f"{version.name}:{version.pin}" for version in pipeline.stages.values()}:
            if stage in versions and deltas[key].offered:
                offered, admitted = frames.get(stage, (0, 0))
                frames[stage] = (
                    offered + deltas[key].offered,
                    admitted + deltas[key].admitted,
                )
    return frames
