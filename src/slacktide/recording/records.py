"""The lines of a recording.

1. A *header* opens each part of a recording (`Header`). It states the layout of all arrays, so that
   recordings of other versions are read by the names of their fields (`Reader`), or refused with a
   reason, and never misread.
2. A *pool* (`PoolOpened`): how the engine made a pool, with its predictions at that time. It comes
   before the call that opened the pool, and again, with learnt predictions, at the start of later
   parts.
3. A *call* (`Call`): one `Engine.handle_all(events, now)` and the commands that it returned.
4. *Frames* (`FramesCall`), if pipelines are served: one call of `Frames` and its commands. Its
   events for the engine are in the engine's calls that follow.

Commands are written to be compared and counted, so they name replicas and members by id, and leave
out values that equal the time of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args, get_type_hints

from slacktide.domain import (
    AbortBatch,
    Answer,
    Batch,
    Command,
    Event,
    ExitPolicy,
    FreeSlots,
    Outcome,
    Plan,
    PoolId,
    PublishExits,
    Replica,
    ResizeLane,
    RunBatch,
    StartReplica,
    StopReplica,
    TellCircuit,
)
from slacktide.domain.frames import (
    FRAME_COMMANDS,
    FRAME_EVENTS,
    AnswerFrame,
    FrameCommand,
    FrameEvent,
    PreparePayload,
)
from slacktide.engine import EngineSettings
from slacktide.profiles import ProfileError, reading
from slacktide.recording.layout import (
    Decoders,
    LayoutError,
    decoder,
    layout_of,
    names_of,
    record_encoder,
)
from slacktide.scheduling import PoolRecipe

SCHEMA = 1

Plain: TypeAlias = list[Any]
"""A recorded command: [its type, the number of its event, its values …]."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a part."""

    recording: str
    """Random name of the recording, the same in all its parts."""
    part: int
    """1 is the first."""
    software: str
    began: str
    """Start of this part, as wall-clock time in ISO 8601, for people."""
    settings: EngineSettings
    events_before: int = 0
    """Number of events in earlier parts."""
    plan: Plan | None = None
    """The plan in force when the part began; None in the first."""
    layout: Mapping[str, Sequence[str]] = field(default_factory=dict, compare=False, repr=False)
    """Field names of its arrays by type name, if they differ from this version."""


@dataclass(frozen=True, slots=True)
class PoolOpened:
    """How a pool was made."""

    pool: PoolId
    max_batch: int
    recipe: PoolRecipe
    times: Mapping[str, Any]
    """Its predictions at this line, exported."""


@dataclass(frozen=True, slots=True)
class Call:
    """Events that the engine handled together, and its commands."""

    now: float
    events: tuple[Event, ...]
    commands: tuple[Plain, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class FramesCall:
    """A call of `Frames`, and its commands."""

    now: float
    event: FrameEvent | None
    """None: see `trigger`."""
    trigger: str
    """`answers`: the engine's last call answered children; `due`: a frame's time was up; `again`:
    the event is in an earlier part, and is repeated for readers of this part."""
    commands: tuple[Plain, ...] = ()


Record: TypeAlias = PoolOpened | Call | FramesCall

RENAMED: Mapping[tuple[str, str], str] = {("RunBatch", "sample"): "solo"}
"""(type, field name in earlier versions) -> its present name."""

EVENTS: Mapping[str, type] = {type_.__name__: type_ for type_ in get_args(Event)}
FRAMES: Mapping[str, type] = {type_.__name__: type_ for type_ in FRAME_EVENTS}
_COMMANDS = {type_.__name__ for type_ in get_args(Command)}


def _ids(objects: Sequence[Any]) -> list[int]:
    return [identified.id for identified in objects]


_batch = record_encoder(
    Batch, {"replica": lambda replica: replica.id, "members": _ids}, left_out=("started",)
)
_outcome = record_encoder(Outcome, left_out=("at",))
_replica = record_encoder(Replica)
_pool = record_encoder(PoolId)
_policy = record_encoder(ExitPolicy)
_EVENT_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    type_: (name, record_encoder(type_)) for name, type_ in (*EVENTS.items(), *FRAMES.items())
}
_FRAME_ENCODERS: dict[type, Callable[[Any], Any]] = {
    type_: record_encoder(
        type_,
        {"request": lambda request: request.id} if type_ is PreparePayload else None,
        left_out=("at",) if type_ is AnswerFrame else (),
    )
    for type_ in FRAME_COMMANDS
}
_COMMAND_ENCODERS: dict[type, Callable[[Any], Any]] = {
    RunBatch: lambda c: ("RunBatch", c.cause, *_batch(c.batch), c.expected, c.p99),
    AbortBatch: lambda c: ("AbortBatch", c.cause, c.batch.id),
    Answer: lambda c: ("Answer", c.cause, c.id, *_outcome(c)),
    FreeSlots: lambda c: ("FreeSlots", c.cause, c.ids),
    StartReplica: lambda c: ("StartReplica", c.cause, *_replica(c.replica)),
    StopReplica: lambda c: ("StopReplica", c.cause, c.replica.id, c.kill),
    ResizeLane: lambda c: ("ResizeLane", c.cause, c.lane, c.cores, _ids(c.replicas)),
    TellCircuit: lambda c: (
        ("TellCircuit", c.cause, _pool(c.pool), c.circuit.value, c.reason, c.retry_s)
    ),
    PublishExits: lambda c: ("PublishExits", c.cause, c.replica.id, _policy(c.policy)),
}


