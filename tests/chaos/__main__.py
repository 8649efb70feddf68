"""`make chaos`: everything at once, then the books.

A server of its own process, with an access log and a recording, is sent requests over HTTP and gRPC
whose clients wait, vanish, stall or cancel. Meanwhile its workers and the process that starts them
are killed and frozen, it is frozen itself, models are loaded again and unloaded, connections and
bad bytes come in floods, and its disk fills up. What happens when is drawn from `--seed`. Then
generator and server must agree on one outcome for every request, and nothing may be left behind.

    python tests/chaos --minutes 5 --seed 7

With `--exits 100000` it is so many requests to models with early exits instead, whose workers are
killed between stages (exits.py).

Exit code 0 if all agrees, else 1: the folder with log and recording is kept then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from account import Books, disagreements
from generator import Generator
from plan import (
    MODELS,
    STAGES,
    Manner,
    Plan,
    PlannedCall,
    PlannedTrouble,
    Trouble,
    describe,
    draw,
)
from victim import LATE, PATIENCE, Victim, signal_to, until

from exits import ExitsRun
from slacktide.lab.replay import replay
from slacktide.recording import Recording

FLOOD = 400
"""Connections of a flood; more than the server has places for, with those of the generator."""
MORE_MEMORY = 96 << 20
"""Bytes that the server itself may have kept for later: buffers, caches, profiles."""
MORE_DESCRIPTORS = 24
UNLOADED = ("coming",)
"""Models whose counters go, as they are unloaded."""
STRANGER = ("127.0.0.2", 0)
"""Where floods come from: what one address costs the server is not its other clients' affair."""


