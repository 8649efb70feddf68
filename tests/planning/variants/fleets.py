"""Fleets for tests: drawn at random, or by hypothesis."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from slacktide.planning.variants import UNMAPPED, Assignment, Client, Fleet, Variant

VARIANTS = tuple(
    Variant(
        str(size),
        0.2 + 0.06 * at,
        tuple(0.020 + 0.004 * at + (b * 0.003 * (1 + at)) for b in range(8)),
    )
    for at, size in enumerate((128, 192, 256, 320, 384))
)


def drawn(replicas: int, clients: int, seed: int) -> Fleet:
    """As in the paper's §7.6: rates, objectives and bandwidths drawn evenly."""
    random = Random(f"{replicas} {clients} {seed}")
    return Fleet(VARIANTS, [_client(random, n) for n in range(clients)], replicas)


def _client(random: Random, number: int) -> Client:
    slo, mbps = random.choice((0.075, 0.1, 0.15)), random.uniform(7.5, 50.0)
    budgets = tuple(max(0.0, slo - 0.08 * (at + 1) / mbps) for at in range(len(VARIANTS)))
    return Client(f"client {number}", random.choice((10.0, 15.0, 25.0)), budgets)


@st.composite
def fleets(draw: st.DrawFn, *, most_clients: int = 8, most_replicas: int = 3) -> Fleet:
    clients = [
        Client(
            f"client {number}",
            draw(st.sampled_from((5.0, 10.0, 15.0, 25.0, 29.97, 7.3))),
            tuple(draw(st.floats(0.0, 0.3)) for _ in VARIANTS),
            draw(st.sampled_from((1.0, 1.0, 2.0, 0.5))),
            draw(st.sampled_from((0.0, 0.0, 0.3))),
        )
        for number in range(draw(st.integers(0, most_clients)))
    ]
    return Fleet(
        VARIANTS,
        clients,
        draw(st.integers(1, most_replicas)),
    )


def assert_sound(fleet: Fleet, assignment: Assignment) -> None:
    """Every replica serves its clients by the program's own terms, in seconds and frames."""
    assert len(assignment.variants) == fleet.replicas
    assert list(assignment.variants) == sorted(assignment.variants, reverse=True)
    assert len(assignment.clients) == len(fleet.clients)
    for replica, variant in enumerate(assignment.variants):
        members = [fleet.clients[c] for c, at in enumerate(assignment.clients) if at == replica]
        seconds = fleet.variants[variant].seconds
        batch = fleet.batch_of(assignment, replica)
        load = sum(member.rate for member in members)
        assert load <= batch / seconds[batch - 1] + 1e-6
        for member in members:
            assert 2 * seconds[batch - 1] <= member.budgets[variant] + 1e-9
            assert fleet.variants[variant].accuracy >= member.floor
    assert all(at == UNMAPPED or 0 <= at < len(assignment.variants) for at in assignment.clients)