def answers(call: Call) -> Iterator[tuple[int, Outcome]]:
    """The outcomes in a call, as (request, outcome). Raises LayoutError naming the field."""
    for _, id, *outcome in of_type(call, "Answer"):
        outcome.insert(1, call.now)
        yield id, decoder(Outcome)(outcome, "Answer.outcome")


def started(call: Call) -> Iterator[Replica]:
    """The replicas to start. Raises LayoutError naming the field."""
    for _, *replica in of_type(call, "StartReplica"):
        yield decoder(Replica)(replica, "StartReplica.replica")


def frame_answers(call: FramesCall) -> Iterator[tuple[int, Outcome]]:
    """The outcomes in a call, as (frame, outcome). Raises LayoutError naming the field."""
    for name, *values in call.commands:
        if name == AnswerFrame.__name__:
            values.insert(1, call.now)
            answer = decoder(AnswerFrame)(values, name)
            yield answer.id, answer


def prepared(call: FramesCall) -> Iterator[tuple[int, str]]:
    """The requests made for stages, as (request, stage)."""
    for name, *values in call.commands:
        if name == PreparePayload.__name__:
            yield values[0], values[1]


def of_type(call: Call, name: str) -> Iterator[Plain]:
    """[cause, its values …] of every command of this type."""
    return (command[1:] for command in call.commands if command[0] == name)


def plain_events(events: Sequence[Event | FrameEvent]) -> list[Any]:
    """Events ready for JSON."""
    plain = []
    for event in events:
        name, encode = _EVENT_ENCODERS[type(event)]
        plain.append((name, *encode(event)))
    return plain


def plain_commands(commands: Sequence[Command]) -> list[Any]:
    """Commands ready for JSON."""
    return [_COMMAND_ENCODERS[type(command)](command) for command in commands]


def frames_line(
    event: FrameEvent | None, trigger: str, now: float, commands: Sequence[FrameCommand]
) -> dict[str, Any]:
    """A call of `Frames` ready for JSON."""
    plain = plain_events(() if event is None else (event,))
    return {"frames": now, "events": plain, "what": trigger, "commands": frame_commands(commands)}


def frame_commands(commands: Sequence[FrameCommand]) -> list[Any]:
    """Commands of `Frames` ready for JSON."""
    return [
        (type(command).__name__, *_FRAME_ENCODERS[type(command)](command)) for command in commands
    ]


def layout() -> dict[str, list[str]]:
    """The fields of every array in a recording, in order."""
    fields_by_type = layout_of((*EVENTS.values(), *FRAMES.values(), EngineSettings))
    fields_by_type["RunBatch"] = ["cause", *names_of(Batch), "expected", "p99"]
    fields_by_type["RunBatch"].remove("started")
    fields_by_type["Answer"] = ["cause", "id", *names_of(Outcome)]
    fields_by_type["Answer"].remove("at")
    fields_by_type["StartReplica"] = ["cause", *names_of(Replica)]
    for type_ in (AbortBatch, FreeSlots, StopReplica, ResizeLane, TellCircuit, PublishExits):
        names = [name for name in names_of(type_) if name != "cause"]
        fields_by_type[type_.__name__] = ["cause", *names]
    return fields_by_type


