# SPDX-License-Identifier: Apache-2.0
"""Shadow serving: a staged version answers live requests beside the served one, and decides for its group."""
import threading

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually
from freshet.serving import Shadow


def weights(value):
    return {"w": np.full(4, value, np.float32)}


def predict(snapshot, x):
    return float(snapshot["w"] @ x)


def equal(a, b):
    return a == b


ONES = np.ones(4, np.float32)


@pytest.fixture
def group():
    """A publisher that keeps some versions, and two members that serve its first one."""
    with freshet.Publisher("m", keep_versions=4) as publisher, freshet.Subscriber("m", staged=True) as one, \
            freshet.Subscriber("m", staged=True) as other:
        publisher.publish(weights(1), sync=True)
        one.wait_for(1, PATIENCE), other.wait_for(1, PATIENCE)
        yield publisher, one, other


def staged(group, value):
    version = group[0].publish(weights(value), sync=True).version
    group[1].stage(version, PATIENCE)
    return version


def shadowed(shadow, count):
    return eventually(lambda: shadow.counts["shadowed"] == count)


def test_nobody_is_answered_by_the_staged_version(group):
    threads = set()

    def noted(snapshot, x, *, scale):
        threads.add((snapshot.version, threading.current_thread() is threading.main_thread()))
        return scale * predict(snapshot, x)

    with Shadow(group[1], 1, equal) as shadow:
        assert shadow.handle(noted, ONES, scale=2) == 8 and shadow.version == 0 and shadow.counts["shadowed"] == 0
        staged(group, 2)
        for _ in range(10):
            assert shadow.handle(noted, ONES, scale=2) == 8
        assert shadowed(shadow, 10)
        assert shadow.counts == {"shadowed": 10, "same": 0, "different": 10, "failed": 0} and shadow.counts.different == 10
        assert shadow.version == 2 and threads == {(1, True), (2, False)} and group[1].version == 1 and shadow.decisions == {}


@pytest.mark.parametrize("share, count", [(0, 0), (0.25, 25), (1 / 3, 33), (1, 100)])
def test_a_share_of_the_requests(group, share, count):
    staged(group, 1)
    with Shadow(group[1], share, equal, queue=100) as shadow:
        for _ in range(100):
            shadow.handle(predict, ONES)
        assert shadowed(shadow, count) and shadow.counts["same"] == count and shadow.overflowed == 0


def test_exceptions_are_counted_and_said_once(group, caplog):
    def fails_when_staged(snapshot, x):
        if snapshot.version == 2:
            raise SystemExit("no")
        return predict(snapshot, x)

    def fails(one, other):
        raise RuntimeError("they cannot be compared")

    staged(group, 2)
    with Shadow(group[1], 1, equal) as shadow:
        for _ in range(3):
            assert shadow.handle(fails_when_staged, ONES) == 4
        assert shadowed(shadow, 3) and shadow.counts["failed"] == 3
        assert sum("SystemExit: no" in record.getMessage() for record in caplog.records) == 1
    with Shadow(group[1], 1, fails) as shadow:
        shadow.handle(predict, ONES)
        assert shadowed(shadow, 1) and shadow.counts["failed"] == 1
    with Shadow(group[1], 1, lambda a, b: np.array([a, b]) == a) as shadow:  # No yes and no no.
        shadow.handle(predict, ONES)
        assert shadowed(shadow, 1) and shadow.counts["failed"] == 1
    async def awaited(snapshot):
        return snapshot.version

    with Shadow(group[1], 1, equal) as shadow:
        shadow.handle(awaited).close()
        assert shadowed(shadow, 1) and shadow.counts["failed"] == 1
        assert any("cannot await" in record.getMessage() for record in caplog.records)
    with Shadow(group[1], 1, equal) as shadow:
        with pytest.raises(ZeroDivisionError):  # The served version's own: it is the caller's, and shadows nothing.
            shadow.handle(lambda snapshot: 1 / 0)
        shadow.handle(predict, ONES)
        assert shadowed(shadow, 1) and shadow.counts["failed"] == 0


def test_a_good_version_is_committed_by_all_members(group):
    with Shadow(group[1], 1, lambda a, b: abs(a - b) < 1, commit_when=(20, 0.1), drop_when=(5, 0.5)) as shadow:
        staged(group, 1.01)
        for _ in range(19):
            shadow.handle(predict, ONES)
        assert shadowed(shadow, 19) and group[1].version == 1
        shadow.handle(predict, ONES)
        assert eventually(lambda: shadow.decisions == {2: "committed"})
        assert [member.version for member in group[1:]] == [2, 2] and shadow.error == ""
        assert shadow.handle(predict, ONES) == predict(weights(1.01), ONES)
        assert shadow.counts["shadowed"] == 20 and shadow.version == 2


