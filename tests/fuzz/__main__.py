"""`make fuzz`: the server's parsers under damaged inputs, each target in a process of its own.

    python tests/fuzz                              every target, a minute each
    python tests/fuzz http yaml --seconds 600      these, longer
    python tests/fuzz --seed 7                     other inputs: they follow from seed and number
    python tests/fuzz yaml --input FILE            one input again, with its traceback

A failure is an exception that the parser does not declare, two readings that differ, more steps
than an input of its length may take, or the end of the process. Its input is written to --failures,
and what tells it again is printed. Where atheris is installed (`pip install atheris`), --coverage
has it choose what to go on from. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from target import Target

HERE = Path(__file__).parent
STEPS, STEPS_PER_BYTE = 1_000_000, 1_000
"""Calls of functions that reading an input may take; most take less than one for each byte."""
COUNT_EVERY = 16
"""Counting them is slow, so one input in so many is counted."""


def all_targets() -> dict[str, Target]:
    """By name. Imports what they attack, so not before atheris has put its marks there."""
    sys.path.append(str(HERE.parent.parent))  # for what other tests draw

    import file_targets
    import http2_targets
    import wire_targets

    modules = (wire_targets, http2_targets, file_targets)
    return {target.name: target for module in modules for target in module.TARGETS}


def inputs(target: Target, seed: int, start: int = 0) -> Iterator[bytes]:
    """The inputs of a seed, without end; the examples come first."""
    examples = list(target.examples())
    changes = target.changes(examples)
    if start == 0:
        yield from examples
    number = start
    while True:
        chance = random.Random(f"{target.name} {seed} {number}")
        data = chance.choice(examples)
        for _ in range(chance.choice((1, 1, 2, 3))):
            data = chance.choice(changes)(data, chance)
        yield data
        number += 1


def failure(target: Target, data: bytes, *, counted: bool = False) -> str | None:
    """What went wrong with an input, as a traceback; None if nothing did."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    try:
        if counted:
            sys.setprofile(count)
        try:
            target.run(data)
        finally:
            sys.setprofile(None)
        assert calls <= STEPS + STEPS_PER_BYTE * len(data), f"{calls} calls for {len(data)} bytes"
    except Exception:
        return traceback.format_exc(limit=-12)
    return None


def attack(target: Target, seed: int, rounds: int, seconds: float, kept: Path | None) -> str | None:
    """The first failure within so many inputs or seconds; None if there was none.

    `kept`: where every input is put before it is tried, should it end the process.
    """
    end = time.monotonic() + seconds
    shown = time.monotonic() + 10
    for number, data in enumerate(inputs(target, seed)):
        if number >= rounds or time.monotonic() >= end:
            print(f"{target.name}: {number} inputs of seed {seed}, nothing failed", flush=True)
            return None
        if kept is not None:
            kept.write_bytes(data)
        failed = failure(target, data, counted=number % COUNT_EVERY == 0)
        if failed is not None:
            return f"{target.name}: input {number} of seed {seed}\n{failed}"
        if time.monotonic() >= shown:
            print(f"{target.name}: {number} inputs", flush=True)
            shown += 10
    return None


def attack_by_coverage(target: Target, seed: int, seconds: float, kept: Path) -> None:
    """Atheris' loop, with our changes beside its own. Ends the process; 77 stands for a failure."""
    import atheris

    corpus = kept.with_suffix(".corpus")
    corpus.mkdir(exist_ok=True)
    examples = list(target.examples())
    for number, example in enumerate(examples):
        (corpus / f"example-{number}").write_bytes(example)
    changes = target.changes(examples)

    def change(data: bytes, most: int, drawn: int) -> bytes:
        chance = random.Random(drawn)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return chance.choice(changes)(data, chance)[:most]

    options = [f"-max_total_time={seconds:.0f}", f"-seed={seed + 1}", f"-artifact_prefix={kept}-"]
    options += ["-max_len=65536", "-verbosity=1", "-close_fd_mask=1"]
    words = [sys.argv[0], str(corpus), *options]
    atheris.Setup(words, target.run, custom_mutator=change)
    atheris.Fuzz()


def _child(options: argparse.Namespace) -> int:
    logging.disable(logging.CRITICAL)
    if options.coverage:
        import atheris

        with atheris.instrument_imports(include=["slacktide"]):
            targets = all_targets()
    else:
        targets = all_targets()
    target = targets[options.targets[0]]
    if options.input is not None:
        target.run(options.input.read_bytes())
        print(f"{target.name}: nothing failed")
        return 0
    kept = options.failures / target.name
    if options.coverage:
        attack_by_coverage(target, options.seed, options.seconds, kept)
    failed = attack(target, options.seed, options.rounds, options.seconds, kept)
    if failed is None:
        kept.unlink(missing_ok=True)
        return 0
    print(failed, flush=True)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("targets", nargs="*", help="default: all")
    seconds = float(os.environ.get("FUZZ_SECONDS", "60"))
    parser.add_argument("--seconds", type=float, default=seconds, help="for each target")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, default=Path(".cache/fuzz"), metavar="FOLDER")
    parser.add_argument("--coverage", action="store_true", help="guided by coverage, with atheris")
    parser.add_argument("--input", type=Path, help="just this input, of one target")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child or options.input is not None:
        return _child(options)
    names = list(all_targets())
    if unknown := set(options.targets) - set(names):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    options.failures.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in options.targets or names:
        passed = ("seconds", "rounds", "seed", "failures")
        words = [f"--{key}={getattr(options, key)}" for key in passed]
        words += ["--coverage"] if options.coverage else []
        done = subprocess.run([sys.executable, str(HERE), "--child", name, *words])
        if done.returncode != 0:
            failed.append(name)
            kept = options.failures / name
            print(f"{name}: FAILED, exit {done.returncode}; again: {name} --input {kept}*")
    held = len(options.targets or names) - len(failed)
    print(f"{held} targets held" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
