"""When the next request of a model would start, for other servers that may send requests here.

It works for every scheduler, because it counts the waiting rows and not the order in which they
will run. The wait is the time until a lane is free, plus the time of the waiting rows at the best
rate, in the share of the lanes that other models leave. The result is an estimate, because
schedulers refuse requests by rules of their own.
"""

from __future__ import annotations

import math

from slacktide.domain import Request
from slacktide.domain.read_only import read_only
from slacktide.engine.engine import Engine
from slacktide.engine.lanes import Pool
from slacktide.profiles import batch_sizes


@read_only
class NextStart:
    """Seconds from now on."""

    wait_s: float
    """Seconds until a lane is free for a request of one row that arrives now; infinite: never."""
    alone_s: float
    """Time that a batch of one row takes."""
    row_s: float
    """Seconds by which each waiting row delays the next request: the time per row at the best batch
    size, divided by the number of lanes."""


NEVER = NextStart(math.inf, 0.0, 0.0)


def next_start(engine: Engine, model: str, version: str | None = None, *, now: float) -> NextStart:
    """The start of the next request of `model`. `version` None: the version that routes choose. For
    a family, it is the start on the variant that requests without a size get. `NEVER` if the model
    is not served. `now` must not be before the engine's last event."""
    return _in_pool(engine.state.routes.default(model, version), now)


def next_start_like(engine: Engine, request: Request, *, now: float) -> NextStart:
    """The start of the next request that is routed like `request`; see `next_start`."""
    return _in_pool(engine.state.routes.pool_for(request), now)


def _in_pool(pool: Pool | None, now: float) -> NextStart:
    if pool is None or pool.removed or pool.down_reason is not None:
        return NEVER
    free = pool.free_in(now=now)
    if free == math.inf:
        return NEVER
    alone, row = _rates(pool)
    waiting = _waiting_rows(pool)
    work = waiting * row
    rivals = pool.rivals(now=now) if waiting or free else None
    wait = work if rivals is None else rivals.within(work + alone) - alone
    return NextStart(free + wait, alone, row)


def _waiting_rows(pool: Pool) -> int:
    """Rows that wait here. Requests that are announced or not measured count as one row each."""
    requests = len(pool.scheduler)
    rows = requests
    if requests and pool.widest > 1:
        rows = sum([request.rows for request in pool.scheduler.pending()])
    unmeasured = 0 if pool.unmeasured is None else len(pool.unmeasured)
    return rows + unmeasured + pool.announced + len(pool.quarantine)


def _rates(pool: Pool) -> tuple[float, float]:
    """(seconds of a batch of one row, seconds per row at the best batch size ÷ lanes)."""
    times, cores = pool.times, pool.cores
    key = (times.revision, cores, pool.lanes)
    if pool.rates_key != key:
        expected = {rows: times.of(rows, cores).expected for rows in batch_sizes(pool.max_batch)}
        best = min([seconds / rows for rows, seconds in expected.items()])
        pool.rates_key, pool.rates = key, (expected[1], best / pool.lanes)
    return pool.rates
