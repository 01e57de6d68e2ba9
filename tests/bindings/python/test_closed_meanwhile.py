# SPDX-License-Identifier: Apache-2.0
"""close() while another thread is inside a call of the same object: the call ends by an error of Freshet's, or comes to its end."""
import sys
import threading

import freshet
import numpy as np
import pytest

from conftest import PATIENCE, free_port


@pytest.fixture(autouse=True)
def no_switches():
    """A thread keeps the interpreter's lock until its call lets go of it, so a call that was begun is inside when another thread runs."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


class Core:
    """Tells when the call of that name begins."""

    def __init__(self, core, name):
        self._core, self._name, self.begun = core, name, threading.Event()

    def __getattr__(self, name):
        if name == self._name:
            self.begun.set()
        return getattr(self._core, name)


def closed_in(handle, name, call):
    """What the call of the core's `name` answered or raised, where close() came meanwhile."""
    handle._core = core = Core(handle._core, name)
    outcome = []

    def run():
        try:
            outcome.append(call())
        except freshet.Error as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert core.begun.wait(PATIENCE)
    handle.close()
    handle.close()
    thread.join(PATIENCE)
    assert handle.closed and not thread.is_alive()
    return outcome[0]


def is_closed(outcome):
    return isinstance(outcome, (freshet.Cancelled, freshet.FailedPrecondition)) and "closed" in str(outcome)


LARGE = {"w": np.ones(8 << 20, np.uint8)}


@pytest.fixture
def ranks(tmp_path):
    """Two ranks of a job in this process. Each waits for the other for a day."""
    meet = f"tcp://127.0.0.1:{free_port()}"
    opened = {}

    def open_rank(rank):
        opened[rank] = freshet.Checkpointer("net", LARGE, local=str(tmp_path / str(rank)), rank=rank, ranks=2, meet=meet,
                                            patience=86400)

    together(open_rank)
    yield opened[0], opened[1]
    for one in opened.values():
        one.close()


def together(call):
    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)


def empty():
    return {"w": np.zeros_like(LARGE["w"])}


def test_a_checkpointer_that_restores(ranks):
    assert is_closed(closed_in(ranks[0], "restore", lambda: ranks[0].restore(empty())))


@pytest.mark.parametrize("name, call", [("wait", lambda ck: ck.wait(1, "memory")), ("finish", lambda ck: ck.finish())])
def test_a_checkpointer_that_waits_for_another_rank(ranks, name, call):
    together(lambda rank: ranks[rank].restore(empty()))
    ranks[0].checkpoint(1, LARGE)
    assert is_closed(closed_in(ranks[0], name, lambda: call(ranks[0])))


@pytest.mark.parametrize("name, beside", [("capture", False), ("capture_beside", True), ("end", False), ("end", True)])
def test_a_checkpointer_that_captures(tmp_path, name, beside):
    with freshet.Checkpointer("net", LARGE, local=str(tmp_path), rank=0, ranks=1) as ck:
        ck.restore(empty())
        ck.begin(1)
        if name == "end":
            ck.capture(LARGE, beside=beside)
            assert closed_in(ck, name, ck.end).bytes == LARGE["w"].nbytes
        else:
            assert closed_in(ck, name, lambda: ck.capture(dict(LARGE), beside=beside)) is None
    with freshet.Checkpointer("net", LARGE, local=str(tmp_path), rank=0, ranks=1) as ck:  # Nobody has its folder any more.
        ck.restore(empty())


@pytest.mark.parametrize("name, call", [
    ("publish", lambda publisher: publisher.publish(LARGE)),
    ("publish", lambda publisher: publisher.publish(LARGE, sync=True)),
    ("wait_committed", lambda publisher: publisher.wait_committed(publisher.publish(LARGE).version)),
    ("stat", lambda publisher: publisher.stat()),
    ("activate", lambda publisher: [publisher.publish(LARGE, sync=True), publisher.rollback(1)]),
])
def test_a_publisher(name, call):
    publisher = freshet.Publisher("m")
    outcome = closed_in(publisher, name, lambda: call(publisher))
    assert not isinstance(outcome, freshet.Error) or is_closed(outcome)


@pytest.mark.parametrize("name, call", [
    ("wait_for", lambda subscriber: subscriber.wait_for()),
    ("snapshot_at_least", lambda subscriber: subscriber.snapshot(1)),
    ("next", lambda subscriber: subscriber.next()),
    ("current_snapshot", lambda subscriber: subscriber._current_snapshot(None)),
])
def test_a_subscriber_that_waits(name, call):
    subscriber = freshet.Subscriber("m", at="tcp://127.0.0.1:1", every=name == "next")
    assert is_closed(closed_in(subscriber, name, lambda: call(subscriber)))


def test_a_subscriber_that_is_used():
    with freshet.Publisher("m") as publisher:
        publisher.publish(LARGE, sync=True)
        subscriber = freshet.Subscriber("m", staged=True)
        outcome = closed_in(subscriber, "stage", lambda: subscriber.stage(1, timeout=PATIENCE))
        assert outcome is None or is_closed(outcome)
        subscriber = freshet.Subscriber("m")
        subscriber.wait_for()
        snapshot = closed_in(subscriber, "snapshot", subscriber.snapshot)
        assert (snapshot["w"] == 1).all()


def test_a_repository_that_stores_and_reads(folder):
    repository = freshet.Repository(folder)
    assert closed_in(repository, "put", lambda: repository.put("net", LARGE)) == "net@1"
    with freshet.Repository(folder) as again:
        assert (again.get("net@1")["w"] == 1).all()
        record = again._core.record("net@1")
        out = empty()["w"]
        assert closed_in(again, "read", lambda: again._core.read(record, [(0, out)])) is None
        assert (out == 1).all()


def test_a_sink(folder):
    with freshet.Publisher("m") as publisher, freshet.Repository(folder) as repository:
        publisher.publish(LARGE, sync=True)
        sink = repository.sink("m")
        assert is_closed(closed_in(sink, "wait_for", lambda: sink.wait_for(9)))