def test_a_decision_that_was_overtaken_changes_nothing(group):
    with Shadow(group[1], 1, equal, commit_when=(1, 0)) as shadow, Shadow(group[2], 1, equal) as late:
        staged(group, 1)
        assert eventually(lambda: group[2].status()["current"]["version"] == 2)
        before = group[2].status()
        assert before["serving"] == 1
        shadow.handle(predict, ONES)
        assert eventually(lambda: shadow.decisions == {2: "committed"})
        for decide in (late._commit, late._drop):
            with pytest.raises(freshet.Cancelled, match="another member decided"):
                decide(2, before)
        group[2].wait_for(2, PATIENCE)
        assert [member.version for member in group[1:]] == [2, 2] and group[0].stat()["current"]["version"] == 2


def test_each_member_may_decide_and_nobody_goes_back(group):
    """Both have seen enough at the same time, again and again."""
    seen = {1: [], 2: []}
    with Shadow(group[1], 1, equal, commit_when=(3, 0)) as one, Shadow(group[2], 1, equal, commit_when=(3, 0)) as other:
        ended = threading.Event()

        def serve(member, shadow):
            while not ended.is_set():
                shadow.handle(predict, ONES)
                with group[member].snapshot() as snapshot:
                    seen[member].append(snapshot.version)

        threads = [threading.Thread(target=serve, args=pair) for pair in ((1, one), (2, other))]
        for thread in threads:
            thread.start()
        for version in range(2, 6):
            assert group[0].publish(weights(1), sync=True).version == version
            assert eventually(lambda: [member.version for member in group[1:]] == [version, version])
        ended.set()
        for thread in threads:
            thread.join()
        assert "committed" in [*one.decisions.values(), *other.decisions.values()]
    for versions in seen.values():
        assert versions == sorted(versions)


def test_a_bad_version_is_dropped_for_all_followers(group, caplog):
    with freshet.Subscriber("m") as follower, Shadow(group[1], 1, equal, commit_when=(100, 0.1), drop_when=(5, 0.5)) as shadow, \
            Shadow(group[2], 1, equal) as neighbour:
        version = staged(group, 7)
        group[2].stage(version, PATIENCE)
        follower.wait_for(version, PATIENCE)
        neighbour.handle(predict, ONES)
        assert shadowed(neighbour, 1)
        for _ in range(5):
            assert shadow.handle(predict, ONES) == 4
        assert eventually(lambda: shadow.decisions == {version: "dropped"})
        assert eventually(lambda: follower.version == 1)
        with freshet.Subscriber("m", staged=True) as late:
            assert late.wait_for(1, PATIENCE) == 1
        assert eventually(lambda: neighbour.handle(predict, ONES) == 4 and neighbour.decisions == {version: "ended"})
        for _ in range(5):
            assert shadow.handle(predict, ONES) == 4
        assert shadow.counts["shadowed"] == 5 and group[1].version == group[2].version == 1
        # The next one is staged by itself, and counted anew.
        group[0].publish(weights(1), sync=True)
        assert eventually(lambda: shadow.handle(predict, ONES) == 4 and shadow.version == version + 1)
        assert shadow.counts["different"] == 0 and follower.wait_for(version + 1, PATIENCE) == version + 1


def test_a_held_model_stays_as_it_is(group):
    with Shadow(group[1], 1, equal, commit_when=(1, 0)) as shadow:
        staged(group, 1)
        group[0].rollback(1)
        assert eventually(lambda: group[1].status()["current"]["hold"])
        assert eventually(lambda: shadow.handle(predict, ONES) == 4 and ("held" in shadow.error or shadow.decisions == {2: "ended"}))
        assert group[1].version == 1 and group[0].stat()["current"]["hold"]


def test_counts_begin_anew_with_another_staged_version(group):
    with Shadow(group[1], 1, equal, commit_when=(4, 0)) as shadow:
        staged(group, 2)
        for _ in range(3):
            shadow.handle(predict, ONES)
        assert shadowed(shadow, 3) and (shadow.version, shadow.counts["different"]) == (2, 3)
        staged(group, 1)
        for _ in range(3):
            shadow.handle(predict, ONES)
        assert shadowed(shadow, 3) and (shadow.version, shadow.counts["same"], shadow.counts["different"]) == (3, 3, 0)
        assert group[1].version == 1
        shadow.handle(predict, ONES)
        assert eventually(lambda: shadow.decisions == {3: "committed"}) and group[2].version == 3


