"""The part of `slacktide simulate` that takes a recording: replays it, or predicts it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slacktide.cli import FELL_SHORT, console, fail, print_json

if TYPE_CHECKING:
    from slacktide.lab.replay import Difference
    from slacktide.lab.replay.decisions import Decision
    from slacktide.recording import Recording

SEEDS = range(5)
"""Default seeds of the draws of batch times."""

CONTEXT = 3
"""Number of commands shown before and after the first difference."""


def replay_recording(
    path: Path, *, decisions: bool = False, request: int | None = None, json: bool = False
) -> int:
    """Replay, print whether the commands are identical, and return the exit code.

    `decisions` prints why each batch ran and each request was dropped; `request` prints only the
    decisions about that request.
    """
    from slacktide.lab.replay import Watcher, replay
    from slacktide.lab.replay.decisions import Notes
    from slacktide.recording import Recording, RecordingError

    try:
        recording = Recording(path)
        notes = Notes(_teller(recording, request)) if decisions or request is not None else None
        watchers: tuple[Watcher, ...] = () if notes is None else (notes,)
        run = replay(recording, *watchers, pools=None if notes is None else notes.pools)
    except RecordingError as error:
        fail(str(error))
    for warning in recording.warnings:
        typer.echo(f"warning: {warning}", err=True)
    difference = run.difference
    if json:
        print_json(
            {
                "identical": difference is None,
                "calls": run.calls,
                "events": run.events,
                "commands": run.commands,
                "difference": None
                if difference is None
                else {
                    "place": difference.line.place,
                    "first_event": difference.first_event,
                    "command": difference.place,
                    "recorded": difference.recorded,
                    "replayed": difference.replayed,
                },
                "warnings": recording.warnings,
            }
        )
    else:
        counted = f"{run.events} events in {run.calls} calls, {run.commands} commands"
        lines: Iterable[str] = (f"identical: {counted}",)
        if difference is not None:
            lines = _difference_lines(difference, counted)
        for line in lines:
            console().print(line, markup=False)
    return 0 if difference is None else FELL_SHORT


def _teller(recording: Recording, request: int | None) -> Callable[[Decision], None]:
    """Return a function that prints decisions; only those about `request` if it is not None."""
    from slacktide.lab.replay.explain import concerns, lines
    from slacktide.recording import Call

    calls = (line.record for line in recording.lines() if isinstance(line.record, Call))
    begin = next((call.now for call in calls), 0.0)

    def tell(decision: Decision) -> None:
        if request is None or concerns(decision, request):
            for line in lines(decision, begin=begin):
                typer.echo(line)

    return tell


def _difference_lines(difference: Difference, counted: str) -> Iterator[str]:
    """Yield lines about the first difference and the commands around it."""
    call = difference.call
    yield f"different after {counted}: at {difference.line.place}"
    yield f"handled at {call.now!r} s, from event {difference.first_event} on:"
    for event in islice(call.events, 10):
        yield f"    {event}"
    if len(call.events) > 10:
        yield f"    and {len(call.events) - 10} more"
    first = max(0, difference.place - CONTEXT)
    last = difference.place + CONTEXT + 1
    for name, commands in (("recorded", difference.recorded), ("replayed", difference.replayed)):
        yield f"{name} ({len(commands)} commands):"
        for i, command in enumerate(commands[first:last], first):
            yield f"{'  > ' if i == difference.place else '    '}{command}"


def predict_recording(
    path: Path,
    *,
    after: float = 0.0,
    hindsight: bool = False,
    seeds: Sequence[int] = (),
    json: bool = False,
) -> int:
    """Predict the outcomes of recorded requests, print the recorded and the predicted ones, and
    return the exit code."""
    from slacktide.lab.load.report.provenance import gather
    from slacktide.lab.reports.twin import prediction_document, render_prediction
    from slacktide.lab.simulation import SimulationError, predict
    from slacktide.recording import Recording, RecordingError

    try:
        recording = Recording(path)
        prediction = predict(
            recording,
            seeds=seeds or SEEDS,
            provenance=gather(),
            after=after,
            hindsight=hindsight,
        )
    except (RecordingError, SimulationError) as error:
        fail(str(error))
    if json:
        print_json(prediction_document(prediction))
    else:
        console().print(render_prediction(prediction))
    return 0
