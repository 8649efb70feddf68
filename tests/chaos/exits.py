"""`make chaos CHAOS="--exits 100000"`: early answers, and workers that die between stages.

A server of its own process serves one chained model twice: rows that are answered run on with their
batch (`release`), or leave it (`auto`, whose lane is never idle here). Many requests at once come
over gRPC, from tritonclient. Time and again, as soon as both models have answered early, both
workers are killed: one of them may be running the rest of its batch. Then

- every request has one answer, and one outcome in the access log and in the recording;
- the early ones are those that the server has counted, and no request ran again after its answer;
- answers of the model's end are this very row's, and nine early ones in ten have its class;
- the recording is replayed to the bit.

Two things are not as in production. The server's patience with crashes is without end, and it takes
no batch to hang: else five crashes in a minute make a model unavailable, a request that was in two
is taken to be the cause, and a machine that is busy looks like a worker that hangs. And which
ramps are active, and from when on a row is sure, is fixed: else it would hang on how busy the
machine is.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from account import Books
from numpy.typing import NDArray
from onnxruntime import InferenceSession
from victim import AUTHORIZATION, PATIENCE, Victim, lane_of_its_own, signal_to, whole_servers

from slacktide.domain import Command, ReplicaLost, RowsReleased, RunBatch
from slacktide.engine import Engine
from slacktide.lab.replay import replay
from slacktide.lab.replay.replay import Watcher
from slacktide.recording import Call, Recording
from slacktide.recording.records import answers

MOST_DIFFER = 0.1
"""Of the answers, in class: a ramp that took one row for another would differ in three of four."""
MODES = {"stays": "release", "leaves": "auto"}
"""By model, what becomes of rows that are answered."""
AT_ONCE = 64
"""Requests in flight."""
KILL_EVERY = 200
"""Answers from one death of the workers to the next."""
LEAST_DEATHS, MOST_TIMES = 3, 20
"""Deaths of both workers before requests end, unless so many times the requests have been sent."""
TELLING = 20_000
"""Requests from which on some worker must have died between stages: that is left to chance."""
KINDS = 512
"""Different rows."""

_RAMPS, _UNSURE = (0, 2, 4), 0.3
_PATIENT = f"""
from dataclasses import replace
from functools import partial
import slacktide.models.repository.early_exit as early_exit
import slacktide.server.app as app
stated, ramps = early_exit.StatedExits, {_RAMPS}
thresholds = ({_UNSURE},) * len(ramps)
early_exit.StatedExits = lambda *given, **named: replace(
    stated(*given, **named), ramps=ramps, thresholds=thresholds
)
app.EngineSettings = partial(
    app.EngineSettings,
    hang_floor={PATIENCE},
    backoff_most=0.1,
    crash_limit_count=10**9,
    crashes_per_request_count=10**9,
)
from slacktide.cli.main import main
main()
"""


def make_chains(zoo: Any) -> None:
    """Two models with ramps that `slacktide exits add` has learnt."""
    chained = whole_servers("chained")
    data = zoo.root.parent / "rows.npz"
    np.savez(data, allow_pickle=False, x=chained.rows(600))
    for name, mode in MODES.items():
        stated = f"early_exit: {{mode: {mode}}}\n"
        chained.chain(zoo, name, f"{stated}max_batch: 8\n{lane_of_its_own()}")
    first, second = (zoo.root / name for name in MODES)
    command = [sys.executable, "-m", "slacktide", "exits", "add", str(first), "--data", str(data)]
    subprocess.run(command, check=True, capture_output=True)
    shutil.copytree(first / "1" / "exits", second / "1" / "exits")


class Killer:
    """Kills both workers whenever so many answers have come, right behind an early one, and not
    before each model has answered early since the last time."""

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self._due = KILL_EVERY
        self._early: set[str] = set()
        self.deaths = self.kills = 0

    def answered(self, count: int, model: str, *, early: bool) -> None:
        if not early:
            return
        self._early.add(model)
        if count >= self._due and len(self._early) == len(MODES):
            self._due = count + KILL_EVERY
            self._early.clear()
            self.deaths += 1
            self.kills += sum(signal_to(pid, signal.SIGKILL) for pid in self._victim.workers())


class Asking:
    """Every request, and what came of it."""

    def __init__(self, victim: Victim, requests: int, say: Callable[[str], None]) -> None:
        self._port = victim.ports["grpc"]
        self._requests = requests
        self._say = say
        self.sent = 0
        self.killer = Killer(victim)
        self.rows: NDArray[np.float32] = whole_servers("chained").rows(KINDS, 7)
        path = str(victim.folder / "models" / "stays" / "1" / "model.onnx")
        session = InferenceSession(path, providers=["CPUExecutionProvider"])
        self._ends: NDArray[np.float32] = session.run(["scores"], {"x": self.rows})[0]
        self.early = Counter[str]()
        self.answered = Counter[int]()
        self.differ = 0
        self.wrong: list[tuple[str, str]] = []

    def _numbers(self) -> Iterator[int]:
        """Of the requests; more than were asked for while too few workers have died."""
        for number in range(MOST_TIMES * self._requests):
            if number >= self._requests and self.killer.deaths >= LEAST_DEATHS:
                return
            self.sent = number + 1
            yield number

    async def run(self) -> None:
        numbers = self._numbers()
        async with triton.InferenceServerClient(f"127.0.0.1:{self._port}") as client:
            await asyncio.gather(*(self._client(client, numbers) for _ in range(AT_ONCE)))

    async def _client(self, client: triton.InferenceServerClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            model = tuple(MODES)[number % len(MODES)]
            kind = number * 31 % KINDS
            x = triton.InferInput("x", [1, self.rows.shape[1]], "FP32")
            x.set_data_from_numpy(self.rows[kind : kind + 1])
            try:
                answer = await client.infer(
                    model,
                    [x],
                    outputs=[triton.InferRequestedOutput("scores")],
                    request_id=f"r{number}",
                    parameters={"report_timing": True},
                    headers={"authorization": AUTHORIZATION["Authorization"]},
                    client_timeout=2 * PATIENCE,
                )
            except triton.InferenceServerException as error:
                self.wrong.append((f"r{number}", f"was not answered: {error}"))
                continue
            self._judge(number, model, kind, answer)

    def _judge(self, number: int, model: str, kind: int, answer: Any) -> None:
        message = answer.get_response()
        self.answered[int(message.id.removeprefix("r"))] += 1
        early = bool(message.parameters["exit"].string_param)
        scores = answer.as_numpy("scores")[0]
        if early:
            self.early[model] += 1
            self.differ += scores.argmax() != self._ends[kind].argmax()
        elif not np.allclose(scores, self._ends[kind], atol=1e-3):
            self.wrong.append((f"r{number}", f"another row's answer: {scores}"))
        total = self.answered.total()
        self.killer.answered(total, model, early=early)
        if total % 10_000 == 0:
            self._say(f"{total:,} answers, {self.early.total():,} early, {self.killer.kills} kills")


class Looking(Watcher):
    """What a recording says of its requests, while it is replayed."""

    def __init__(self) -> None:
        self.answered = Counter[int]()
        self.again: list[int] = []
        """Requests that ran after their answer."""
        self.lost = self.between = 0
        """Workers that died, and those that had answered a part of what they were running."""
        self._released: set[int] = set()

    def before(self, call: Call, engine: Engine) -> None:
        for event in call.events:
            if isinstance(event, RowsReleased):
                self._released.add(event.batch)
            elif isinstance(event, ReplicaLost):
                self.lost += 1
                self.between += any(
                    batch.batch.replica.id == event.replica and batch.batch.id in self._released
                    for batch in engine.snapshot().batches()
                )

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, RunBatch) and not command.batch.solo:
                members = (member.id for member in command.batch.members)
                self.again += [id for id in members if id in self.answered]
        self.answered.update(id for id, _ in answers(call))


class ExitsRun(Books):
    """One run and its books."""

    def __init__(self, requests: int, folder: Path, *, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._requests = requests
        self._folder = folder

    def __call__(self) -> bool:
        """Whether all agrees."""
        with Victim(
            self._folder, limit_files=True, make=make_chains, program=("-c", _PATIENT)
        ) as victim:
            self.say(f"serving on {victim.ports}")
            asking = Asking(victim, self._requests, self.say)
            asyncio.run(asking.run())
            outcomes = victim.metrics().outcomes()
            victim.process.send_signal(signal.SIGTERM)
            self.check(victim.process.wait(PATIENCE) == 0, "it did not end well")
        self.say("the books are compared")
        self._compare(victim, asking, outcomes)
        return not self.wrong

    def _compare(self, victim: Victim, asking: Asking, outcomes: Any) -> None:
        self.wrong += asking.wrong
        early, total = asking.early.total(), asking.sent
        self.check(asking.answered == Counter(range(total)), "not every request has one answer")
        statuses = Counter((line.id, line.status) for line in victim.said())
        self.check(
            statuses == Counter((f"r{number}", "OK") for number in range(total)),
            f"the access log has {statuses.total()} lines, {len(statuses)} of them different",
        )
        for entry in victim.entries():
            self.check("traceback" not in entry, f"a traceback: {json.dumps(entry)}")
        for model in MODES:
            had = {reason.label: count for reason, count in outcomes[model].items() if count}
            counted, mine = had.get("early_exit", 0), asking.early[model]
            self.check(counted == mine, f"{model}: {counted} left early, {mine} were told so")
            self.check(mine > 0, f"{model}: none left early")
        had = sum(sum(outcomes[model].values()) for model in MODES)
        self.check(had == total, f"{had} outcomes of {total} requests")
        self.check(asking.differ <= MOST_DIFFER * total, f"{asking.differ} early answers differ")
        looking = Looking()
        replayed = replay(Recording(victim.disk.folder / "recording"), looking)
        self.check(replayed.difference is None, f"its replay differs: {replayed.difference}")
        once = len(looking.answered) == looking.answered.total() == total
        self.check(once, f"{looking.answered.total()} outcomes of {len(looking.answered)} requests")
        self.check(not looking.again, f"{looking.again[:9]} ran after their answer")
        if total >= TELLING:
            self.check(looking.between > 0, "no worker died between stages")
        self.check(asking.killer.deaths >= LEAST_DEATHS, f"{asking.killer.deaths} times killed")
        self.table += [
            ("requests, each with one answer", f"{total:,}"),
            ("left early", f"{early:,} ({early / total:.0%})"),
            ("answers that differ from the model's", f"{asking.differ / total:.2%}"),
            ("workers killed", f"{asking.killer.kills}"),
            ("  with a part of their batch answered", f"{looking.between}"),
            ("replayed alike", f"{replayed.events:,} events"),
        ]
