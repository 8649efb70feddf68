"""`TokenizerFacts`: the ids and lengths that a tokenizer.json states, read without the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

MOST_TOKENIZER_BYTES = 64 << 20
_PADDING_TOKENS = ("[PAD]", "<pad>", "<|pad|>")


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """Facts about a tokenizer."""

    largest_id: int
    max_length: int | None = None
    """Number of tokens to which it truncates texts; None: it does not truncate."""
    pad_id: int | None = None
    """Id of the padding token; None if it has none."""
    pad_type_id: int = 0
    pads_left: bool = False
    multiple: int = 1
    """Lengths are padded to multiples of this."""


def tokenizer_facts(content: bytes) -> TokenizerFacts:
    """Read the content of a tokenizer.json. Raises ValueError, which says what is wrong with it."""
    try:
        document = orjson.loads(content)
        model, added = document["model"], document.get("added_tokens") or []
        tokens = {token["content"]: int(token["id"]) for token in added}
        ids = [*_vocabulary(model["vocab"]), *tokens.values()]
        truncation, padding = document.get("truncation") or {}, document.get("padding") or {}
        named = (tokens[name] for name in _PADDING_TOKENS if name in tokens)
        return TokenizerFacts(
            max(ids),
            int(truncation["max_length"]) if truncation else None,
            int(padding["pad_id"]) if padding else next(named, None),
            int(padding.get("pad_type_id") or 0),
            padding.get("direction") == "Left",
            max(1, int(padding.get("pad_to_multiple_of") or 1)),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError("expected a tokenizer.json of Hugging Face's tokenizers") from None


def _vocabulary(vocab: Any) -> list[int]:
    """Ids of a model's own tokens: a mapping, or a list in their order (Unigram)."""
    return list(map(int, vocab.values())) if isinstance(vocab, dict) else list(range(len(vocab)))
