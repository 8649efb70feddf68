"""`slack` with two applications, one short and one long: what it does and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide.domain import Notice, Reason
from slacktide.engine.ports import Proposal, WaitUntil
from slacktide.profiles import BatchLatency, FixedTimes, RunClasses, classes_of_samples
from slacktide.scheduling import SlackOptions
from slacktide.scheduling.slack import Slack

LIMIT = 8


class Learning(FixedTimes):
    """Predictions that can be told something else."""

    revision = 0

    def __init__(self, classes: RunClasses) -> None:
        super().__init__(classes)
        self.now_known: RunClasses | None = classes

    def classes(self, cores: int) -> RunClasses | None:
        return self.now_known

    def learn(self, classes: RunClasses | None) -> None:
        self.now_known = classes
        self.revision += 1


def certain(lengths: dict[str, float], *, c0: float = 0.004, sizes=()) -> RunClasses:
    """Applications whose requests are all as long as one another."""
    latency = BatchLatency(c0, 1.0, sizes)
    samples = {name: [0.99 * length, 1.01 * length] for name, length in lengths.items()}
    return classes_of_samples(samples, latency)


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return sorted(member.id for member in proposal.members)


class TestClasses:
    """Two applications: a takes 1 ms beyond the fixed 4, b takes 20."""

    classes_known = certain({"a": 0.001, "b": 0.020})

    def make(self, lab, **options: object) -> tuple[Slack, Learning]:
        times = Learning(self.classes_known)
        view = lab.LaneView()
        return Slack(SlackOptions(**options), max_batch=LIMIT, times=times, view=view), times

    def test_the_short_do_not_wait_for_the_long(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in enumerate("abab"):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]

    def test_of_batches_worth_the_same_the_first_in_order_runs(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, signature in enumerate([((2,),), ((1,),), ((3,),)]):
            request = lab.request(id, 0.2, application="a", signature=signature)
            scheduler.admit_moved(request, now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0]

    def test_a_best_effort_request_that_is_worth_nothing_yet_does_not_join(self, lab) -> None:
        """Not even where a batch of two is padded to four, so that it costs nothing."""
        classes = certain({"a": 0.001}, sizes=(4,))
        classes = replace(
            classes, cdfs=classes.cdfs.round()
        )  # to the step: two last as long as one
        times = FixedTimes(classes)
        scheduler = Slack(SlackOptions(), max_batch=4, times=times, view=lab.LaneView())
        scheduler.admit_moved(lab.request(0, 0.3, application="a"), now=0.0)
        scheduler.admit_moved(lab.request(1, 2.0, application="a", best_effort=True), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0]
        assert ids(scheduler.propose(lab.REPLICA, now=0.1)) == [0, 1]

    def test_one_that_is_announced_is_waited_for_with_those_of_the_first_shape(self, lab) -> None:
        """Others wait as well; of the announced, a notice does not tell the shape."""
        times = FixedTimes(certain({"a": 0.001}, c0=0.1))
        scheduler = Slack(SlackOptions(lead=0.5), max_batch=2, times=times, view=lab.LaneView())
        for id, signature in enumerate([((1,),), ((2,),)]):
            request = lab.request(id, 1.0, application="a", signature=signature)
            scheduler.admit_moved(request, now=0.0)
        notice = Notice(2, "m", 0.0, 1.0, 1, complete_at=0.001, application="a")
        assert scheduler.announce(notice, now=0.0) is None
        assert scheduler.propose(lab.REPLICA, now=0.0) == WaitUntil(0.001)

    def test_the_long_come_first_where_they_are_worth_enough(self, lab) -> None:
        scheduler, _ = self.make(lab, length_exponent=5.0)
        for id, name in enumerate("abab"):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        assert {1, 3} <= set(ids(scheduler.propose(lab.REPLICA, now=0.0)))

    def test_each_is_given_up_when_its_own_time_has_come(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in enumerate("ab"):
            scheduler.admit_moved(lab.request(id, 0.1, application=name), now=0.0)
        at = scheduler.next_expiry()
        assert at == pytest.approx(0.1 - 0.024, abs=0.0005)
        assert scheduler.expire(now=at) == [(1, Reason.HOPELESS)]
        assert scheduler.next_expiry() == pytest.approx(0.1 - 0.005, abs=0.0005)
        assert scheduler.expire(now=0.2) == [(0, Reason.EXPIRED)]
        assert scheduler.next_expiry() is None

    def test_strangers_count_as_long(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in enumerate(["a", "nobody", "a", ""]):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]

    def test_new_predictions_reorder_waiting_requests(self, lab) -> None:
        scheduler, times = self.make(lab)
        for id, name in enumerate("abab"):
            scheduler.add(lab.request(id, 0.2, application=name), now=0.0)
        times.learn(certain({"a": 0.020, "b": 0.001}))
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [1, 3]
        times.learn(None)
        assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) >= 1
        times.learn(self.classes_known)
        assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [0, 2]

    def test_best_effort_joins_no_batch_that_it_would_make_longer(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id, name in ((8, "b"), (9, "a")):
            scheduler.add(lab.request(id, 60.0, best_effort=True, application=name), now=0.0)
        for id in range(2):
            scheduler.admit_moved(lab.request(id, 30.2, application="a"), now=30.0)
        assert ids(scheduler.propose(lab.REPLICA, now=30.0)) == [0, 1, 9]

    def test_best_effort_joins_up_to_the_longest_class_in_the_batch(self, lab) -> None:
        times = Learning(certain({"a": 0.010, "b": 0.020, "c": 0.080}, c0=0.4))
        options = SlackOptions(best_effort_share=0.0)
        scheduler = Slack(options, max_batch=LIMIT, times=times, view=lab.LaneView())
        for id, name in ((7, "c"), (8, "b"), (9, "a")):
            scheduler.add(lab.request(id, 10.0, best_effort=True, application=name), now=0.0)
        for id, name in enumerate("ab"):
            scheduler.admit_moved(lab.request(id, 31.0, application=name), now=30.0)
        assert ids(scheduler.propose(lab.REPLICA, now=30.0)) == [0, 1, 8, 9]

    def test_best_effort_makes_no_batch_too_long_for_its_first_deadline(self, lab) -> None:
        scheduler, _ = self.make(lab, best_effort_share=0.0)
        for id in range(1, 8):
            scheduler.add(lab.request(id, 10.0, best_effort=True, application="a"), now=0.0)
        scheduler.admit_moved(lab.request(0, 30.0052, application="a"), now=30.0)
        assert ids(scheduler.propose(lab.REPLICA, now=30.0)) == [0]

    def test_a_replica_that_takes_fewer_rows_gets_fewer(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id in range(6):
            scheduler.add(lab.request(id, 0.2, application="a"), now=0.0)
        small = replace(lab.REPLICA, max_batch=2)
        assert len(ids(scheduler.propose(small, now=0.0))) == 2
        assert len(ids(scheduler.propose(lab.REPLICA, now=0.0))) == 6

    def test_the_costliest_are_looked_for_beyond_those_that_are_late(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id in range(9):  # One more than are looked at for a batch of one.
            late = lab.request(id, 0.001, penalty=4.0, application="a")
            scheduler.admit_moved(late, now=0.0)
        scheduler.admit_moved(lab.request(9, 0.1, application="a"), now=0.0)
        scheduler.admit_moved(lab.request(10, 0.2, penalty=4.0, application="a"), now=0.0)
        single = replace(lab.REPLICA, max_batch=1)
        assert ids(scheduler.propose(single, now=0.0)) == [10]

    @pytest.mark.parametrize(("ahead", "chosen"), [(3, [3]), (4, [0])])
    def test_behind_four_that_do_not_fit_in_a_row_it_looks_no_further(
        self, lab, ahead: int, chosen: list[int]
    ) -> None:
        scheduler, _ = self.make(lab)
        for id in range(ahead + 1):
            rows = 2 if id < ahead else 1
            scheduler.admit_moved(lab.request(id, 0.2, rows=rows, application="a"), now=0.0)
        single = replace(lab.REPLICA, max_batch=1)
        assert ids(scheduler.propose(single, now=0.0)) == chosen

    def test_the_door_asks_for_the_time_of_the_class(self, lab) -> None:
        scheduler, _ = self.make(lab)
        short = lab.request(0, 0.010, application="a")
        assert scheduler.add(short, now=0.0) is None
        long = lab.request(1, 0.010, application="b")
        assert scheduler.add(long, now=0.0) is Reason.SHORTER_THAN_ALONE
        notice = Notice(2, "m", 0.0, 0.010, 1, complete_at=0.001, application="b")
        assert scheduler.announce(notice, now=0.0) is Reason.SHORTER_THAN_ALONE

    def test_long_ones_ahead_keep_no_short_one_out(self, lab) -> None:
        scheduler, _ = self.make(lab)
        for id in range(20):
            scheduler.admit_moved(lab.request(id, 0.1, application="b"), now=0.0)
        behind = lab.request(20, 0.1, application="b")
        assert scheduler.add(behind, now=0.0) is Reason.BEHIND_WORK
        assert scheduler.add(lab.request(21, 0.1, application="a"), now=0.0) is None

    def test_short_ones_ahead_do_keep_a_long_one_out(self, lab) -> None:
        scheduler, _ = self.make(lab)
        admitted = [
            scheduler.add(lab.request(id, 0.1, application="a"), now=0.0) is None
            for id in range(200)
        ]
        # At the very best 1.5 ms each: 0.5 of the fixed part, and 1 of its own.
        assert sum(admitted) in range(66, 75)
        long = [
            scheduler.add(lab.request(id, 0.1, application="b"), now=0.0) is None
            for id in range(200, 250)
        ]
        assert sum(long) <= 6  # spares
