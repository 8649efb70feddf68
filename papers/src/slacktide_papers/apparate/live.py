"""A stream played to a real server, compared with the same stream in virtual time.

`slacktide serve` runs in its own process, with the model, the ramps that made the exit table, and
early exits as a user configures them (`early_exit: 1%`). Inputs are sent at the instants at which
they arrive in virtual time. No request is given up. The comparison covers which requests left
early, whether their answers were right, and how long they took.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slacktide.executors import pinned
from slacktide.exits import ExitError, ExitManifest
from slacktide.lab.examples import example, make_repository, make_stream
from slacktide.lab.load import (
    PlayedRow,
    ProcessError,
    Transport,
    exit_stats,
    play_rows,
    serving,
    split_cores,
)
from slacktide.models import save_ramps
from slacktide.models.repository import ProfileStore, RepositoryError, model_hash, open_repository
from slacktide_papers.apparate.class_groups import GROUPED, GROUPS, with_groups
from slacktide_papers.apparate.experiments import AUTO, ExitCell
from slacktide_papers.apparate.make_tables import TableOrder, learnt_ramps
from slacktide_papers.apparate.play import LOSS, PlayedExits, play
from slacktide_papers.apparate.setting import TableFile, arrivals, load_table
from slacktide_papers.apparate.stream_features import StreamFeatures
from slacktide_papers.harness.state import ReproduceError

PATIENCE_S = 20.0
"""Longest time that a request may take, in seconds; `play_rows` has the same timeout."""
TEXT_LOAD = 0.2
"""Arrival rate of texts, as a share of the model's throughput at batch 1."""


@dataclass(frozen=True, slots=True)
class LiveStream:
    """Outcome of one stream, live and in virtual time."""

    stream: str
    inputs: int
    rate: float
    """Inputs per second."""
    exits: tuple[float, float]
    """Share of answers given by ramps: (live, predicted), as in all pairs below."""
    agreement: tuple[float, float]
    """Share of answers that are the model's own."""
    p50_ms: tuple[float, float]
    """From a request's due instant to its answer. In the live run it includes HTTP and the client;
    in virtual time it is only the wait for the lane plus the pass."""
    p99_ms: tuple[float, float]
    ramps: tuple[float, float]
    """Active ramps: live at the end of the run, predicted on average over time."""
    alarms: int
    """Accuracy alarms of the live run."""


def play_live(order: TableOrder, table: TableFile) -> LiveStream:
    """Play a stream live, in real time, and in virtual time. Raises ReproduceError."""
    exit_table = load_table(table.path, table.digest)
    alone = float(exit_table.whole[0])
    rate = exit_table.rate or TEXT_LOAD / alone
    slo_x = PATIENCE_S / alone
    cell = ExitCell(table.name, AUTO, 1, table.digest, "slack", slo_x, rate, table=table.path)
    predicted = play(cell)
    instants = arrivals(len(exit_table), rate, None, cell.seed, even=exit_table.rate > 0.0)
    try:
        rows, stats = _served(order, instants.tolist())
    except (ProcessError, ExitError, RepositoryError, OSError) as error:
        raise ReproduceError(f"live: {order.name}: {error}") from None
    return compared(order, rate, rows, _answers(order), predicted, stats)


def compared(
    order: TableOrder,
    rate: float,
    rows: Sequence[PlayedRow],
    answers: Sequence[int],
    predicted: PlayedExits,
    stats: Mapping[str, Any],
) -> LiveStream:
    """Compare the live run with the prediction. `answers`: the model's own, by row; `stats`: final
    server `exit_stats`."""
    active = [ramp for ramp in stats["ramps"] if ramp["threshold"] is not None]
    right = [row.answer == answer for row, answer in zip(rows, answers, strict=True)]
    ms = np.percentile([1e3 * row.seconds for row in rows], (50, 99)).tolist()
    return LiveStream(
        order.name,
        len(rows),
        rate,
        (float(np.mean([bool(row.exit) for row in rows])), predicted.exits),
        (float(np.mean(right)), predicted.agreement),
        (ms[0], predicted.latency_ms[50]),
        (ms[1], predicted.latency_ms[99]),
        (len(active), predicted.ramps),
        int(stats["alarms"]),
    )


def _answers(order: TableOrder) -> list[int]:
    """The model's own answers to the inputs that are played."""
    chunks = StreamFeatures(order.stream).rows(order.trained, order.inputs)
    answers: list[int] = np.concatenate([logits for _, logits in chunks]).argmax(axis=1).tolist()
    return answers


def _served(order: TableOrder, instants: Sequence[float]) -> tuple[list[PlayedRow], dict[str, Any]]:
    """The live answers, and the server's exit statistics at the end of the run."""
    model = order.stream.model
    inputs = make_stream(model, order.stream.stream, order.trained, order.inputs)
    rows = [row for row, _ in inputs]
    with tempfile.TemporaryDirectory(prefix="slacktide-live-") as folder:
        repository = Path(folder, "models")
        make_repository(repository, models=[model])
        classes = len(example(model).classes)
        early_exit, output = f"{LOSS:.0%}", ""
        if order.stream.groups:
            classes, output = len(GROUPS), GROUPED
            early_exit = f"{{accuracy_loss: {LOSS:.0%}, output: {output}}}"
            _add_groups(model, repository)
        _write_ramps(order, repository, output)
        with (repository / model / "slacktide.yaml").open("a") as settings:
            settings.write(f"\nearly_exit: {early_exit}\n")
        cores, mine = split_cores(1)
        with serving(repository, cores, Path(folder, "server.log")) as targets:
            target = targets[Transport.HTTP]
            with pinned(mine):
                played = play_rows(target, model, classes, rows, instants)
            stats = exit_stats(target, model)
    return played, stats


def _add_groups(model: str, repository: Path) -> None:
    """Give the model in `repository` a second output, its classes in groups."""
    import onnx

    file = repository / model / "1" / "model.onnx"
    onnx.save(with_groups(onnx.load(file), example(model).classes), file)


def _write_ramps(order: TableOrder, repository: Path, output: str) -> None:
    """Save the ramps of the table for the model in `repository`. `output`: output with classes;
    empty: the model's own."""
    features = StreamFeatures(order.stream)
    (definition,) = open_repository(repository).read(order.stream.model)
    manifest = ExitManifest(
        model_hash(definition),
        1,
        order.trained,
        "samples",
        (output,) if output else features.graph.outputs,
        tuple(learnt_ramps(order, features)),
    )
    save_ramps(definition, ProfileStore().exits_folder(definition), manifest)
