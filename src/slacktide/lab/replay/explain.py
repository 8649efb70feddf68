"""Explains decisions in sentences, a few lines each. Times are seconds since `begin`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from slacktide.domain import ExitPolicy, OutcomeKind, Reason, Request
from slacktide.lab.replay.decisions import (
    Decision,
    Ended,
    ExitsChanged,
    Finished,
    PlacesChanged,
    PricedBatch,
    Ran,
    Waited,
)

MEMBERS_SHOWN = 8

_WHY = {
    Reason.SHORTER_THAN_ALONE: "it had less time left than it needs when run alone",
    Reason.EXPIRED: "its deadline has passed",
    Reason.HOPELESS: "it could hardly be on time any more, even if it ran alone at once",
    Reason.BEHIND_WORK: "there was too much work ahead of it for it to be on time",
    Reason.CROWDED_OUT: "the work ahead of it took longer than planned and left it no time",
    Reason.QUEUE_FULL: "the queue was full",
    Reason.CRASHED_BEFORE: "the same input had just crashed its worker twice",
    Reason.CONNECTION_BLOCKED: "its connection had sent several inputs that crash its worker",
    Reason.UNMEASURED: "its shape was not measured yet, and its model guarantees the p99",
    Reason.UNAVAILABLE: "its model was not available",
    Reason.DRAINING: "its model was being unloaded",
    Reason.CLIENT_CANCELLED: "its client cancelled it",
    Reason.DISCONNECTED: "its client disconnected",
    Reason.NO_BODY: "its body never arrived",
    Reason.CRASHED: "its worker crashed twice while running it",
    Reason.RUNTIME_ERROR: "its model raised an error",
}


def concerns(decision: Decision, id: int) -> bool:
    """Return whether `decision` is about request `id`."""
    if isinstance(decision, Ran | Finished):
        return any(member.id == id for member in decision.batch.members)
    if isinstance(decision, Ended):
        return decision.request.id == id
    return False


def lines(decision: Decision, *, begin: float) -> Iterator[str]:
    """Yield the lines of `decision`. `begin`: time on the recording's clock that is shown as 0."""
    at = f"{decision.now - begin:10.6f} s  "
    pad = " " * len(at)
    if isinstance(decision, Ran):
        yield at + _ran(decision)
        yield from (pad + line for line in _reasons(decision))
    elif isinstance(decision, Waited):
        proposal = decision.proposal
        wait_s = (proposal.wait_until or 0.0) - decision.now
        yield (
            f"{at}lane {proposal.replica.lane} stays free for {_ms(wait_s)}: "
            f"{proposal.pool} has {proposal.pending} waiting and expects more"
        )
    elif isinstance(decision, Finished):
        yield (
            f"{at}batch {decision.batch.id} of {decision.batch.replica.pool} took "
            f"{_ms(decision.took)}; expected {_ms(decision.expected)}, p99 {_ms(decision.p99)}"
        )
    elif isinstance(decision, PlacesChanged):
        before, after = (", ".join(names) or "here" for names in (decision.before, decision.after))
        why = f": {decision.why}" if decision.why else ""
        yield f"{at}{decision.name} moves from {before} to {after}{why}"
    elif isinstance(decision, ExitsChanged):
        yield at + _exits_changed(decision)
        if decision.rows:
            yield pad + _exits_seen(decision)
    else:
        yield at + _ended(decision)


def _ran(ran: Ran) -> str:
    record, batch, lane = ran.proposal, ran.batch, ran.batch.replica.lane
    first = f"request {batch.members[0].id} alone"
    if record is None or record.chosen is None:
        why = "again, to learn its length" if batch.solo else "after a crash"
        if ran.unmeasured:
            why = "to learn the time of its shape"
        return f"batch {batch.id} on {lane}: {first}, {why}"
    chosen, head = record.chosen, f"batch {batch.id} of {record.pool} on {lane}"
    if ran.isolated:
        remainder = f"the rest of the proposed batch ({chosen.requests - 1}) waits"
        return f"{head}: {first}, to learn its length; {remainder}"
    return f"{head}: {chosen.requests} of {record.pending} waiting, {chosen.rows} rows"