# ── lines to plain data and back ─────────────────────────────────────────────────────────────

_settings = record_encoder(EngineSettings)
_plan = record_encoder(Plan)
_HEADER = ("slacktide_recording", *names_of(Header))
_POOL = ("pool", "max_batch", *names_of(PoolRecipe), "times")


def header_line(header: Header) -> dict[str, Any]:
    """A header ready for JSON."""
    return {
        "slacktide_recording": SCHEMA,
        **{name: getattr(header, name) for name in names_of(Header)},
        "settings": _settings(header.settings),
        "plan": None if header.plan is None else _plan(header.plan),
        "layout": layout(),
    }


def read_header(line: object) -> Header:
    """Read a header. Raises LayoutError naming the field, also for an incompatible layout."""
    if not isinstance(line, dict) or "slacktide_recording" not in line:
        raise LayoutError("expected the header of a recording")
    schema = line["slacktide_recording"]
    if schema != SCHEMA:
        raise LayoutError(f"slacktide_recording: this version reads {SCHEMA}, got {schema!r}")
    fields = _keys(line, "header", _HEADER)
    software = decoder(str)(fields["software"], "software")
    stated = _stated(fields["layout"], software)
    decoders, hints = Decoders(stated), get_type_hints(Header)
    names = [name for name in names_of(Header) if name != "layout"]
    read = {name: decoders.of(hints[name])(fields[name], name) for name in names}
    return Header(**read, layout=stated)


def _stated(value: object, software: str) -> dict[str, list[str]]:
    """The stated layout of types that differ from this version."""
    if not isinstance(value, dict):
        raise LayoutError(f"layout: expected an object, got {value!r}")
    current_layout = layout()
    for name, names in value.items():
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise LayoutError(f"layout.{name}: expected a list of names, got {names!r}")
    present = {
        name: [RENAMED.get((name, field), field) for field in names]
        for name, names in value.items()
    }
    changed = {name: names for name, names in present.items() if names != current_layout.get(name)}
    try:
        for name, names in changed.items():
            missing_fields = [field for field in names if field not in current_layout.get(name, ())]
            if missing_fields:
                raise LayoutError(f"{name}: fields differ: {', '.join(missing_fields)}")
        decoders = Decoders(changed)
        for type_ in (*EVENTS.values(), *FRAMES.values(), EngineSettings):
            decoders.of(type_)
    except LayoutError as error:
        raise LayoutError(
            f"layout: {error}; replay it with the version that recorded it ({software})"
        ) from None
    return changed


def pool_line(opened: PoolOpened) -> dict[str, Any]:
    """A pool ready for JSON."""
    return {
        "pool": tuple(opened.pool),
        "max_batch": opened.max_batch,
        **{name: getattr(opened.recipe, name) for name in names_of(PoolRecipe)},
        "options": dict(opened.recipe.options),
        "times": opened.times,
    }


