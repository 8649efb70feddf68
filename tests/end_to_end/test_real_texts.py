"""A real encoder behind its tokenizer gives the vectors of Transformers and ONNX Runtime."""

from __future__ import annotations

import pytest
from bench.measurement import Options

from bench import texts


@pytest.mark.network
@pytest.mark.timeout(900)
def test_vectors_are_those_of_transformers() -> None:
    result = texts.run(Options(quick=True))
    assert [figure.name for figure in result.figures[:2]] == [
        "largest difference, alone",
        "largest difference, sixteen clients",
    ]
    assert result.missed == []
