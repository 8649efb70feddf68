"""Files of tokenizers, made of a list of words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from slacktide.lab.examples.sentences import VOCABULARY


def tokenizer_file(words: Sequence[str] = VOCABULARY, **stated: Any) -> bytes:
    """A tokenizer.json of whole words, each text after [cls]; `stated` replaces its parts."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": i, "content": words[i], "special": True, **special} for i in range(3)]
    first, pair = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    start = {"SpecialToken": {"id": "[cls]", "type_id": 0}}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, first],
            "pair": [start, first, start, pair],
            "special_tokens": {"[cls]": {"id": "[cls]", "ids": [1], "tokens": ["[cls]"]}},
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words)},
            "unk_token": "[unk]",
        },
        **stated,
    }
    return json.dumps(document).encode()


def truncation(length: int) -> dict[str, Any]:
    """The section `truncation` of a file."""
    return {"direction": "Right", "max_length": length, "strategy": "LongestFirst", "stride": 0}


def padding(**stated: Any) -> dict[str, Any]:
    """The section `padding` of a file."""
    usual = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None}
    return {**usual, "pad_id": 0, "pad_type_id": 0, "pad_token": "[pad]", **stated}
