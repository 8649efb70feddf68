"""Which addresses are dialled and which links are used, without time or sockets."""

from __future__ import annotations

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from slacktide.peers.members import ITSELF, LINKED, MAX_LINKS, MOST_WAIT_S, LinkVerdict, Members
from slacktide.peers.messages import PeerHello


def members(machine: str = "a", seed: int = 0, **options) -> Members:
    return Members(machine, f"i-{machine}", random.Random(seed), **options)


def hello(machine: str, instance: str | None = None, protocol: int = 1) -> PeerHello:
    return PeerHello(protocol, "0.1", machine, {}, instance or f"i-{machine}")


def accept(of: Members, machine: str, link: object = None, **fields) -> LinkVerdict:
    return of.admit(hello(machine, **fields), link or object(), address="x", dialled=False)


def test_addresses_are_dialled_at_once_and_again_after_longer_and_longer_waits():
    a = members()
    a.listed(["b:1"])
    now, waits = 10.0, []
    for _ in range(8):
        assert a.to_dial(now=now) == ["b:1"]
        assert a.to_dial(now=now) == []
        assert a.next_wakeup() is None
        a.ended("b:1", "refused", now=now)
        waits.append(a.next_wakeup() - now)
        assert a.to_dial(now=a.next_wakeup() - 1e-9) == []
        now = a.next_wakeup()
    for wait, most in zip(waits, (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0), strict=True):
        assert most / 2 <= wait <= most <= MOST_WAIT_S
    assert len({wait / most for wait, most in itertools.pairwise(waits)}) > 1
    assert a.addresses() == [("b:1", "", "refused")]


def test_a_link_resets_the_wait_and_its_end_begins_it():
    a = members()
    a.listed(["b:1"])
    for now in (0.0, 1.0, 2.0, 4.0):
        assert a.to_dial(now=now)
        a.ended("b:1", "refused", now=now)
    a.to_dial(now=8.0)
    assert a.admit(hello("b"), "l", address="b:1", dialled=True) == LinkVerdict()
    assert a.links() == ["l"]
    assert a.addresses() == [("b:1", "b", "")]
    assert a.left("l", "b")
    assert not a.left("l", "b")
    a.ended("b:1", "silent", now=9.0)
    assert a.next_wakeup() <= 9.1


def test_addresses_that_are_no_longer_listed_are_not_dialled_but_their_links_go_on():
    a = members()
    a.listed(["b:1", "c:1"])
    assert len(a.to_dial(now=0.0)) == 2
    a.admit(hello("b"), "l", address="b:1", dialled=True)
    a.listed(["c:1"])
    assert a.links() == ["l"]
    a.left("l", "b")
    a.ended("b:1", "gone", now=1.0)
    a.ended("c:1", "gone", now=1.0)
    assert a.to_dial(now=9.0) == ["c:1"]


def test_a_server_that_dials_itself_notices_and_does_so_no_more():
    a = members()
    a.listed(["a:1"])
    assert a.to_dial(now=0.0) == ["a:1"]
    assert accept(a, "a").refusal == ITSELF
    assert a.admit(hello("a"), "l", address="a:1", dialled=True).refusal == ITSELF
    a.ended("a:1", ITSELF, now=0.0)
    assert a.to_dial(now=99.0) == []
    assert a.next_wakeup() is None


def test_namesakes_are_not_used():
    a = members()
    sentence = "two servers are named 'a': give each its own --machine"
    assert accept(a, "a", instance="other").refusal == sentence
    assert accept(a, "b", "l") == LinkVerdict()
    assert "another server is linked" in accept(a, "b", instance="other").refusal
    assert a.links() == ["l"]


def test_another_protocol_is_not_used():
    assert accept(members(), "b", protocol=2).refusal.startswith("protocol 2 of 'b' (release 0.1)")


def test_the_link_dialled_by_the_smaller_name_stays():
    a, b = members("a"), members("b")
    a.listed(["b:1"])
    b.listed(["a:1"])
    assert accept(a, "b", "dialled by b") == LinkVerdict()
    link = "dialled by a"
    assert a.admit(hello("b"), link, address="b:1", dialled=True).replaced == "dialled by b"
    assert a.links() == [link]
    assert accept(a, "b", "dialled by b again").refusal == LINKED
    assert b.admit(hello("a"), "dialled by b", address="a:1", dialled=True) == LinkVerdict()
    assert accept(b, "a", link).replaced == "dialled by b"
    assert b.admit(hello("a"), "again", address="a:1", dialled=True).refusal == LINKED
    assert a.admit(hello("b"), "again", address="b:2", dialled=True).refusal == LINKED