class Chaos:
    """Does what is planned to the server, each trouble in a thread of its own."""

    def __init__(self, victim: Victim, say: Callable[[str], None]) -> None:
        self._victim = victim
        self._say = say
        self.done: Counter[Trouble] = Counter()
        self.faults: list[tuple[str, str]] = []
        self.recording: Path | None = None
        """A copy of what was recorded before the disk was full."""
        self._threads: list[threading.Thread] = []
        self._ends: list[float] = []
        self._over = threading.Event()

    def start(self, plan: Plan) -> None:
        began = time.monotonic()
        for trouble in plan.troubles:
            thread = threading.Thread(target=self._one, args=(trouble, began), daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            if thread.is_alive():
                self.faults.append(("(chaos)", "a trouble did not end"))

    def _one(self, trouble: PlannedTrouble, began: float) -> None:
        self._over.wait(max(0.0, began + trouble.at - time.monotonic()))
        try:
            if _DEEDS[trouble.kind](self, trouble):
                self.done[trouble.kind] += 1
        except Exception as error:
            self.faults.append((trouble.kind.value, repr(error)))

    # ── processes ────────────────────────────────────────────────────────────────────────────

    def kill_worker(self, trouble: PlannedTrouble) -> bool:
        return signal_to(_chosen(self._victim.workers, trouble), signal.SIGKILL)

    def kill_forking(self, trouble: PlannedTrouble) -> bool:
        return signal_to(_chosen(self._victim.forking, trouble), signal.SIGKILL)

    def freeze_worker(self, trouble: PlannedTrouble) -> bool:
        return self._freeze(_chosen(self._victim.workers, trouble), trouble)

    def freeze_forking(self, trouble: PlannedTrouble) -> bool:
        return self._freeze(_chosen(self._victim.forking, trouble), trouble)

    def freeze_server(self, trouble: PlannedTrouble) -> bool:
        return self._freeze(self._victim.process.pid, trouble)

    def _freeze(self, pid: int, trouble: PlannedTrouble) -> bool:
        frozen = signal_to(pid, signal.SIGSTOP)
        self._over.wait(trouble.seconds)
        signal_to(pid, signal.SIGCONT)
        return frozen

    # ── models ───────────────────────────────────────────────────────────────────────────────

    def reload(self, trouble: PlannedTrouble) -> bool:
        kept = [model for model in (*MODELS, *STAGES) if model not in UNLOADED]
        return self._victim.control(kept[int(trouble.draw * len(kept))], "load") != 0

    def unload(self, trouble: PlannedTrouble) -> bool:
        gone = self._victim.control(UNLOADED[0], "unload")
        self._over.wait(trouble.seconds)
        self._victim.control(UNLOADED[0], "load")
        return gone != 0

    def sighup(self, trouble: PlannedTrouble) -> bool:
        self._victim.token.write_text(self._victim.token.read_text())
        return signal_to(self._victim.process.pid, signal.SIGHUP)

    # ── floods ───────────────────────────────────────────────────────────────────────────────

    def connections(self, trouble: PlannedTrouble) -> bool:
        open_ones = [self._connect("http" if i % 3 else "grpc") for i in range(FLOOD)]
        self._over.wait(trouble.seconds)
        for connection in filter(None, open_ones):
            connection.close()
        return any(open_ones)

    def bad_http(self, trouble: PlannedTrouble) -> bool:
        return self._flood("http", trouble, _BAD_HTTP)

    def bad_grpc(self, trouble: PlannedTrouble) -> bool:
        return self._flood("grpc", trouble, _BAD_GRPC)

    def _flood(self, port: str, trouble: PlannedTrouble, seeds: list[bytes]) -> bool:
        rng = random.Random(trouble.draw)
        end = time.monotonic() + trouble.seconds
        sent = False
        while time.monotonic() < end:
            connection = self._connect(port)
            if connection is None:
                continue
            data = bytearray(rng.choice(seeds))
            for _ in range(rng.choice((0, 1, 4))):
                data[rng.randrange(len(data))] = rng.randrange(256)
            with connection:
                try:
                    connection.sendall(data)
                    connection.settimeout(0.01)
                    connection.recv(4096)
                except OSError:
                    pass
            sent = True
        return sent

    def _connect(self, port: str) -> socket.socket | None:
        try:
            return socket.create_connection(
                ("127.0.0.1", self._victim.ports[port]), 1.0, source_address=STRANGER
            )
        except OSError:
            return None

    # ── the disk ─────────────────────────────────────────────────────────────────────────────

    def disk(self, trouble: PlannedTrouble) -> bool:
        """Full from here on, while a model comes whose profile is to be stored."""
        victim = self._victim
        victim.bring_late()
        kept = victim.folder / "recording"
        victim.disk.fill()
        self._over.wait(trouble.seconds / 2)
        victim.control(LATE, "load")
        self._over.wait(trouble.seconds / 2)
        # The recorder writes once a second, and on a busy machine later.
        until(
            lambda: victim.metrics().total("slacktide_recording_stopped") == 1,
            "the full disk stops the recording",
        )
        shutil.copyfile(victim.disk.seen / "recording", kept)
        self.recording = kept
        victim.disk.free()
        return True


_DEEDS: dict[Trouble, Callable[[Chaos, PlannedTrouble], bool]] = {
    kind: getattr(Chaos, kind.name.lower()) for kind in Trouble
}
_BAD_HTTP = [
    b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
    b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"GET  /v2 HTTP/9.9\r\n\r\n" + b"A" * 200,
]
_BAD_GRPC = [
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 255, 255)),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)) + bytes(range(200)),
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


def _chosen(pids: Callable[[], list[int]], trouble: PlannedTrouble) -> int:
    """One of these processes, as soon as there is one."""
    running: list[int] = []
    until(lambda: running.extend(sorted(pids())) or running, "there is such a process")
    return running[int(trouble.draw * len(running))]


# ── the run ──────────────────────────────────────────────────────────────────────────────────────


