"""all-MiniLM-L6-v2 behind its tokenizer: vectors, time to tokenize, short texts beside long ones.

Vectors of 200 texts of 1 to 150 words are compared with those of Transformers' fast tokenizer and
ONNX Runtime, each text alone and sixteen clients at once. Times are of `tokenizers` in this process
and of the server's process for it, in turn; the wait of a text of twenty words is measured alone
and while four clients each have eight texts of 64 KiB with the tokenizer.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np

from bench import minilm
from bench.machine import ROOT
from bench.measurement import Figure, Options, Result, at_most
from bench.servers import Serving, slacktide
from slacktide.executors.tokenizing import TokenizerProcess, Tokenizing

SEED = 1
ODD = ["", "Ünïcödé 字 مرحبا 👍🏽", "a" * 300, "\u0000\u200b", "ﷺ" * 40]
"""Texts that tokenizers treat in ways of their own."""


def run(options: Options) -> Result:
    """Half a minute; the first time also two downloads."""
    result = Result("texts", seeds=(SEED,))
    with tempfile.TemporaryDirectory() as folder:
        repository = minilm.lay_out(Path(folder))
        words = (ROOT / "docs" / "configuration.md").read_text().split()
        rng = np.random.default_rng(SEED)
        count = 40 if options.quick else 200
        starts = zip(rng.integers(2000, size=count), rng.integers(1, 150, count), strict=True)
        texts = [" ".join(words[first : first + length]) for first, length in starts] + ODD
        expected = minilm.expected(repository, texts)
        with slacktide(repository, everywhere=True) as serving:
            alone = [_ask(serving, text) for text in texts]
            with ThreadPoolExecutor(16) as clients:
                together = list(clients.map(lambda text: _ask(serving, text), texts))
        for name, vectors in (("alone", alone), ("sixteen clients", together)):
            difference = float(np.abs(np.array(vectors) - expected).max())
            goal = at_most(1e-5)
            result.figures.append(Figure(f"largest difference, {name}", difference, "", goal))
        tokenizer = repository / "minilm" / "tokenizer.json"
        by_length = {n: [" ".join(words[i : i + n]) for i in range(0, 1000, 5)] for n in (20, 200)}
        result.figures += asyncio.run(_times(tokenizer, by_length))
    return result


def _ask(serving: Serving, text: str) -> Any:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(serving.url("minilm"), body, timeout=60) as answer:
        return json.load(answer)["outputs"][0]["data"]


async def _times(path: Path, by_length: dict[int, list[str]]) -> list[Figure]:
    from tokenizers import Tokenizer

    package = Tokenizer.from_str(path.read_text())
    package.no_padding()
    roles = [(name, "<i8") for name in minilm.INPUTS]
    process = TokenizerProcess(
        Tokenizing(path, roles, minilm.LONGEST, 0, 1, 0, 0, pads_left=False, pairs=False)
    )
    await process.start()
    figures = []
    for words, texts in by_length.items():
        direct, beside = [], []
        for text in texts:
            begin = perf_counter()
            package.encode_batch_fast([text])
            direct.append(perf_counter() - begin)
            beside.append(await _wait(process, "client", text))
        figures.append(Figure(f"{words} words, tokenizers", 1e6 * median(direct), "µs"))
        figures.append(Figure(f"{words} words, through the process", 1e6 * median(beside), "µs"))
    short, long = by_length[20], ("tide and time " * 5000)[: 64 << 10]
    busy = True

    async def hostile(client: str) -> None:
        while busy:
            await _wait(process, client, long)

    alone = [await _wait(process, "canary", text) for text in short]
    attack = [asyncio.ensure_future(hostile(f"h{i // 8}")) for i in range(32)]
    beside = [await _wait(process, "canary", text) for text in short[:60]]
    busy = False
    await asyncio.gather(*attack)
    process.close()
    assert process._task is not None
    await asyncio.wait([process._task])
    for name, waits in (("alone", alone), ("beside 4 clients of 64 KiB", beside)):
        figures.append(Figure(f"wait of 20 words {name}, p50", 1e3 * median(waits), "ms"))
        worst = quantiles(waits, n=100)[98]
        figures.append(Figure(f"wait of 20 words {name}, p99", 1e3 * worst, "ms"))
    return figures


async def _wait(process: TokenizerProcess, client: str, text: str) -> float:
    data = text.encode()
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    begin = perf_counter()
    process.encode(client, [len(data).to_bytes(4, "little") + data], done.set_result)
    await done
    return perf_counter() - begin
