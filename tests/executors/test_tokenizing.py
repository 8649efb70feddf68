"""Tokenizers run in a process of their own; what it makes is what its package makes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import tokenizers.models
import tokenizers.pre_tokenizers
import tokenizers.trainers
from tests.stand_ins.tokenizer_files import padding, tokenizer_file, truncation

from slacktide.executors import tokenizer_process, tokenizing
from slacktide.executors.tokenizer_file import tokenizer_facts
from slacktide.executors.tokenizer_process import MISSING, Encoder
from slacktide.executors.tokenizing import (
    TokenizerProcess,
    Tokenizing,
    TokenizingError,
    Tokens,
    UnwantedTextsError,
)

WORDS = ("[pad]", "[cls]", "[unk]", "low", "high", "tide")
IDS = ("input_ids", "<i8")
MASK = ("attention_mask", "<i8")
TYPES = ("token_type_ids", "<i4")


def stated(path: Path, *roles: tuple[str, str], **over: Any) -> Tokenizing:
    fields: dict[str, Any] = {
        "max_length": None,
        "length": 0,
        "multiple": 1,
        "pad_id": 0,
        "pad_type_id": 0,
        "pads_left": False,
        "pairs": False,
    }
    return Tokenizing(path, roles or (IDS, MASK), **{**fields, **over})


def part(*texts: str | bytes) -> bytes:
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in raw)


def encode(spec: Tokenizing, *requests: Sequence[bytes]) -> list[Any]:
    """What a process makes of these requests, each in parts: a table for each role, or an error."""

    async def run() -> list[Any]:
        process = TokenizerProcess(spec)
        try:
            await process.start()
            return list(await asyncio.gather(*(ask(process, parts) for parts in requests)))
        finally:
            await end(process)

    return [tables(spec, result) for result in asyncio.run(run())]


async def end(process: TokenizerProcess) -> None:
    process.close()
    assert process._task is not None
    await asyncio.wait([process._task])


async def ask(process: TokenizerProcess, parts: Sequence[bytes], client: str = "one") -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    process.encode(client, parts, done.set_result)
    return await done


def tables(spec: Tokenizing, result: Tokens | TokenizingError) -> Any:
    if isinstance(result, TokenizingError):
        return str(result)
    dtypes = [np.dtype(dtype) for _, dtype in spec.roles]
    rows = len(result.data) // (result.length * sum(dtype.itemsize for dtype in dtypes))
    tables_read, at = [], 0
    for dtype in dtypes:
        end = at + rows * result.length * dtype.itemsize
        tables_read.append(np.frombuffer(result.data[at:end], dtype).reshape(rows, -1).tolist())
        at = end
    return tables_read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file(WORDS))
    return tmp_path / "tokenizer.json"


def test_texts_become_ids_and_a_mask_of_the_length_of_the_longest(path: Path) -> None:
    encoded = encode(stated(path), [part("Low tide", "high high low wave")], [part("")])
    assert encoded == [
        [[[1, 3, 5, 0, 0], [1, 4, 4, 3, 2]], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]],
        [[[1]], [[1]]],
    ]


def test_parts_of_one_request_are_one_table(path: Path) -> None:
    parts = [part("low"), part("tide tide", "high"), part("low")]
    ((ids, mask),) = encode(stated(path), parts)
    assert ids == [[1, 3, 0], [1, 5, 5], [1, 4, 0], [1, 3, 0]]
    assert mask == [[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]]


def test_lengths_are_cut_padded_and_rounded_as_stated(path: Path) -> None:
    assert encode(stated(path, IDS, max_length=2), [part("low tide high")]) == [[[[1, 3]]]]
    left = stated(path, IDS, MASK, length=4, pads_left=True)
    assert encode(left, [part("low")]) == [[[[0, 0, 1, 3]], [[0, 0, 1, 1]]]]
    assert encode(stated(path, IDS, multiple=4, pad_id=2), [part("low")]) == [[[[1, 3, 2, 2]]]]


@pytest.mark.parametrize(("kind", "trainer"), [("BPE", "Bpe"), ("Unigram", "Unigram")])
def test_trained_tokenizers_give_the_ids_of_their_package(
    kind: str, trainer: str, path: Path
) -> None:
    trained = tokenizers.Tokenizer(getattr(tokenizers.models, kind)())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    train = getattr(tokenizers.trainers, f"{trainer}Trainer")
    lines = Path(tokenizing.__file__).read_text().splitlines()
    trained.train_from_iterator(
        lines, train(vocab_size=300, special_tokens=["<pad>"], show_progress=False)
    )
    trained.save(str(path))
    facts = tokenizer_facts(path.read_bytes())
    assert (facts.largest_id, facts.pad_id) == (trained.get_vocab_size() - 1, 0)
    texts = [line for line in lines[:40] if line.strip()]
    ((ids, mask),) = encode(stated(path), [part(*texts)])
    own = [trained.encode(text).ids for text in texts]
    assert [row[: sum(ones)] for row, ones in zip(ids, mask, strict=True)] == own


def test_pairs_have_types(path: Path) -> None:
    pairs = stated(path, IDS, TYPES, pairs=True, pad_type_id=7)
    ((ids, types),) = encode(pairs, [part("low", "tide", "high", "")])
    assert ids == [[1, 3, 1, 5], [1, 4, 1, 0]]
    assert types == [[0, 0, 0, 1], [0, 0, 0, 7]]


def test_texts_that_cannot_be_encoded_name_their_element(path: Path, tmp_path: Path) -> None:
    parts = [part("low", "tide"), part("high", b"\xff"), part("low")]
    assert encode(stated(path), parts) == ["expected UTF-8, element 3 is not"]
    bare = tmp_path / "bare.json"
    bare.write_bytes(tokenizer_file(WORDS, post_processor=None))
    assert encode(stated(bare), [part("low", " ")]) == [
        "expected a text with tokens, element 1 has none"
    ]
    (error,) = encode(stated(path, IDS, pad_id=None), [part("low", "low tide")])
    assert error.startswith("expected texts of 3 tokens, since the tokenizer has no padding token")


def test_a_file_that_is_no_tokenizer_and_a_missing_package_are_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(tokenizer_file(WORDS, model={"type": "Nonsense", "vocab": {}}))
    with pytest.raises(TokenizingError, match="the tokenizer cannot be opened: "):
        encode(stated(path), [part("low")])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'slacktide\[text\]'") as error:
        Encoder({})
    assert str(error.value) == MISSING


def test_texts_that_the_package_refuses_fail_alone_and_are_named(tmp_path: Path) -> None:
    """A file without a token for unknown words, and pairs of which only the first may be cut."""
    words = ("a", *WORDS)
    vocab = {word: number for number, word in enumerate(words)}
    closed = tmp_path / "closed.json"
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "<none>"}
    closed.write_bytes(tokenizer_file(WORDS, model=model))
    first = tmp_path / "first.json"
    cut = {**truncation(4), "strategy": "OnlyFirst"}
    first.write_bytes(tokenizer_file(WORDS, truncation=cut))

    async def run(spec: Tokenizing, *texts: str) -> tuple[Any, bool]:
        process = TokenizerProcess(spec)
        await process.start()
        before = process.pid
        result = await ask(process, [part(*texts)])
        alive = process.pid == before
        await end(process)
        return result, alive

    pairs = stated(first, IDS, max_length=4, pairs=True)
    cases = ((stated(closed), ("wave",)), (pairs, ("low", "tide " * 9)))
    for spec, texts in cases:
        error, alive = asyncio.run(run(spec, *texts))
        assert alive
        assert error.of_client
        assert str(error).startswith(f"elements 0 to {len(texts) - 1} have no tokens: ")


def test_short_texts_beside_a_long_one_do_not_fill_the_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_process, "MOST_BYTES", 4096)
    encoder = Encoder(asdict(stated(path, IDS)))
    rows = encoder.encode([b"low " * 31, *[b""] * 15], 0)
    assert len(encoder.tensors(rows)) == 8 + 4096
    with pytest.raises(ValueError, match="of at most 4096 bytes of ids, got 17 rows of 32 tokens"):
        encoder.tensors([*rows, rows[-1]])


def test_texts_that_nobody_waits_for_are_not_tokenized(path: Path) -> None:
    """Neither whole requests, nor the later parts of one, and the others are unharmed."""
    spec = stated(path)

    async def run() -> list[Any]:
        process = TokenizerProcess(spec)
        await process.start()
        done: list[Any] = []
        wanted = iter((True, False))
        long = part("low " * 5_000)
        process.encode("one", [long] * 3, done.append, lambda: next(wanted))
        process.encode("one", [part("high")], done.append, lambda: False)
        done.append(await ask(process, [part("tide")]))
        done.append(await ask(process, [long, part("tide")]))
        await end(process)
        return done

    short, long, *others = asyncio.run(run())
    assert isinstance(short, UnwantedTextsError)
    assert isinstance(long, UnwantedTextsError)
    assert [result.length for result in others] == [2, 5_001]


def test_a_long_request_waits_for_others_between_its_parts(path: Path) -> None:
    """A short text that comes after a long request is answered before it."""
    long = part("low " * 12_000)

    async def run() -> list[str]:
        process = TokenizerProcess(stated(path))
        await process.start()
        order: list[str] = []

        async def asked(name: str, parts: Sequence[bytes]) -> None:
            await ask(process, parts, name)
            order.append(name)

        await asyncio.gather(asked("hostile", [long] * 20), asked("other", [part("tide")]))
        await end(process)
        return order

    assert asyncio.run(run()) == ["other", "hostile"]


def test_a_process_that_dies_fails_the_request_at_which_it_stood_alone(path: Path) -> None:
    spec = stated(path)

    async def run() -> list[Any]:
        process = TokenizerProcess(spec)
        await process.start()
        first = process.pid
        os.kill(first, signal.SIGSTOP)
        waiting = [asyncio.ensure_future(ask(process, [part("low")])) for _ in range(3)]
        await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        results = await asyncio.gather(*waiting)
        assert process.pid not in (0, first)
        await end(process)
        return results

    failed, *others = [tables(spec, result) for result in asyncio.run(run())]
    assert failed == "the tokenizer ended at one of these"
    assert others == [[[[1, 3]], [[1, 1]]]] * 2


def test_a_process_that_hangs_is_replaced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "PATIENCE_S", 0.3)
    spec = stated(path)

    async def run() -> list[Any]:
        process = TokenizerProcess(spec)
        await process.start()
        os.kill(process.pid, signal.SIGSTOP)
        results = [await ask(process, [part("low")]), await ask(process, [part("low")])]
        await end(process)
        return results

    failed, answered = [tables(spec, result) for result in asyncio.run(run())]
    assert failed == "the tokenizer ended at one of these"
    assert answered == [[[1, 3]], [[1, 1]]]


def test_many_texts_at_once_are_all_answered(path: Path) -> None:
    requests = [[part("low " * (number % 7))] for number in range(3000)]
    encoded = encode(stated(path, IDS), *requests)
    assert all(encoded[number] == [[[1, *[3] * (number % 7)]]] for number in range(3000))


def test_a_process_that_cannot_start_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "_COMMAND", ("/nowhere",))
    with pytest.raises(TokenizingError, match="its process cannot start: No such file"):
        encode(stated(path), [part("low")])
    monkeypatch.setattr(tokenizing, "_COMMAND", (sys.executable, "-c", "pass"))
    with pytest.raises(TokenizingError, match="its process ends or hangs when it starts"):
        encode(stated(path), [part("low")])


def test_requests_are_refused_when_it_closes(path: Path) -> None:
    async def run() -> Any:
        process = TokenizerProcess(stated(path))
        await process.start()
        waiting = asyncio.ensure_future(ask(process, [part("low " * 10_000)]))
        await asyncio.sleep(0)
        await end(process)
        return await waiting

    assert str(asyncio.run(run())) == "the model was unloaded"


def test_a_file_states_its_largest_id_length_and_padding() -> None:
    facts = tokenizer_facts(tokenizer_file(WORDS))
    assert (facts.largest_id, facts.max_length, facts.pad_id, facts.multiple) == (5, None, None, 1)
    sections = {"padding": padding(pad_id=3, direction="Left", pad_to_multiple_of=8)}
    facts = tokenizer_facts(tokenizer_file(WORDS, truncation=truncation(64), **sections))
    assert (facts.max_length, facts.pad_id, facts.pads_left, facts.multiple) == (64, 3, True, 8)
    assert tokenizer_facts(tokenizer_file(("[PAD]", *WORDS[1:]))).pad_id == 0
    unigram = {"type": "Unigram", "vocab": [["a", -1.0]] * 9, "unk_id": 0}
    assert tokenizer_facts(tokenizer_file(WORDS, model=unigram)).largest_id == 8


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"model": {"vocab": {}}}', b'{"model": {"vocab": 3}}', b"\xff"]
)
def test_other_files_are_no_tokenizers(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected a tokenizer\.json"):
        tokenizer_facts(content)
