"""One sentence for each way a request ends without a result; what the client reads."""

from __future__ import annotations

from collections.abc import Mapping

from slacktide.domain import Outcome, Reason

_SENTENCES: Mapping[Reason, str] = {
    Reason.AFTER_DEADLINE: "the result came after the deadline and was discarded as asked",
    Reason.SHORTER_THAN_ALONE: "the deadline is shorter than the model needs for this request",
    Reason.EXPIRED: "the deadline has passed",
    Reason.HOPELESS: "the deadline could no longer be met",
    Reason.CROWDED_OUT: "the work ahead took longer than expected and left no time for it",
    Reason.BEHIND_OVERRUN: "the batch ahead took longer than planned",
    Reason.BEHIND_WORK: "the deadline cannot be met behind the work that is waiting",
    Reason.QUEUE_FULL: "the queue is full",
    Reason.MEMORY_LIMIT: "the memory for requests in flight is used up",
    Reason.CLIENT_LIMIT: "this client has too much in flight",
    Reason.CRASHED_BEFORE: "the same input has just crashed the model, twice",
    Reason.CONNECTION_BLOCKED: "several inputs from this connection have crashed the model",
    Reason.DRAINING: "the model is being unloaded",
    Reason.UNAVAILABLE: "the model is unavailable",
    Reason.CRASHED: "the model crashed on this request, twice",
    Reason.RUNTIME_ERROR: "the model failed on this request",
}


def message_for(outcome: Outcome, model: str) -> str:
    """Why `model` gave no result."""
    sentence = _SENTENCES.get(outcome.reason)
    detail = outcome.detail
    if sentence is None:
        return detail or f"model {model!r}: {outcome.reason.label}"
    return f"model {model!r}: {sentence}" + (f" ({detail})" if detail else "")