class Reader:
    """Reads the lines of a recording by the layout that its header states."""

    def __init__(self, stated: Mapping[str, Sequence[str]] | None = None) -> None:
        stated = stated or {}
        current_layout = layout()
        self._decoders = Decoders(stated)
        self._events = {name: self._decoders.of(type_) for name, type_ in EVENTS.items()}
        self._frames = {name: self._decoders.of(type_) for name, type_ in FRAMES.items()}
        self._places: dict[str, list[int | None]] = {
            name: [
                names.index(field) + 1 if field in names else None for field in current_layout[name]
            ]
            for name, names in stated.items()
            if name in _COMMANDS
        }
        """For commands with other fields: the recorded index of each field of this version."""
        policy = current_layout["ExitPolicy"]
        self._policy = [policy.index(field) for field in stated.get("ExitPolicy", policy)]
        """Recorded fields of published policies, by index in this version."""
        self._is_older = bool(self._places) or "ExitPolicy" in stated

    def record(self, line: object) -> Record:
        """Read any line but a header. Raises LayoutError naming the field."""
        if isinstance(line, dict):
            return self._frames_call(line) if "frames" in line else _read_pool(line)
        if not isinstance(line, list) or len(line) != 3:
            raise LayoutError("expected [now, events, commands]")
        now, events, commands = line
        if not isinstance(events, list) or not isinstance(commands, list):
            raise LayoutError("expected lists of events and commands")
        for command in commands:
            if not isinstance(command, list) or len(command) < 2:
                raise LayoutError(f"commands: expected [type, cause, …], got {command!r}")
        if self._places:
            commands = [self._in_order(command) for command in commands]
        if isinstance(now, bool) or not isinstance(now, int | float):
            raise LayoutError(f"now: expected a number, got {now!r}")
        return Call(float(now), tuple([self._event(event) for event in events]), tuple(commands))

    def _frames_call(self, line: Mapping[str, Any]) -> FramesCall:
        fields = _keys(line, "frames", ("frames", "events", "what", "commands"))
        events, commands = fields["events"], fields["commands"]
        if not isinstance(events, list) or not isinstance(commands, list) or len(events) > 1:
            raise LayoutError("expected a list of at most one event, and a list of commands")
        event: FrameEvent | None = None
        if events:
            name = events[0][0] if isinstance(events[0], list) and events[0] else None
            if name not in self._frames:
                expected = ", ".join(self._frames)
                raise LayoutError(f"events: expected one of {expected}, got {events[0]!r}")
            event = self._frames[name](events[0][1:], name)
        now = decoder(float)(fields["frames"], "frames")
        trigger = decoder(str)(fields["what"], "what")
        return FramesCall(now, event, trigger, tuple(commands))

    def recorded(self, commands: Sequence[Plain]) -> list[Plain]:
        """`commands` of this version without fields that the recording lacks."""
        if not self._is_older:
            return list(commands)
        return [self._without(command) for command in commands]

    def _in_order(self, command: Plain) -> Plain:
        """A recorded command with the fields of this version, None for fields that it lacks."""
        places = self._places.get(command[0])
        if places is None:
            return command
        if len(command) <= max(place or 0 for place in places):
            raise LayoutError(f"commands: {command[0]} has too few values")
        return [command[0], *(None if place is None else command[place] for place in places)]

    def _without(self, command: Plain) -> Plain:
        if command[0] == "PublishExits":
            *values, policy = command
            command = [*values, [policy[at] for at in self._policy]]
        places = self._places.get(command[0])
        if places is None:
            return command
        reordered = [
            None if place is None else argument
            for place, argument in zip(places, command[1:], strict=True)
        ]
        return [command[0], *reordered]

    def _event(self, value: object) -> Event:
        name = value[0] if isinstance(value, list) and value else None
        if not isinstance(value, list) or not isinstance(name, str) or name not in EVENTS:
            raise LayoutError(f"events: expected one of {', '.join(EVENTS)}, got {value!r}")
        event: Event = self._events[name](value[1:], name)
        return event


def _read_pool(line: Mapping[str, Any]) -> PoolOpened:
    lacking = {"size": 0, "rescue": [], "exits": False}  # in earlier versions
    fields = _keys({**lacking, **line}, "pool", _POOL)
    options, times = fields["options"], fields["times"]
    for name, value in (("options", options), ("times", times)):
        if not isinstance(value, dict):
            raise LayoutError(f"{name}: expected an object, got {value!r}")
    return PoolOpened(
        decoder(PoolId)(fields["pool"], "pool"),
        decoder(int)(fields["max_batch"], "max_batch"),
        PoolRecipe(
            decoder(str)(fields["scheduler"], "scheduler"),
            options,
            decoder(float)(fields["share"], "share"),
            decoder(float)(fields["profiling"], "profiling"),
            decoder(int)(fields["size"], "size"),
            decoder(tuple[str, ...])(fields["rescue"], "rescue"),
            decoder(bool)(fields["exits"], "exits"),
        ),
        times,
    )


def _keys(value: object, name: str, keys: Sequence[str]) -> Mapping[str, Any]:
    """An object with exactly these keys."""
    try:
        return reading.mapping(value, name, keys)
    except ProfileError as error:
        raise LayoutError(str(error)) from None