class Run(Books):
    """One chaos run and its books."""

    def __init__(self, plan: Plan, folder: Path, *, limit_files: bool, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._plan = plan
        self._folder = folder
        self._limit_files = limit_files

    def __call__(self) -> bool:
        """Whether all agrees."""
        with Victim(self._folder, limit_files=self._limit_files) as victim:
            self.say(f"serving on {victim.ports}; its disk is {victim.disk.kind}")
            generator, chaos = Generator(victim), Chaos(victim, self.say)
            asyncio.run(generator.run(_greeting("before", 1)))
            memory, descriptors = victim.anonymous_bytes(), victim.descriptors()
            self._troubled(victim, generator, chaos)
            try:
                self._afterwards(victim, generator, chaos, memory, descriptors)
            except AssertionError as error:
                self.wrong.append(("(server)", str(error)))
            self._ending(victim)
        self._books(victim, generator, chaos)
        return not self.wrong

    def _troubled(self, victim: Victim, generator: Generator, chaos: Chaos) -> None:
        ended = threading.Event()

        def progress() -> None:
            while not ended.wait(5.0):
                answers = Counter(story.answer or "-" for story in generator.stories)
                self.say(f"{sum(chaos.done.values())} troubles, answers {dict(answers)}")

        watcher = threading.Thread(target=progress, daemon=True)
        watcher.start()
        chaos.start(self._plan)
        asyncio.run(generator.run(self._plan.calls))
        chaos.join()
        ended.set()
        watcher.join()
        self.wrong += chaos.faults

    def _afterwards(
        self, victim: Victim, generator: Generator, chaos: Chaos, memory: int, descriptors: int
    ) -> None:
        """It recovers, and nothing is left in it."""
        self.say("troubles are over: models are loaded again, and each is asked")
        for model in (*MODELS, LATE):
            until(lambda model=model: victim.control(model, "load") == 200, f"{model} is loaded")
        until(lambda: victim.ask("GET", "/v2/health/ready")[0] == 200, "it is ready")
        # More than once, as a machine that stands still has workers taken to hang.
        for attempt in range(3):
            greeting = _greeting(f"after-{attempt}", 10**6 + 3 * attempt)
            asyncio.run(generator.run(greeting))
            answers = {s.model: s.answer for s in generator.stories[-len(greeting) :]}
            # 422: by chance its input was blocked, as workers died under it twice.
            fine = set(answers.values()) <= {"200", "422"}
            if fine:
                break
        self.check(fine, f"plain requests were answered {answers}")
        until(lambda: victim.metrics().total("slacktide_in_flight_requests") == 0, "it is idle")
        until(lambda: victim.metrics().total("slacktide_payload_in_use_bytes") == 0, "slots free")
        metrics = victim.metrics()
        for family in ("announced_requests", "queue_requests", "running_requests"):
            left = metrics.total(f"slacktide_{family}")
            self.check(left == 0, f"{left:.0f} {family} are left")
        if chaos.done[Trouble.DISK]:
            stopped = metrics.total("slacktide_recording_stopped")
            self.check(stopped == 1, "the full disk did not stop the recording")
        self.outcomes = metrics.outcomes()
        for model, count in metrics.succeeded_and_failed().items():
            total = sum(self.outcomes[model].values())
            self.check(count == total, f"{count} by Triton's counters, {total} by ours", model)
        fewer = descriptors + MORE_DESCRIPTORS
        until(lambda: victim.descriptors() <= fewer, f"it has at most {fewer} descriptors open")
        kept = victim.anonymous_bytes() - memory
        self.check(kept <= MORE_MEMORY, f"it has kept {kept >> 20} MiB more than before")
        self.table += [
            ("memory kept by the server", f"{kept / (1 << 20):+.1f} MiB"),
            ("descriptors", f"{descriptors} before, {victim.descriptors()} after"),
            ("crashes", f"{metrics.total('slacktide_crashes_total'):.0f}"),
            ("openings of circuits", f"{metrics.total('slacktide_circuit_openings_total'):.0f}"),
        ]

    def _ending(self, victim: Victim) -> None:
        self.say("it is asked to stop")
        family = victim.family()
        victim.process.send_signal(signal.SIGTERM)
        try:
            code = victim.process.wait(PATIENCE)
            self.check(code == 0, f"it ended with {code}")
        except Exception as error:
            self.wrong.append(("(server)", f"it did not end: {error!r}"))
        try:
            until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in family), "all end")
        except AssertionError as error:
            self.wrong.append(("(server)", f"{error}: of {family}"))

    def _books(self, victim: Victim, generator: Generator, chaos: Chaos) -> None:
        self.say("the books are compared")
        if self.wrong and not hasattr(self, "outcomes"):
            self.outcomes = {}
        try:
            for entry in victim.entries():
                text = json.dumps(entry)
                self.check("traceback" not in entry, f"a traceback in the log: {text}")
            lines = list(victim.said())
        except ValueError as error:
            self.wrong.append(("(log)", f"a line that is not ours: {error}"))
            return
        others = (*UNLOADED, *STAGES, LATE)
        kept = {m: counts for m, counts in self.outcomes.items() if m not in others}
        self.wrong += disagreements(generator.stories, lines, kept)
        if chaos.recording is not None:
            replayed = replay(Recording(chaos.recording))
            same = replayed.difference is None
            self.check(same, f"its replay differs: {replayed.difference}", "(recording)")
            self.table.append(("replayed alike", f"{replayed.events} events"))
        self._summary(generator, chaos)

    def _summary(self, generator: Generator, chaos: Chaos) -> None:
        counts: Counter[tuple[str, str]] = Counter()
        for story in generator.stories:
            counts[story.manner, story.answer or "left"] += 1
        for manner in Manner:
            answers = {answer: n for (m, answer), n in sorted(counts.items()) if m == manner.value}
            self.table.append((manner.value, "  ".join(f"{a} {n}" for a, n in answers.items())))
        planned = Counter(trouble.kind for trouble in self._plan.troubles)
        for kind in Trouble:
            self.table.append((kind.value, f"{chaos.done[kind]} of {planned[kind]}"))
        for model, reasons in self.outcomes.items():
            had = "  ".join(f"{reason.label} {n}" for reason, n in reasons.items() if n)
            self.table.append((f"outcomes of {model}", had))


