"""Replays a recording: gives its events to a new engine at their recorded times.

Engine and schedulers are deterministic, so equal events at equal times must give equal commands, to
the last bit. If they do not, the engine depends on something that is not in the recording, or the
code has changed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import orjson

from slacktide.domain import Answer, Command, Event, FreeSlots, PoolId
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.pipelines import Frames, of_children
from slacktide.profiles import BatchTimes
from slacktide.recording import (
    Call,
    FramesCall,
    PoolOpened,
    RecordedLine,
    Recording,
    RecordingError,
    load_times,
)
from slacktide.recording.records import Plain, frame_commands, plain_commands
from slacktide.scheduling import POLICIES


def _why_unknown(scheduler: str) -> str:
    """Return why a recorded scheduler is missing; "" if it is known, or if its own error says
    why."""
    if POLICIES.is_known(scheduler) or (":" in scheduler and POLICIES.importer is not None):
        return ""
    if ":" in scheduler:
        return f"it was recorded with scheduler {scheduler!r}; --allow-imports imports it"
    cure = "install the package that registers it under slacktide.schedulers"
    return f"it was recorded with scheduler {scheduler!r}, which is not installed; {cure}"


class RecordedPools:
    """Makes an engine's pools as they were when the recording was made."""

    def __init__(self, learnt: Mapping[PoolId, BatchTimes] | None = None) -> None:
        """`learnt`: predictions that pools start with (as copies) instead of the recorded ones."""
        self.opened: dict[PoolId, PoolOpened] = {}
        self._learnt = learnt or {}
        self._in_use: dict[PoolId, BatchTimes] = {}
        """Predictions of all pools made so far. A pool that is closed and opened again, like a
        variant of a family, continues with its earlier predictions, as in the live server."""

    def add(self, opened: PoolOpened) -> None:
        """Note what a pool is made of. The recording repeats this when a pool is opened again and
        at the head of later parts; the first statement counts."""
        self.opened.setdefault(opened.pool, opened)

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        """Make a pool for the engine. Raises RecordingError if the pool was not recorded."""
        opened = self.opened.get(pool)
        if opened is None:
            raise RecordingError(f"pool {pool} is not in the recording")
        times = self._in_use.get(pool)
        if times is None:
            times = self._in_use[pool] = self.times(pool)
        try:
            return opened.recipe.parts(times, max_batch=max_batch, view=view)
        except ValueError as error:  # an unknown policy or option, or a value out of range
            why = _why_unknown(opened.recipe.scheduler) or str(error).removeprefix("name: ")
            raise RecordingError(f"pool {pool}: {why}") from None

    def times(self, pool: PoolId) -> BatchTimes:
        """Return new predictions of `pool`, shared with nothing else."""
        if pool in self._learnt:
            return copy.deepcopy(self._learnt[pool])
        return load_times(self.opened[pool].times)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call whose commands differ from the recorded ones."""

    line: RecordedLine
    call: Call
    first_event: int
    """Running number of the first event of the call."""
    place: int
    """Index of the first command that differs."""
    recorded: tuple[Plain, ...]
    replayed: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """Outcome of a replay."""

    calls: int
    events: int
    commands: int
    difference: Difference | None
    """None: identical."""
    engine: Engine
    """The engine after the last replayed call."""


class Watcher:
    """Base class of observers of a replay. Its methods do nothing."""

    def before(self, call: Call, engine: Engine) -> None:
        """Called before the engine handles `call`."""

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        """Called after the engine gave `commands`, which equal the recorded ones."""


def replay(
    recording: Recording,
    *watchers: Watcher,
    until: float = math.inf,
    pools: RecordedPools | None = None,
) -> Replayed:
    """Replay the calls before `until` (on the recording's clock), or up to the first difference.
    Raises RecordingError for an incomplete or contradictory recording."""
    if not recording.whole:
        raise RecordingError(
            f"{recording.paths[0]}: expected all parts of the recording, got those from part "
            f"{recording.header.part} on; earlier ones were overwritten (--record-limit)"
        )
    pools = pools or RecordedPools()
    engine = Engine(pools.parts, recording.header.settings)
    frames = ReplayedFrames(engine)
    calls = count = 0
    for line in recording.lines():
        record = line.record
        if isinstance(record, PoolOpened):
            pools.add(record)
            continue
        if record.now >= until:
            break
        if isinstance(record, FramesCall):
            if record.trigger == "again":
                continue
            done: list[Plain] = orjson.loads(orjson.dumps(frames.call(record)))
            if done != list(record.commands):
                place = _first_difference(record.commands, done)
                call, first = Call(record.now, (), record.commands), engine.events_seen
                difference = Difference(line, call, first, place, record.commands, tuple(done))
                return Replayed(calls, engine.events_seen, count, difference, engine)
            continue
        if (event := frames.untold(record.events)) is not None:
            difference = Difference(line, record, engine.events_seen, 0, ([str(event)],), ())
            return Replayed(calls, engine.events_seen, count, difference, engine)
        for watcher in watchers:
            watcher.before(record, engine)
        first = engine.events_seen
        commands = handled(engine, record)
        frames.ended += of_children(commands)
        as_read: list[Plain] = orjson.loads(orjson.dumps(plain_commands(commands)))
        replayed = recording.reader.recorded(as_read)
        if replayed != list(record.commands):
            place = _first_difference(record.commands, replayed)
            difference = Difference(line, record, first, place, record.commands, tuple(replayed))
            return Replayed(calls, engine.events_seen, count, difference, engine)
        for watcher in watchers:
            watcher.after(record, engine, commands)
        calls += 1
        count += len(commands)
    return Replayed(calls, engine.events_seen, count, None, engine)


class ReplayedFrames:
    """Frames above a replayed engine. Their events must equal the recorded ones."""

    def __init__(self, engine: Engine) -> None:
        self.ended: list[Answer | FreeSlots] = []
        """Answers and freed slots of the engine's last call."""
        self._frames = Frames(engine)
        self._frame_events: list[Event] = []

    def call(self, call: FramesCall) -> list[Plain]:
        """Return the commands that follow from the call."""
        ended: list[Answer | FreeSlots] = []
        if call.trigger == "answers":
            ended, self.ended = self.ended, []
        try:
            if call.trigger == "due":
                frame_events, done = self._frames.expire(now=call.now)
            else:
                events = () if call.event is None else (call.event,)
                frame_events, done = self._frames.handle(events, ended, now=call.now)
        except ValueError:  # the server raised too, and went on with the steps done by then
            frame_events, done = self._frames.take_steps()
        self._frame_events += frame_events
        return frame_commands(done)

    def untold(self, events: Sequence[Event]) -> Event | None:
        """Return the first event of the frames that `events` lack; None if they lack none."""
        frame_events, self._frame_events = self._frame_events, []
        return next((event for event in frame_events if event not in events), None)


def handled(engine: Engine, call: Call) -> list[Command]:
    """Return the engine's commands. If an event raises, return the commands given until then, like
    the server, which carried these out and handled the remaining events in a separate call."""
    try:
        return engine.handle_all(call.events, now=call.now)
    except RecordingError:
        raise
    except Exception:
        return engine.unfinished


def _first_difference(recorded: tuple[Plain, ...], replayed: list[Plain]) -> int:
    pairs = enumerate(zip(recorded, replayed, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(recorded), len(replayed)))
