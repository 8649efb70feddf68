"""Replay: a recording's events, in a fresh engine, at their times.

The engine and the schedulers are pure, so the same events at the same times must give the same
commands, to the last bit. If they do not, something that the engine depends on is not in the
recording, or the code is not what it was.
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
    """Why a recorded scheduler is not here; empty if it is, or if its error says so."""
    if POLICIES.is_known(scheduler) or (":" in scheduler and POLICIES.importer is not None):
        return ""
    if ":" in scheduler:
        return f"it was recorded with scheduler {scheduler!r}; --allow-imports imports it"
    cure = "install the package that registers it under slacktide.schedulers"
    return f"it was recorded with scheduler {scheduler!r}, which is not installed; {cure}"


class RecordedPools:
    """Makes an engine's pools as they were made when they were recorded."""

    def __init__(self, learnt: Mapping[PoolId, BatchTimes] | None = None) -> None:
        """`learnt`: predictions that pools start with, copied, in place of those recorded."""
        self.opened: dict[PoolId, PoolOpened] = {}
        self._learnt = learnt or {}
        self._in_use: dict[PoolId, BatchTimes] = {}
        """Predictions of the pools that were made: one that goes and comes back, as variants of
        several files do, goes on with its own, as it did when it was recorded."""

    def add(self, opened: PoolOpened) -> None:
        """Note what a pool is made of. It is stated again when it is made anew, and at the head
        of a later part: the first holds."""
        self.opened.setdefault(opened.pool, opened)

    def parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        """The engine's `PoolFactory`. Raises RecordingError for a pool that was not recorded."""
        opened = self.opened.get(pool)
        if opened is None:
            raise RecordingError(f"pool {pool} is opened, but not recorded")
        times = self._in_use.get(pool)
        if times is None:
            times = self._in_use[pool] = self.times(pool)
        try:
            return opened.recipe.parts(times, max_batch=max_batch, view=view)
        except ValueError as error:  # an unknown policy or option, or a value out of range
            why = _why_unknown(opened.recipe.scheduler) or str(error).removeprefix("name: ")
            raise RecordingError(f"pool {pool}: {why}") from None

    def times(self, pool: PoolId) -> BatchTimes:
        """Predictions of `pool` that nothing else learns from."""
        if pool in self._learnt:
            return copy.deepcopy(self._learnt[pool])
        return load_times(self.opened[pool].times)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call whose commands are not those that were recorded."""

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
    """Engine as the last call left it."""


class Watcher:
    """Looks on while a recording is replayed. Does nothing of its own."""

    def before(self, call: Call, engine: Engine) -> None:
        """The engine is about to handle the call."""

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        """The engine has given these commands, which equal those that were recorded."""


def replay(
    recording: Recording,
    *watchers: Watcher,
    until: float = math.inf,
    pools: RecordedPools | None = None,
) -> Replayed:
    """Replay the calls before `until` (on the recording's clock), or up to the first difference.
    Raises RecordingError for a recording that is not whole, or says what cannot be."""
    if not recording.whole:
        raise RecordingError(
            f"{recording.paths[0]}: part {recording.header.part} of a recording; a replay needs "
            "all parts from the first on, and that has been overwritten (--record-limit)"
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
    """Frames above an engine that is replayed. Their events must be those that were recorded."""

    def __init__(self, engine: Engine) -> None:
        self.ended: list[Answer | FreeSlots] = []
        """Answers and freed slots of the engine's last call."""
        self._frames = Frames(engine)
        self._told: list[Event] = []

    def call(self, call: FramesCall) -> list[Plain]:
        """Commands that follow from the call."""
        ended: list[Answer | FreeSlots] = []
        if call.trigger == "answers":
            ended, self.ended = self.ended, []
        try:
            if call.trigger == "due":
                engine_events, done = self._frames.expire(now=call.now)
            else:
                events = () if call.event is None else (call.event,)
                engine_events, done = self._frames.handle(events, ended, now=call.now)
        except ValueError:  # as it did in the server, which went on with what there was by then
            engine_events, done = self._frames.take_steps()
        self._told += engine_events
        return frame_commands(done)

    def untold(self, events: Sequence[Event]) -> Event | None:
        """The first event of the frames that is missing in `events`; None if none is."""
        engine_events, self._told = self._told, []
        return next((event for event in engine_events if event not in events), None)


def handled(engine: Engine, call: Call) -> list[Command]:
    """The engine's commands. Where an event is beyond it, those it had given by then: that is what
    the server carried out, and the rest of the events follow as a call of their own."""
    try:
        return engine.handle_all(call.events, now=call.now)
    except RecordingError:
        raise
    except Exception:
        return engine.unfinished


def _first_difference(recorded: tuple[Plain, ...], replayed: list[Plain]) -> int:
    pairs = enumerate(zip(recorded, replayed, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(recorded), len(replayed)))
