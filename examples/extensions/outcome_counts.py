from collections import Counter

from slacktide.observability import AnsweredRequest


class OutcomeCounts:
    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def answered(self, request: AnsweredRequest) -> None:
        self.counts[request.model, request.outcome.kind.value] += 1