def test_a_comparison_that_blocks(group):
    begun, go_on = threading.Event(), threading.Event()

    def blocks(one, other):
        begun.set()
        return go_on.wait(PATIENCE)

    staged(group, 2)
    with Shadow(group[1], 1, blocks, queue=3) as shadow:
        assert shadow.handle(predict, ONES) == 4
        assert begun.wait(PATIENCE)
        for _ in range(10):
            assert shadow.handle(predict, ONES) == 4
        assert shadow.overflowed == 7 and shadow.counts["shadowed"] == 0
        go_on.set()
        assert shadowed(shadow, 4) and shadow.counts["same"] == 4


def test_close_does_not_wait_for_a_comparison_without_end(group, monkeypatch):
    monkeypatch.setattr("freshet.serving._shadow._PATIENCE", 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def blocks(one, other):
        begun.set()
        go_on.wait(PATIENCE)

    staged(group, 2)
    shadow = Shadow(group[1], 1, blocks)
    for _ in range(3):
        shadow.handle(predict, ONES)
    assert begun.wait(PATIENCE)
    shadow.close()
    shadow.close()
    assert shadow.closed and shadow._worker.is_alive()
    with pytest.raises(freshet.FailedPrecondition, match="closed"):
        shadow.handle(predict, ONES)
    go_on.set()
    shadow._worker.join(PATIENCE)
    assert not shadow._worker.is_alive() and shadow.counts["shadowed"] <= 1
    worker = Shadow(group[1], 1, equal)._worker  # Which nobody closes.
    assert eventually(lambda: not worker.is_alive())


def test_a_decision_that_fails_is_told_and_tried_again(group, caplog, monkeypatch):
    monkeypatch.setattr("freshet.serving._shadow._AGAIN", 0.0)
    staged(group, 1)
    with Shadow(group[1], 1, equal, commit_when=(1, 0), within=0.3) as shadow:
        group[0].close()
        shadow.handle(predict, ONES)
        assert eventually(lambda: "m@2 was not committed" in shadow.error)
        assert shadow.handle(predict, ONES) == 4 and group[1].version == 1 and shadow.decisions == {}
        with freshet.Publisher("m") as publisher:
            publisher.publish(weights(1), sync=True)
            assert eventually(lambda: shadow.handle(predict, ONES) == 4 and shadow.decisions.get(3) == "committed")
            assert group[1].version == 3 and shadow.error == ""


def test_what_cannot_be_a_shadow():
    with freshet.Subscriber("m") as plain, freshet.Subscriber("m", staged=True) as member:
        for how, what in (((plain, 1, equal), "staged=True"), ((member, 1.5, equal), "share"), ((member, "x", equal), "share"),
                          ((member, float("nan"), equal), "share"), ((member, 1, None), "compare"), (("m", 1, equal), "Subscriber"),
                          ((member, 1, equal, 5), "commit_when"), ((member, 1, equal, (0, 0.5)), "commit_when"),
                          ((member, 1, equal, (1, 2)), "commit_when"), ((member, 1, equal, None, (1.5, 0.5)), "drop_when")):
            with pytest.raises(freshet.InvalidArgument, match=what):
                Shadow(*how)
        with pytest.raises(freshet.InvalidArgument, match="within"):
            Shadow(member, 1, equal, within=0)
        with Shadow(member, 1, equal) as shadow, pytest.raises(freshet.Unavailable, match="no version"):
            shadow.handle(predict, ONES)


def test_members_of_other_processes(program):
    """A trainer and a neighbour of other processes: the neighbour serves what the Shadow here committed."""
    trainer = program("""
        import sys, numpy as np, freshet
        with freshet.Publisher("m") as publisher:
            for value in (1, 1.01):
                publisher.publish({"w": np.full(4, value, np.float32)}, sync=True)
                print("published")
                sys.stdin.readline()
    """)
    neighbour = program("""
        import freshet
        with freshet.Subscriber("m", staged=True) as member:
            for version in (1, 2):
                member.wait_for(version, 60)
                print(member.version)
            input()
    """)
    trainer.line()
    assert neighbour.line() == "1"
    with freshet.Subscriber("m", staged=True) as member, \
            Shadow(member, 1, lambda a, b: abs(a - b) < 0.1, commit_when=(3, 0)) as shadow:
        member.wait_for(1, PATIENCE)
        trainer.go_on()
        trainer.line()
        assert eventually(lambda: shadow.handle(predict, ONES) and shadow.decisions == {2: "committed"})
        assert neighbour.line() == "2" and member.version == 2