def _greeting(when: str, value: int) -> tuple[PlannedCall, ...]:
    """A plain request for each model."""
    return tuple(
        PlannedCall(0.0, f"{when}-{model}", value, model, Manner.PLAIN, None, 1, 0.0, 0)
        for model in MODELS
        if model != "hanging"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="length (default 2)")
    parser.add_argument("--seed", type=int, help="what happens when (default: a new one)")
    parser.add_argument("--folder", type=Path, help="for log and recording; must not exist")
    parser.add_argument(
        "--limit-files", action="store_true", help="make the disk full without a mount"
    )
    parser.add_argument("--exits", type=int, help="requests that may leave early, instead")
    parser.add_argument("--show-plan", action="store_true", help="print what would be done")
    parser.add_argument("--quiet", action="store_true", help="print the table alone")
    given = parser.parse_args(arguments)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="slacktide-chaos-")) / "run"
    if given.exits is not None:
        exits = ExitsRun(given.exits, folder, quiet=given.quiet)
        return _told(exits(), exits, folder, kept=given.folder is not None)
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    plan = draw(seed, given.minutes * 60)
    if given.show_plan:
        print("\n".join([*describe(plan.troubles), *map(str, plan.calls)]))
        return 0
    print(f"seed {seed}: {len(plan.calls)} requests, {len(plan.troubles)} troubles", flush=True)
    run = Run(plan, folder, limit_files=given.limit_files, quiet=given.quiet)
    fine = run()
    if not fine:
        print(f"\nseed {seed}, {given.minutes} minutes")
    return _told(fine, run, folder, kept=given.folder is not None, calls=plan.calls)


def _told(
    fine: bool,
    run: Run | ExitsRun,
    folder: Path,
    *,
    kept: bool,
    calls: Sequence[PlannedCall] = (),
) -> int:
    """Print what came of a run; its exit code."""
    for name, text in run.table:
        print(f"{name:44} {text}")
    if fine:
        print("generator and server agree on every request")
        if not kept:
            shutil.rmtree(folder.parent)
        return 0
    print(f"{len(run.wrong)} things do not agree")
    log = folder / "server.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for where, problem in run.wrong[:20]:
        print(f"- {where}: {problem}")
        for call in calls:
            if call.id == where:
                print(f"    planned: {call}")
        for line in [line for line in lines if f'"request_id": "{where}"' in line][:3]:
            print(f"    log: {line}")
    print(f"kept: {folder}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
