"""`Sessions`: the clients that stream frames: what each wants, has shown, and is told to send.

A session is a client of its own to planners and schedulers (`Request.client`), whatever address it
comes from; limits stay with addresses. What it states is believed within bounds and only of itself;
what the server has measured of it counts before what it says. Planners are told of it
(`planning/sessions.py`), and what they decide comes back as `Plan.inputs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from slacktide.domain import Outcome, OutcomeKind, Plan, Reason
from slacktide.domain.tensors import image_input
from slacktide.models.versions import Catalog
from slacktide.planning import SessionEvent
from slacktide.planning.sessions import SessionClosed, SessionMeasured, SessionOpened
from slacktide.planning.variants import Family
from slacktide.planning.variants.learnt_family import FOR_BANDWIDTH, FOR_CAPACITY
from slacktide.wire.calls import SessionTerms, SizeAdvice
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.link_estimate import FALL, PACKET, BytesPerPixel, LinkEstimate

MOST_JOINS: Final = 1_000
"""Hellos of one address in a second; of all together twice as many."""
MEASURED_S: Final = 0.1
"""Planners hear of a session at most this often, but of a fall at once."""
ADVISED_AT_ONCE: Final = 100
"""Sessions that are told of a change in one turn of the loop."""
OPENED: Final = "client_sessions_opened_total"
REFUSED: Final = "client_sessions_refused_total"
ON_TIME: Final = "frames_on_time_total"
MISSED: Final = "frames_missed_total"
OTHER_SIZE: Final = "frames_of_other_size_total"
FALLS: Final = "link_falls_total"
COUNTS: Final = (OPENED, REFUSED, ON_TIME, MISSED, OTHER_SIZE, FALLS)
"""Metrics that count."""
SLOWEST: Final = 1.0
FASTEST: Final = 1e12
"""Bytes per second of a link that a client may state, at least and at most: beyond them only
arithmetic goes wrong."""
LEAST_RATE: Final = 1e-3
"""Frames per second of the slowest camera, likewise."""
IDLE_S: Final = 2.0
"""A session that has sent no frame for so long is planned for at the rate that this allows."""
UNPLANNED_S: Final = (5.0, 15.0)
"""A session has no part in plans while it has sent no frame for so long: at least, and at most for
one whose frames come seldom."""
UNPLANNED_GAPS: Final = 3.0
"""Gaps between frames after which such a session has stopped."""
SHORTEST_S: Final = 1e-4
"""Between frames, as their rate is reckoned."""
_KEPT: Final = 0.9
"""Of what was known of rate, overhead and losses, with each frame."""
_HOPELESS: Final = 0.3
"""Of a session that loses a larger share of its frames, those that came too late teach nothing of
the links of others: its own is down, its clock is wrong, or what it says is."""


class StreamSession:
    """The `FrameSession` of a server."""

    __slots__ = (
        "_advice", "_ends", "_family", "_gap", "_heard_at", "_losing", "_of", "_opened_at",
        "_overhead", "_pixels", "_told_at", "address", "advise", "answered_frames", "frames", "id",
        "is_planned", "link", "missed", "rtt", "sizes", "terms", "variant",
    )  # fmt: skip

    def __init__(
        self,
        of: Sessions,
        id: str,
        terms: SessionTerms,
        address: str,
        advise: Callable[[SizeAdvice], None],
    ) -> None:
        self._of = of
        self.id = id
        self.terms = terms
        self.address = address
        self.advise = advise
        self.rtt = 0.0
        self.link, self.sizes = LinkEstimate(), BytesPerPixel()
        self.report_rate(terms.bytes_per_s)
        self.frames = self.answered_frames = self.missed = 0
        self.variant: str | None = None
        """Of its model, that it is mapped to; empty: to none; None: nothing is decided yet."""
        self._family: Family | None = None
        self._advice: SizeAdvice | None = None
        """What it was told last, but for its bandwidth."""
        self._gap = 1.0 / max(terms.rate, LEAST_RATE)
        """Seconds between frames, smoothed."""
        self._heard_at, self._opened_at = -inf, of.clock()
        self.is_planned = True
        """Whether planners know of it."""
        self._pixels = 0
        """Of the last frame that said so."""
        self._told_at = -inf
        self._overhead = self._losing = 0.0
        """The second: the share of frames that it loses, smoothed."""
        self._ends = (0, 0, 0)
        """Frames to learn from: all, lost on lanes, lost on its link."""
        self.decide(None)

    def silence(self, now: float) -> float:
        """Seconds since its last frame, or its first hello."""
        return now - max(self._heard_at, self._opened_at)

    def rate(self, now: float) -> float:
        """Frames per second, as seen: what it states decays with frames, and with silence."""
        silence = self.silence(now)
        return 1.0 / (self._gap if silence < IDLE_S else max(self._gap, silence))

    @property
    def bandwidth(self) -> float:
        """Bytes per second, as measured; 0: not known."""
        return self.link.bytes_per_s(now=self._of.clock()) if self.link.measured else 0.0

    @property
    def advice(self) -> SizeAdvice | None:
        advice = self._advice
        if advice is None:
            return None
        return SizeAdvice(advice.size, advice.variant, advice.mapped, self.bandwidth)

    def decide(self, variant: str | None) -> bool:
        """It is mapped to that variant of its model as it is loaded now; None: as before. Whether
        that is something else than it was told."""
        version = self._of.catalog.find(self.terms.model, self.terms.version)
        family, before = self._family, self._advice
        if version is not None:
            family = version.front.family
        if before is not None and family is self._family and variant in (None, self.variant):
            return False  # as it is with most of them in most plans
        self._family = family
        if variant is not None:
            self.variant = variant
        if family is None or family.planner == "none":
            self._advice = SizeAdvice()
        elif self.variant is not None:
            sizes = [member.size for member in family.variants if member.name == self.variant]
            size = sizes[0] if sizes else family.variants[0].size
            self._advice = SizeAdvice(size, self.variant, bool(self.variant))
        return self._advice is not None and self._advice != before

    def welcome(self) -> tuple[str, Sequence[tuple[str, int, float]]]:
        version = self._of.catalog.find(self.terms.model, self.terms.version)
        takes = None if version is None else version.front.interface
        index = None if takes is None else image_input(takes)
        name = "" if takes is None or index is None else takes.inputs[index].name
        variants = () if self._family is None else self._family.variants
        return name, [(member.name, member.size, member.accuracy) for member in variants]

    def change(self, terms: SessionTerms) -> None:
        self._of.change(self, terms)

    def report_rate(self, bytes_per_s: float) -> None:
        if 0.0 < bytes_per_s < inf:
            self.link.guess = min(max(bytes_per_s, SLOWEST), FASTEST)

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        return self.link.transfer_time(nbytes, now=now)

    def arrived(self, nbytes: int, seconds: float, size: tuple[int, int], *, now: float) -> None:
        self.frames += 1
        if not self.is_planned:
            self._of.enter_plan(self)
        if self._heard_at > -inf:
            self._gap += (1.0 - _KEPT) * (max(now - self._heard_at, SHORTEST_S) - self._gap)
        self._heard_at = now
        pixels = size[0] * size[1]
        if pixels:
            self._pixels = pixels
            self.sizes.observe(nbytes, pixels)
            advice = self._advice
            if advice is not None and advice.size and advice.size not in size:
                self._of.counts[OTHER_SIZE] += 1
        self._measured(now, self.link.observe(nbytes, seconds, now=now))

    def stalled(self, received: int, length: int, seconds: float, *, now: float) -> None:
        late = seconds * FALL > self.link.transfer_time(length, now=now)
        if late and self.link.silent(max(received, PACKET + 1), seconds, now=now):
            self._measured(now, True)

    def idle(self, now: float) -> None:
        silence = self.silence(now)
        least, most = UNPLANNED_S
        if silence >= (min(max(least, UNPLANNED_GAPS * self._gap), most) if self.frames else least):
            self._of.leave_plan(self)
        # One that is mapped to no variant takes nothing from others, and is not to send.
        elif silence >= IDLE_S and self._advice is not None and self._advice.mapped:
            self._measured(now, False)

    def answered(self, outcome: Outcome | None, now: float) -> None:
        on_time = outcome is not None and outcome.kind is OutcomeKind.SERVED
        self.answered_frames += 1
        self.missed += not on_time
        self._of.counts[ON_TIME if on_time else MISSED] += 1
        self._losing += (1.0 - _KEPT) * ((not on_time) - self._losing)
        if outcome is not None:
            link = outcome.reason in FOR_BANDWIDTH
            if not (link and self._losing > _HOPELESS):
                ended, lanes, links = self._ends
                self._ends = ended + 1, lanes + (outcome.reason in FOR_CAPACITY), links + link
        if outcome is not None and on_time:
            self._overhead += (1.0 - _KEPT) * (max(0.0, now - outcome.at) - self._overhead)

    def close(self) -> None:
        self._of.close(self)

    def describe(self) -> dict[str, Any]:
        """Of the page of sessions."""
        terms, advice = self.terms, self._advice
        return {
            "id": self.id,
            "address": self.address,
            "name": terms.name,
            "model": terms.model,
            "rate": terms.rate,
            "rate_seen": self.rate(self._of.clock()),
            "slo_ms": terms.slo * 1e3,
            "bytes_per_s": self.bandwidth,
            "rtt_ms": self.rtt * 1e3,
            "variant": self.variant,
            "size": 0 if advice is None else advice.size,
            "mapped": advice is not None and advice.mapped,
            "frames": self.frames,
            "answered": self.answered_frames,
            "missed": self.missed,
        }

    def _measured(self, now: float, fell: bool) -> None:
        """Tell planners what is known of it, unless they heard of it just now."""
        if not fell and now - self._told_at < MEASURED_S:
            return
        self._told_at = now
        self._of.counts[FALLS] += fell
        pixels, sizes = self._pixels, self.sizes
        self._of.post(
            SessionMeasured(
                self.id,
                self.link.bytes_per_s(now=now),
                self.rtt,
                sizes.of(pixels) / pixels if pixels else 0.0,
                float(pixels),
                self.rate(now),
                self._overhead,
                fell,
                *self._ends,
            )
        )


class Sessions:
    """All of a server, by id. Belongs to its loop."""

    def __init__(
        self,
        catalog: Catalog,
        post: Callable[[SessionEvent], None],
        clock: Callable[[], float],
        later: Callable[[Callable[[], None]], object],
        most: int,
    ) -> None:
        """`later` calls in the next turn of the loop. `most`: sessions at a time; one address may
        have half of them."""
        self.catalog = catalog
        self.post = post
        self.clock = clock
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        """Since the start."""
        self._later = later
        self._most = most
        self._sessions: dict[str, StreamSession] = {}
        self._by_address: Counter[str] = Counter()
        self._hellos: Counter[str] = Counter()
        """Of the second since `_counted_at`, by address."""
        self._counted_at = -inf
        self._untold: dict[StreamSession, None] = {}
        """Sessions that are still to hear that what they are told has changed."""

    def __len__(self) -> int:
        return len(self._sessions)

    def sums(self) -> Mapping[str, int]:
        """Metrics over all of them."""
        advices = [session._advice for session in self._sessions.values()]
        mapped = sum(advice is not None and advice.mapped for advice in advices)
        return {"client_sessions": len(self), "client_sessions_mapped": mapped, **self.counts}

    def describe(self) -> list[dict[str, Any]]:
        """All of them, for people."""
        return [session.describe() for session in self._sessions.values()]

    def open(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> StreamSession:
        """Raises WireError where there are too many."""
        self._count(address)
        if len(self) >= self._most or self._by_address[address] >= max(1, self._most // 2):
            self.counts[REFUSED] += 1
            raise WireError(Reason.CLIENT_LIMIT, "there are too many sessions at a time")
        self.counts[OPENED] += 1
        session = StreamSession(self, f"s:{self.counts[OPENED]}", terms, address, advise)
        self._sessions[session.id] = session
        self._by_address[address] += 1
        self.enter_plan(session)
        return session

    def change(self, session: StreamSession, terms: SessionTerms) -> None:
        """Terms that are as before only show that the client is there. Raises WireError where they
        come too often, or would change the model."""
        self._count(session.address)
        if terms == session.terms:
            return
        if (terms.model, terms.version) != (session.terms.model, session.terms.version):
            raise BadField("model", f"{session.terms.model!r} as before", terms.model)
        session.terms = terms
        session.report_rate(terms.bytes_per_s)
        if session.is_planned:
            self.enter_plan(session)

    def enter_plan(self, session: StreamSession) -> None:
        """Tell planners of a session, or of its terms where these have changed."""
        session.is_planned = True
        terms = session.terms
        model, slo = terms.model, terms.slo
        if (version := self.catalog.find(model, terms.version)) is not None:
            # Of a pipeline it is its source's variants that are planned, in what that has of it.
            model, slo = version.front.name, max(0.1 * slo, slo - version.rest_s)
        self.post(SessionOpened(session.id, model, terms.rate, slo, terms.floor, terms.weight))

    def leave_plan(self, session: StreamSession) -> None:
        """Have planners forget a session, which keeps what it was told. Safe to repeat."""
        if session.is_planned:
            session.is_planned = False
            self.post(SessionClosed(session.id))

    def close(self, session: StreamSession) -> None:
        """Safe to repeat."""
        if self._sessions.pop(session.id, None) is None:
            return
        self._untold.pop(session, None)
        self._by_address[session.address] -= 1
        if not self._by_address[session.address]:
            del self._by_address[session.address]
        self.leave_plan(session)

    def planned(self, plan: Plan) -> None:
        """A plan has been put in force: tell the sessions for which it changes something."""
        variants = {input_size.client: input_size.variant for input_size in plan.inputs}
        scheduled = bool(self._untold)
        for session in self._sessions.values():
            if session.decide(variants.get(session.id)):
                self._untold[session] = None
        if self._untold and not scheduled:
            self._later(self._tell)

    def _tell(self) -> None:
        """As many as one turn of the loop may take."""
        for session in list(self._untold)[:ADVISED_AT_ONCE]:
            del self._untold[session]
            advice = session.advice
            if advice is not None:
                session.advise(advice)
        if self._untold:
            self._later(self._tell)

    def _count(self, address: str) -> None:
        """A hello more. Raises WireError where there are too many."""
        now, hellos = self.clock(), self._hellos
        if now - self._counted_at >= 1.0:
            self._counted_at = now
            hellos.clear()
        if hellos[address] >= MOST_JOINS or hellos.total() >= 2 * MOST_JOINS:
            self.counts[REFUSED] += 1
            raise WireError(Reason.CLIENT_LIMIT, "too many sessions begin or change at a time")
        hellos[address] += 1
