"""Plays the example scenarios and the old recordings; prints a digest of every command of each, as
JSON. A program, so that any build can be asked: test_both_builds.py."""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson

import slacktide
from slacktide._version import BUILD
from slacktide.domain import Command, Event
from slacktide.engine import Engine
from slacktide.lab.replay import Watcher, replay
from slacktide.lab.simulation.scenario import build, read_scenario
from slacktide.recording import Call, Recording
from slacktide.recording.records import plain_commands, plain_events

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/recording/data"
SCENARIOS = ROOT / "examples/scenarios"
SECONDS = ("duration=3s", "warmup=1s")


class Digest(Watcher):
    """Of events, commands and their times, to the last bit."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.commands = 0

    def watch(self, events: Sequence[Event], now: float, commands: Sequence[Command]) -> None:
        call = (now, plain_events(events), plain_commands(commands))
        self._hash.update(orjson.dumps(call))
        self.commands += len(commands)

    def after(self, call: Call, engine: Engine, commands: list[Command]) -> None:
        self.watch(call.events, call.now, commands)

    def told(self) -> tuple[int, str]:
        return self.commands, self._hash.hexdigest()


def main() -> None:
    digests = {}
    for path in sorted(SCENARIOS.glob("*.yaml")):
        for cell in read_scenario(path, SECONDS):
            digest, world = Digest(), build(cell)
            world.simulation(1, watch=digest.watch).run(world.items(1))
            digests[f"{path.stem} {dict(cell.labels)}"] = digest.told()
    with TemporaryDirectory() as folder:
        for path in sorted(RECORDINGS.glob("*.xz")):
            digest, unpacked = Digest(), Path(folder, path.stem)
            unpacked.write_bytes(lzma.decompress(path.read_bytes()))
            replay(Recording(unpacked), digest)
            digests[path.stem] = digest.told()
    package = str(Path(slacktide.__file__).parents[1])
    print(json.dumps({"build": BUILD, "package": package, "digests": digests}))


if __name__ == "__main__":
    main()
