"""What it costs that a model can be left early: its stages beside the model whole, none leaving.

For two example models (of few large operators, and of many small ones), cut into two, four and
eight stages as a worker cuts them, with a ramp at each cut: CPU time of a pass on one thread over
that of the model whole, medians of passes made by turns (a turn is a handful of passes of one kind,
so that each has its weights in the caches as it has them when it serves alone); how far the outputs
are apart; memory of a process that holds the stages over that of one that holds the model. And what
a release takes of the server's loop: reading the message, copying the outputs, the engine's part.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import numpy as np

from bench.engine_cost import BATCH, FIXED, PER_ROW, loaded_engine
from bench.machine import ROOT, cores, pin
from bench.measurement import Figure, Options, Result, at_most
from bench.models import example_repository
from slacktide.domain import ExitPolicy, PoolId, Request, RowsReleased, RunBatch, Submitted
from slacktide.executors.arranging import Arranger
from slacktide.executors.exit_frames import ReleasedMessage, decode_released, encode_released
from slacktide.executors.hand_over.output_file import OutputReader, OutputWriter, make_output_file
from slacktide.executors.ports import Arranged, ExitSource, ModelSource
from slacktide.executors.session import ModelSession
from slacktide.executors.session_pool import SessionPool

MODELS = ("residual", "text")
STAGES = (2, 4, 8)
ROWS = (1, 8)
GOALS = {("residual", 1): 3.0, ("residual", 8): 2.0, ("text", 1): 6.0, ("text", 8): 6.0}
"""Per cent, of four stages."""
TURN = 4
MEMORY_GOAL, RELEASE_US, APART = 1.15, 60.0, 1e-5
MASKS = {"text": "attention_mask"}


def ramps_for(name: str, folder: Path) -> ExitSource:
    """Ramps of no use at all positions: what they say costs what a good one says."""
    import onnx

    from slacktide.exits.manifest import ExitManifest, Ramp
    from slacktide.exits.positions import find_positions

    mask, model = MASKS.get(name, ""), onnx.load(str(_file(name)))
    output = model.graph.output[0].name
    graph = find_positions(model, mask=mask, output=output)
    ramps = []
    for position in graph.positions:
        weights = np.zeros((position.features, graph.classes), np.float32)
        bias = np.zeros(graph.classes, np.float32)
        ramps.append(Ramp(position.number, position.tensor, weights, bias, 1.0, 0.9, position.cost))
    manifest = ExitManifest("0" * 64, 1, 1, "samples", graph.outputs, tuple(ramps))
    document, arrays = manifest.encode()
    (folder / manifest.weights_file).write_bytes(arrays)
    (folder / "manifest.json").write_bytes(document)
    return ExitSource(folder, mask=mask, output=output)


def spread(stages: int, positions: int) -> tuple[int, ...]:
    """Positions of that many cuts less one, evenly from the front, the last left out."""
    return tuple(int(at) for at in np.linspace(0, positions - 1, stages + 1)[1:-1])


def arranged(name: str, stages: int, folder: Path) -> tuple[ModelSession, Arranged | None]:
    """The model as a worker opens it, whole for one stage."""
    import onnx

    from slacktide.exits.positions import find_positions

    exits = ramps_for(name, folder)
    file = _file(name)
    source = ModelSource(name, "1", file, file.parent, exits=exits)
    session = SessionPool.open(source, cores=1, device="cpu").session
    if stages == 1:
        return session, None
    graph = find_positions(onnx.load(str(file)), mask=exits.mask, output=exits.output)
    ramps = spread(stages, len(graph.positions))
    arrivals: queue.SimpleQueue[Arranged] = queue.SimpleQueue()
    policy = ExitPolicy(PoolId(name, "1"), ramps, (0.0,) * len(ramps), revision=1)
    Arranger(session, [1], arrivals.put).publish(policy)
    while not ((arrangement := arrivals.get(timeout=60.0)).detail or len(arrangement.rows) == 3):
        pass  # until nothing is timed any more
    if arrangement.detail:
        raise RuntimeError(f"{name} in {stages} stages: {arrangement.detail}")
    return session, arrangement


def _file(name: str) -> Path:
    return example_repository() / name / "1" / "model.onnx"


def passes(session: ModelSession, rows: int) -> Callable[[], list[Any]]:
    """Runs batches of so many rows through whatever the session has."""
    from slacktide.domain import Leaving
    from slacktide.executors.gathering import GatheredBatch
    from slacktide.executors.ports import NO_FAULTS
    from slacktide.executors.staged import StagedBatch

    feeds = session.synthetic(rows)
    names = [spec.name for spec in session.interface.outputs]
    model = session.stages
    if model is None:
        return lambda: list(session.whole.run(names, feeds))
    stages = model.stages(session.threads)

    def run() -> list[Any]:
        gathered = GatheredBatch(feeds, [1] * rows, None, NO_FAULTS, perf_counter(), 0.0)
        batch = StagedBatch(model, gathered, {}, Leaving.RUN_ON, ())
        list(batch.run(stages))
        batch.report()
        return batch.end_outputs()[0]

    return run


def cost(name: str, rows: int, rounds: int) -> tuple[dict[int, float], float, list[float]]:
    """Per cent that each number of stages adds, greatest distance of an output, rounds of four."""
    runs: dict[int, Callable[[], list[Any]]] = {}
    for stages in (1, *STAGES):
        with tempfile.TemporaryDirectory() as folder:
            runs[stages] = passes(arranged(name, stages, Path(folder))[0], rows)
    whole = runs[1]()
    apart = max(
        float(np.abs(output - other).max())
        for stages in STAGES
        for output, other in zip(whole, runs[stages](), strict=True)
    )
    samples: dict[int, list[float]] = {stages: [] for stages in runs}
    for _ in range(rounds):
        for stages, run in runs.items():
            run()  # brings its weights back
            times = []
            for _ in range(TURN):
                begin = thread_time()
                run()
                times.append(thread_time() - begin)
            samples[stages].append(min(times))
    added = {
        stages: [
            (staged / whole_s - 1) * 100 for staged, whole_s in zip(times, samples[1], strict=True)
        ]
        for stages, times in samples.items()
    }
    return {stages: median(percents) for stages, percents in added.items()}, apart, added[4]


def memory_of(name: str, stages: int) -> float:
    """MiB that a fresh process holds with the model open, whole or in stages."""
    command = [sys.executable, "-m", "bench.exits_cost", name, str(stages)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout)


def release_us(count: int) -> float:
    """µs of the loop for a message that releases one member of a batch of eight."""
    fd = make_output_file()
    writer, reader = OutputWriter(fd), OutputReader(fd)
    from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec

    spec = TensorSpec("y", Datatype.FP32, (-1, 10))
    runs = writer.write([np.zeros((1, 10), np.float32)], [1], ModelInterface((), (spec,), 8))
    policy = ExitPolicy(PoolId("m", "1"), (3,), (0.5,), feedback=0.0)
    spent = []
    for _ in range(count):
        engine = loaded_engine("slack", exits=(policy,))
        seconds = FIXED + PER_ROW * BATCH
        events = [
            Submitted(Request(id, "m", arrival=0.0, deadline=9 * seconds)) for id in range(BATCH)
        ]
        commands = engine.handle_all(events, now=0.0)
        (batch,) = [command.batch for command in commands if isinstance(command, RunBatch)]
        for place in range(BATCH):
            body = encode_released(ReleasedMessage(batch.id, 3, writer.file_bytes, [place], runs))
            begin = perf_counter()
            message = decode_released(body[8:], BATCH)
            reader.take(message)
            ids = tuple([batch.members[member].id for member in message.members])
            engine.handle_all([RowsReleased(message.batch, ids, message.ramp)], now=0.001)
            engine.next_wakeup()
            spent.append(perf_counter() - begin)
    reader.close()
    return median(spent) * 1e6


def run(options: Options) -> Result:
    """Every model and size; a third of the rounds when quick."""
    pin(cores().server)
    result = Result("exits_cost")
    for name in MODELS:
        for rows in ROWS:
            row = f"{name}, batch {rows}"
            if not options.wants(row):
                continue
            rounds = (30 if name == "residual" and rows > 1 else 120) // (3 if options.quick else 1)
            added, apart, samples = cost(name, rows, rounds)
            for stages in STAGES:
                goal = at_most(GOALS[name, rows]) if stages == 4 else None
                rounds_added = tuple(samples) if stages == 4 else ()
                result.figures.append(
                    Figure(
                        f"{row}, {stages} stages",
                        added[stages],
                        "% more",
                        goal,
                        samples=rounds_added,
                    )
                )
            result.figures.append(Figure(f"{row}, outputs apart", apart, "", at_most(APART)))
        if options.wants(f"{name}, memory"):
            whole, cut = memory_of(name, 1), memory_of(name, 4)
            note = f"{cut:.0f} MiB of {whole:.0f}"
            goal = at_most(MEMORY_GOAL)
            figure = Figure(f"{name}, memory of 4 stages", cut / whole, "× whole", goal, note)
            result.figures.append(figure)
    if options.wants("release"):
        spent = release_us(100 if options.quick else 1_000)
        result.figures.append(Figure("loop, one release", spent, "µs", at_most(RELEASE_US)))
    return result


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        session, _ = arranged(sys.argv[1], int(sys.argv[2]), Path(where))
        for size in ROWS:
            passes(session, size)()
        (proportional,) = [
            line
            for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        ]
        print(int(proportional.split()[1]) / 1024)