def test_a_machine_is_not_dialled_at_two_addresses_once_it_has_answered_at_both():
    a = members()
    a.listed(["b:1", "b:2"])
    assert sorted(a.to_dial(now=0.0)) == ["b:1", "b:2"]
    assert a.admit(hello("b"), "l", address="b:1", dialled=True) == LinkVerdict()
    assert a.admit(hello("b"), "k", address="b:2", dialled=True).refusal == LINKED
    a.ended("b:2", LINKED, now=0.0)
    assert a.to_dial(now=99.0) == []
    a.left("l", "b")
    a.ended("b:1", "gone", now=99.0)
    assert len(a.to_dial(now=199.0)) == 1


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_of_many_addresses_a_random_sample_is_dialled(seed, count):
    a = members(seed=seed)
    addresses = [f"m{i}:1" for i in range(count)]
    a.listed(addresses)
    dialled = a.to_dial(now=0.0)
    most = MAX_LINKS if count <= MAX_LINKS else MAX_LINKS // 2
    assert len(dialled) == min(count, most)
    if count > 40:
        assert dialled != addresses[: len(dialled)]
    for address in dialled:
        name = address.partition(":")[0]
        assert a.admit(hello(name), object(), address=address, dialled=True) == LinkVerdict()
    more = 0
    while not accept(a, f"guest{more}").refusal:
        more += 1
    assert len(a.links()) == MAX_LINKS
    assert accept(a, "late").refusal == "'a' has 16 peers already"
    assert a.to_dial(now=1e9) == []


class Net:
    """Servers that dial each other. Hellos and ends arrive in any order, as long as the hello of a
    link comes before its end."""

    def __init__(self, names: str, most: int, seed: int) -> None:
        self.now = 0.0
        self.servers = {name: members(name, seed + ord(name), max_links=most) for name in names}
        for name, server in self.servers.items():
            server.listed([f"{other}:1" for other in names if other != name])
        self.events: list[tuple[str, str, str, int]] = []
        """Kind, server, the other end, link."""
        self.over: set[tuple[str, int]] = set()
        self.diallers: dict[int, str] = {}
        self.used: dict[tuple[str, str], list[int]] = {}

    def dial(self) -> bool:
        busy = False
        for name, server in self.servers.items():
            for address in server.to_dial(now=self.now):
                busy, link = True, len(self.diallers)
                other = address[0]
                self.diallers[link] = name
                self.events += [("hello", name, other, link), ("hello", other, name, link)]
        return busy

    def step(self, index: int) -> None:
        kind, name, other, link = self.events.pop(index % len(self.events))
        if kind == "end" and ("hello", name, other, link) in self.events:
            self.events.append((kind, name, other, link))
            return
        if (name, link) in self.over:
            return
        server, dialled = self.servers[name], self.diallers[link] == name
        if kind == "hello":
            verdict = server.admit(hello(other), link, address=f"{other}:1", dialled=dialled)
            if verdict.refusal:
                self.end(name, other, link, verdict.refusal)
            elif verdict.replaced is not None:
                self.end(name, other, verdict.replaced, "replaced")
        else:
            server.left(link, other)
            self.end(name, other, link, "ended there")

    def end(self, name: str, other: str, link: int, why: str) -> None:
        self.over.add((name, link))
        self.events.append(("end", other, name, link))
        if self.diallers[link] == name:
            self.servers[name].ended(f"{other}:1", why, now=self.now)


@given(
    st.sampled_from(["ab", "abc", "abcdef"]),
    st.sampled_from([2, 3, 16]),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 100), max_size=60),
)
def test_any_order_of_hellos_leaves_one_link_for_each_pair(names, most, seed, order):
    net = Net(names, most, seed)
    net.dial()
    for index in order:
        if not net.events:
            net.now += 1.0
            net.dial()
        if net.events:
            net.step(index)
        for server in net.servers.values():
            assert len(server.links()) <= most
    for _ in range(200):
        while net.events:
            net.step(0)
        net.now += 3.0
        if not net.dial():
            break
    else:
        assert most < len(names) - 1, "they go on dialling"
    while net.events:
        net.step(0)
    if most >= len(names) - 1:
        for name, server in net.servers.items():
            assert len(server.links()) == len(names) - 1
            for other, peer in net.servers.items():
                if other != name:
                    links = set(server.links()) & set(peer.links())
                    assert len(links) == 1
