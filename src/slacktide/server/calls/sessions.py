"""`Sessions`: clients that stream frames, with their terms, measurements and size advice.

To planners and schedulers each session is a client (`Request.client`), whatever its address; limits
apply to addresses. A client's statements count within bounds and for its own session only; what the
server measures takes precedence. Planners get session events (`planning/sessions.py`) and return
`Plan.inputs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from slacktide.domain import Outcome, OutcomeKind, Plan, Reason
from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.domain.tensors import image_input
from slacktide.models.versions import Catalog
from slacktide.planning import SessionEvent
from slacktide.planning.sessions import SessionClosed, SessionMeasured, SessionOpened
from slacktide.planning.variants import Family
from slacktide.planning.variants.frame_ends import MEMORY, FrameEnds
from slacktide.wire.calls import SessionTerms, SizeAdvice
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.link_estimate import FALL, PACKET, BytesPerPixel, LinkEstimate

MOST_JOINS: Final = 1_000
"""Maximum hellos per second of one address; all addresses together may send twice as many."""
REPORT_INTERVAL_S: Final = 0.1
"""Seconds between reports of a session to planners, except when its link gets slower."""
MOST_ADVISED: Final = 100
"""Maximum number of sessions that get new advice in one turn of the loop."""
OPENED: Final = "client_sessions_opened_total"
REFUSED: Final = "client_sessions_refused_total"
ON_TIME: Final = "frames_on_time_total"
MISSED: Final = "frames_missed_total"
OTHER_SIZE: Final = "frames_of_other_size_total"
FALLS: Final = "link_falls_total"
COUNTS: Final = (OPENED, REFUSED, ON_TIME, MISSED, OTHER_SIZE, FALLS)
"""Names of the counters."""
SLOWEST: Final = 1.0
FASTEST: Final = 1e12
"""Maximum bytes per second that a client may state; beyond it arithmetic overflows."""
LEAST_RATE: Final = 1e-3
"""Lower bound of the frames per second that a client may state."""
IDLE_S: Final = 2.0
"""Seconds without a frame after which a session is planned for at a lower rate."""
UNPLANNED_S: Final = (5.0, 15.0)
"""Minimum and maximum seconds without a frame after which a session leaves the plan."""
UNPLANNED_GAPS: Final = 3.0
"""Silence, in gaps between frames, after which a session leaves the plan; see `UNPLANNED_S`."""
SHORTEST_S: Final = 1e-4
"""Minimum gap between frames, in seconds, that the rate takes into account."""


class StreamSession:
    """The `FrameSession` of a server."""

    __slots__ = (
        "_advice",
        "_ends",
        "_family",
        "_gap",
        "_last_frame_at",
        "_opened_at",
        "_overhead",
        "_pixels",
        "_reported_at",
        "_sessions",
        "_side",
        "address",
        "advise",
        "answered_frames",
        "frames",
        "id",
        "is_planned",
        "link",
        "missed",
        "move",
        "rtt",
        "sizes",
        "terms",
        "variant",
    )  # fmt: skip

    def __init__(
        self,
        sessions: Sessions,
        id: str,
        terms: SessionTerms,
        address: str,
        advise: Callable[[SizeAdvice], None],
    ) -> None:
        self._sessions = sessions
        self.id = id
        self.terms = terms
        self.address = address
        self.advise = advise
        self.move: Callable[[str], None] = lambda address: None
        self.rtt = 0.0
        self.link, self.sizes = LinkEstimate(), BytesPerPixel()
        self.report_rate(terms.bytes_per_s)
        self.frames = self.answered_frames = self.missed = 0
        self.variant: str | None = None
        """The session's variant; empty: none can serve it; None: not decided yet."""
        self._family: Family | None = None
        self._advice: SizeAdvice | None = None
        """Last advice, without its bandwidth."""
        self._side = 0
        """Side in pixels of the frames for that variant."""
        self._gap = 1.0 / max(terms.rate, LEAST_RATE)
        """Seconds between frames, smoothed."""
        self._last_frame_at, self._opened_at = -inf, sessions.clock()
        self.is_planned = True
        """Whether planners know the session."""
        self._pixels = 0
        """Pixels of the last frame that stated a size."""
        self._reported_at = -inf
        self._overhead = 0.0
        """Smoothed seconds from outcome to answer."""
        self._ends = FrameEnds()
        self.decide(None)

    def silence(self, now: float) -> float:
        """Seconds since the last frame, or the first hello."""
        return now - max(self._last_frame_at, self._opened_at)

    def rate(self, now: float) -> float:
        """Measured frames per second. Frames and silence gradually replace the stated rate."""
        silence = self.silence(now)
        return 1.0 / (self._gap if silence < IDLE_S else max(self._gap, silence))

    @property
    def bandwidth(self) -> float:
        """Measured bytes per second; 0: not known."""
        return self.link.bytes_per_s(now=self._sessions.clock()) if self.link.measured else 0.0

    @property
    def advice(self) -> SizeAdvice | None:
        advice = self._advice
        if advice is None:
            return None
        return SizeAdvice(advice.size, advice.variant, advice.mapped, self.bandwidth)

    def decide(self, variant: str | None) -> bool:
        """Map the session to a variant of its model as loaded now; None keeps the variant. Returns
        whether its advice changed."""
        version = self._sessions.catalog.find(self.terms.model, self.terms.version)
        family, before = self._family, self._advice
        if version is not None:
            family = version.front.family
        if before is not None and family is self._family and variant in (None, self.variant):
            return False  # most sessions in most plans
        self._family = family
        if variant is not None:
            self.variant = variant
        if family is None or family.planner == "none":
            self._advice = SizeAdvice()
        elif self.variant is not None:
            sizes = [member.size for member in family.variants if member.name == self.variant]
            size = sizes[0] if sizes else family.variants[0].size
            self._advice = SizeAdvice(size, self.variant, bool(self.variant))
        if self._advice is not None:
            self._side = round(self._advice.size * (self.short_side or 1.0))
        return self._advice is not None and self._advice != before

    @property
    def keeps_shape(self) -> bool:
        image = self._image
        return image is not None and image.keeps_shape

    @property
    def short_side(self) -> float:
        image = self._image
        return 0.0 if image is None else image.short_side

    @property
    def _image(self) -> StatedPreprocessing | None:
        version = self._sessions.catalog.find(self.terms.model, self.terms.version)
        return None if version is None else version.front.definition.settings.preprocessing

    def welcome(self) -> tuple[str, Sequence[tuple[str, int, float]]]:
        version = self._sessions.catalog.find(self.terms.model, self.terms.version)
        takes = None if version is None else version.front.interface
        index = None if takes is None else image_input(takes)
        name = "" if takes is None or index is None else takes.inputs[index].name
        variants = () if self._family is None else self._family.variants
        return name, [(member.name, member.size, member.accuracy) for member in variants]

    def change(self, terms: SessionTerms) -> None:
        self._sessions.change(self, terms)

    def report_rate(self, bytes_per_s: float) -> None:
        if 0.0 < bytes_per_s < inf:
            self.link.guess = min(max(bytes_per_s, SLOWEST), FASTEST)

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        return self.link.transfer_time(nbytes, now=now)

    def arrived(self, nbytes: int, seconds: float, size: tuple[int, int], *, now: float) -> None:
        self.frames += 1
        if not self.is_planned:
            self._sessions.enter_plan(self)
        if self._last_frame_at > -inf:
            self._gap += (1.0 - MEMORY) * (max(now - self._last_frame_at, SHORTEST_S) - self._gap)
        self._last_frame_at = now
        pixels = size[0] * size[1]
        if pixels:
            self._pixels = pixels
            self.sizes.observe(nbytes, pixels)
            advice = self._advice
            if advice is not None and advice.size and self._side not in size:
                self._sessions.counts[OTHER_SIZE] += 1
        self._report(now, self.link.observe(nbytes, seconds, now=now))

    def stalled(self, received: int, length: int, seconds: float, *, now: float) -> None:
        late = seconds * FALL > self.link.transfer_time(length, now=now)
        if late and self.link.silent(max(received, PACKET + 1), seconds, now=now):
            self._report(now, True)

    def idle(self, now: float) -> None:
        silence = self.silence(now)
        least, most = UNPLANNED_S
        if silence >= (min(max(least, UNPLANNED_GAPS * self._gap), most) if self.frames else least):
            self._sessions.leave_plan(self)
        # A session mapped to no variant must not send, and takes nothing from others.
        elif silence >= IDLE_S and self._advice is not None and self._advice.mapped:
            self._report(now, False)

    def answered(self, outcome: Outcome | None, now: float) -> None:
        on_time = outcome is not None and outcome.kind is OutcomeKind.SERVED
        self.answered_frames += 1
        self.missed += not on_time
        self._sessions.counts[ON_TIME if on_time else MISSED] += 1
        self._ends.count(outcome, self.terms.slo)
        if outcome is not None and on_time:
            self._overhead += (1.0 - MEMORY) * (max(0.0, now - outcome.at) - self._overhead)

    def close(self) -> None:
        self._sessions.close(self)

    def describe(self) -> dict[str, Any]:
        """Return its row on the page of sessions."""
        terms, advice = self.terms, self._advice
        return {
            "id": self.id,
            "address": self.address,
            "name": terms.name,
            "model": terms.model,
            "rate": terms.rate,
            "rate_seen": self.rate(self._sessions.clock()),
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

    def _report(self, now: float, fell: bool) -> None:
        """Report measurements to planners, at most every `REPORT_INTERVAL_S` seconds unless the
        link `fell`."""
        if not fell and now - self._reported_at < REPORT_INTERVAL_S:
            return
        self._reported_at = now
        self._sessions.counts[FALLS] += fell
        pixels, sizes = self._pixels, self.sizes
        self._sessions.post(
            SessionMeasured(
                self.id,
                self.link.bytes_per_s(now=now),
                self.rtt,
                sizes.of(pixels) / pixels if pixels else 0.0,
                float(pixels),
                self.rate(now),
                self._overhead,
                fell,
                self._ends.ended,
                self._ends.lost_on_lanes,
                self._ends.lost_on_link,
            )
        )


class Sessions:
    """All sessions of a server, by id. Belongs to its loop."""

    def __init__(
        self,
        catalog: Catalog,
        post: Callable[[SessionEvent], None],
        clock: Callable[[], float],
        later: Callable[[Callable[[], None]], object],
        most: int,
    ) -> None:
        """`later` calls a function in the next turn of the loop. `most`: maximum number of open
        sessions; one address may have half of them."""
        self.catalog = catalog
        self.post = post
        self.clock = clock
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        """Counters since the start."""
        self._later = later
        self._most = most
        self._sessions: dict[str, StreamSession] = {}
        self._by_address: Counter[str] = Counter()
        self._hellos: Counter[str] = Counter()
        """Number of hellos in the second that began at `_counted_at`, by address."""
        self._counted_at = -inf
        self._unadvised: dict[StreamSession, None] = {}
        """Sessions that have yet to get their new advice."""

    def __len__(self) -> int:
        return len(self._sessions)

    def by_id(self) -> Mapping[str, StreamSession]:
        """Return the open sessions, longest open first."""
        return self._sessions

    def sums(self) -> Mapping[str, int]:
        """Return the metrics of all sessions."""
        advices = [session._advice for session in self._sessions.values()]
        mapped = sum(advice is not None and advice.mapped for advice in advices)
        return {"client_sessions": len(self), "client_sessions_mapped": mapped, **self.counts}

    def describe(self) -> list[dict[str, Any]]:
        """Return the rows of the page of sessions."""
        return [session.describe() for session in self._sessions.values()]

    def open(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> StreamSession:
        """Open a session. Raises WireError if there are too many."""
        self._count(address)
        if len(self) >= self._most or self._by_address[address] >= max(1, self._most // 2):
            self.counts[REFUSED] += 1
            raise WireError(Reason.CLIENT_LIMIT, "too many open sessions")
        self.counts[OPENED] += 1
        session = StreamSession(self, f"s:{self.counts[OPENED]}", terms, address, advise)
        self._sessions[session.id] = session
        self._by_address[address] += 1
        self.enter_plan(session)
        return session

    def change(self, session: StreamSession, terms: SessionTerms) -> None:
        """Change the terms; unchanged terms only show that the client is alive. Raises WireError if
        changes come too often or would change the model."""
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
        """Announce a session, or its new terms, to planners."""
        session.is_planned = True
        terms = session.terms
        model, slo = terms.model, terms.slo
        if (version := self.catalog.find(model, terms.version)) is not None:
            # For a pipeline, planners choose the source's variants, within its part of the slo.
            model, slo = version.front.name, max(0.1 * slo, slo - version.rest_s)
        self.post(SessionOpened(session.id, model, terms.rate, slo, terms.floor, terms.weight))

    def leave_plan(self, session: StreamSession) -> None:
        """Have planners forget a session, which keeps its advice. Safe to repeat."""
        if session.is_planned:
            session.is_planned = False
            self.post(SessionClosed(session.id))

    def close(self, session: StreamSession) -> None:
        """Close a session. Safe to repeat."""
        if self._sessions.pop(session.id, None) is None:
            return
        self._unadvised.pop(session, None)
        self._by_address[session.address] -= 1
        if not self._by_address[session.address]:
            del self._by_address[session.address]
        self.leave_plan(session)

    def planned(self, plan: Plan) -> None:
        """Advise the sessions for which a new plan changes something."""
        variants = {input_size.client: input_size.variant for input_size in plan.inputs}
        scheduled = bool(self._unadvised)
        for session in self._sessions.values():
            if session.decide(variants.get(session.id)):
                self._unadvised[session] = None
        if self._unadvised and not scheduled:
            self._later(self._advise_some)

    def _advise_some(self) -> None:
        """Advise as many sessions as one turn of the loop may take."""
        for session in list(self._unadvised)[:MOST_ADVISED]:
            del self._unadvised[session]
            advice = session.advice
            if advice is not None:
                session.advise(advice)
        if self._unadvised:
            self._later(self._advise_some)

    def _count(self, address: str) -> None:
        """Count a hello. Raises WireError if there are too many."""
        now, hellos = self.clock(), self._hellos
        if now - self._counted_at >= 1.0:
            self._counted_at = now
            hellos.clear()
        if hellos[address] >= MOST_JOINS or hellos.total() >= 2 * MOST_JOINS:
            self.counts[REFUSED] += 1
            raise WireError(Reason.CLIENT_LIMIT, "too many sessions are starting or changing")
        hellos[address] += 1