def _reasons(ran: Ran) -> Iterator[str]:
    yield f"now, because of {', '.join(ran.because)}"
    record = ran.proposal
    if record is None or record.chosen is None:
        return
    yield (
        f"expected {_ms(record.chosen.expected)}, p99 {_ms(record.p99)}; "
        f"{record.chosen.on_time:.2f} requests expected on time; worth {record.chosen.worth:.3g}"
    )
    for member in record.members[:MEMBERS_SHOWN]:
        request = member.request
        tag = f" of {request.application}" if request.application else ""
        if member.budget is None:
            yield f"  request {request.id}{tag}: best effort"
        else:
            chance = f"P(on time) {member.on_time:.2f}"
            yield f"  request {request.id}{tag}: {_ms(member.budget)} left, {chance}"
    if len(record.members) > MEMBERS_SHOWN:
        yield f"  and {len(record.members) - MEMBERS_SHOWN} more"
    if record.alternatives:
        yield "alternatives by deadline: " + "; ".join(map(_alternative, record.alternatives))
    for rival in ran.rivals:
        assert rival.chosen is not None
        yield f"passed over {rival.pool}: {_alternative(rival.chosen)}"
    yield from record.words


def _exits_changed(changed: ExitsChanged) -> str:
    before, after, pool = changed.before, changed.after, changed.pool
    if after is None:
        return f"requests of {pool} no longer leave early"
    reason = f": {after.reason}" if after.reason else ""
    if before is None or after.ramps != before.ramps:
        were = "" if before is None else f" (were {_positions(before)})"
        return f"ramps of {pool} are now {_positions(after)}{were}{reason}; {_thresholds(after)}"
    if after.thresholds == before.thresholds:
        why = ""
    else:
        why = ", tuned on judged rows" if any(after.thresholds) else reason
    if after.applications != before.applications and after.applications is not None:
        why += (
            f"; applications that may leave: {', '.join(map(repr, after.applications)) or 'none'}"
        )
    return f"exits of {pool}: {_thresholds(after)}{why}"


def _positions(policy: ExitPolicy) -> str:
    return ", ".join(map(str, policy.ramps)) or "none"


def _thresholds(policy: ExitPolicy) -> str:
    pairs = zip(policy.ramps, policy.thresholds, strict=True)
    text = ", ".join(f"{threshold:.3g} at {ramp}" for ramp, threshold in pairs) or "none"
    judged = f"{policy.mode.value}, {policy.feedback:.0%} of batches judged"
    return f"thresholds {text}; {judged}"


def _exits_seen(changed: ExitsChanged) -> str:
    exits = [f"{rows} at {ramp}" for ramp, rows in sorted(changed.left.items())]
    wrong = sum(changed.differed.values())
    return (
        f"since the last change {changed.rows} rows; answered early: {', '.join(exits) or 'none'}; "
        f"{changed.judged} judged, {wrong} of them with an answer that differs from the model's"
    )


def _alternative(choice: PricedBatch) -> str:
    return (
        f"batch of {choice.requests} in {_ms(choice.expected)}, "
        f"{choice.on_time:.2f} expected on time, worth {choice.worth:.3g}"
    )


def _ended(ended: Ended) -> str:
    request, outcome = ended.request, ended.outcome
    kind = "request" if isinstance(request, Request) else "announced request"
    clauses = [f"{outcome.kind.value} {kind} {request.id} of {request.model}"]
    clauses.append(f"{outcome.reason.label}: {_WHY.get(outcome.reason, outcome.detail)}")
    if outcome.kind in (OutcomeKind.DROPPED, OutcomeKind.REJECTED):
        facts = []
        if outcome.budget_s is not None:
            facts.append(f"{_ms(outcome.budget_s)} left")
        if ended.alone is not None:
            facts.append(f"needs {_ms(ended.alone)} alone")
        if ended.free_in is not None and math.isfinite(ended.free_in):
            facts.append(f"a lane is free in {_ms(ended.free_in)}")
        clauses.append(", ".join([*facts, f"{ended.pending} waiting"]))
    return "; ".join(clauses)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
