# SPDX-License-Identifier: Apache-2.0
"""Publishers and subscribers in one process: versions, waits, errors, event loops."""
import asyncio
import gc
import logging
import sys
import threading
import time
import types
from xml.etree import ElementTree

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually
from freshet import _core
from freshet._html import freshness


def weights(value=0.0):
    return {"w": np.full((4, 3), value, np.float32), "b": np.full(3, value, np.float32)}


def test_a_version_says_what_it_is():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m", label="me") as subscriber:
        assert subscriber.version == 0
        receipt = publisher.publish(weights(), step=3, metrics={"loss": 2.5}, tags={"host": "a"}, sync=True)
        assert receipt.version == 1 and receipt.blocked > 0
        assert publisher.wait_committed(1, PATIENCE)["changed_tensors"] == 2
        assert subscriber.wait_for(timeout=PATIENCE) == 1 and subscriber.version == 1
        with subscriber.snapshot() as snapshot:
            assert (snapshot.model, snapshot.version, snapshot.step) == ("m", 1, 3)
            assert snapshot.metrics == {"loss": 2.5} and snapshot.tags == {"host": "a"} and not snapshot.stale
            assert list(snapshot) == ["w", "b"] and len(snapshot) == 2 and "w" in snapshot and 3 not in snapshot
            assert snapshot["w"].shape == (4, 3)
            with pytest.raises(freshet.NotFound, match="no tensor x") as raised:
                snapshot["x"]
            assert isinstance(raised.value, KeyError)
        assert (publisher.stat()["model_bytes"], subscriber.status()["serving"]) == (60, 1)


def test_nothing_yet_is_unavailable():
    with freshet.Subscriber("m") as subscriber:
        with pytest.raises(freshet.Unavailable, match="no version of m has come yet"):
            subscriber.snapshot()
        with pytest.raises(freshet.TimedOut) as raised:
            subscriber.wait_for(timeout=0.01)
        assert isinstance(raised.value, TimeoutError) and raised.value.code == "timed_out"
        with pytest.raises(freshet.TimedOut):
            subscriber.snapshot(1, timeout=0.01)
        with pytest.raises(freshet.FailedPrecondition, match="every"):
            subscriber.next(timeout=0.01)
        with pytest.raises(freshet.InvalidArgument):
            subscriber.wait_for(timeout=float("nan"))
    with pytest.raises(freshet.TimedOut, match=r"nobody \(folder .*: no version came"):
        freshet.load_weights("nobody", timeout=0.01)


def test_what_was_closed_says_so():
    publisher, subscriber = freshet.Publisher("m"), freshet.Subscriber("m")
    publisher.publish(weights())
    subscriber.wait_for(timeout=PATIENCE)
    snapshot = subscriber.snapshot()
    bound = publisher.bind(weights())
    for one in (publisher, subscriber, snapshot):
        one.close()
        one.close()
    assert publisher.closed and subscriber.closed
    for call in (lambda: publisher.publish(weights()), bound.publish, publisher.stat, publisher.release,
                 lambda: publisher.bind(weights()).publish(), lambda: publisher.wait_committed(1), subscriber.snapshot,
                 lambda: subscriber.wait_for(), lambda: subscriber.version, subscriber.status, lambda: snapshot["w"],
                 lambda: snapshot.version, lambda: len(snapshot), lambda: list(snapshot)):
        with pytest.raises(freshet.FailedPrecondition, match="closed"):
            call()
    with freshet.Publisher("m"):
        pass


def test_a_name_has_one_publisher():
    with freshet.Publisher("m"):
        with pytest.raises(freshet.AlreadyExists, match="m"):
            freshet.Publisher("m")
    with pytest.raises(freshet.InvalidArgument):
        freshet.Publisher("no such name/")


def test_every_version_in_order():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m", every=True) as subscriber:
        publisher.publish(weights(0), sync=True)
        subscriber.wait_for(timeout=PATIENCE)
        for number in range(2, 6):
            publisher.publish(weights(number), sync=True)
        assert [(s.version, s["b"][0]) for s in (subscriber.next(PATIENCE) for _ in range(5))] == [
            (1, 0), (2, 2), (3, 3), (4, 4), (5, 5)]


def test_going_back_and_on():
    with freshet.Publisher("m", keep_versions=4) as publisher, freshet.Subscriber("m") as subscriber:
        for number in range(1, 4):
            publisher.publish(weights(number), sync=True)
        subscriber.wait_for(3, PATIENCE)
        assert publisher.rollback(2)["current"]["version"] == 2
        assert eventually(lambda: subscriber.version == 2)
        assert publisher.release()["current"]["version"] == 3
        subscriber.wait_for(3, PATIENCE)
        with pytest.raises(freshet.NotFound):
            publisher.rollback(77)
        with pytest.raises(freshet.InvalidArgument):
            publisher.rollback(0)


def test_a_member_stages_and_commits():
    with freshet.Publisher("m", keep_versions=4) as publisher, freshet.Subscriber("m", staged=True) as member:
        publisher.publish(weights(1), sync=True)
        member.wait_for(1, PATIENCE)
        publisher.publish(weights(2), sync=True)
        with pytest.raises(freshet.FailedPrecondition, match="no version is staged"):
            member.staged_snapshot()
        member.stage(2, PATIENCE)
        assert member.version == 1
        tried = member.staged_snapshot()
        assert (tried.version, tried["w"][0, 0]) == (2, 2) and member.snapshot()["w"][0, 0] == 1
        assert member.commit() == 2 and member.version == 2
        for call in (member.commit, member.staged_snapshot):
            with pytest.raises(freshet.FailedPrecondition):
                call()
        publisher.publish(weights(3), sync=True)
        assert (tried.version, tried["w"][0, 0]) == (2, 2)


def test_a_group_gets_each_version_together():
    with freshet.Publisher("m", group_commit=True) as publisher:
        with freshet.Subscriber("m", staged=True) as a, freshet.Subscriber("m", staged=True) as b:
            for number in (1, 2):
                publisher.publish(weights(number), sync=True)
                assert a.wait_for(number, PATIENCE) == number and b.wait_for(number, PATIENCE) == number


def test_a_graph_names_the_layers():
    graph = {"freshet_graph": 1, "layers": [
        {"name": "in", "class": "Input", "config": {"shape": [4]}},
        {"name": "dense", "class": "Dense", "config": {"units": 3}, "inputs": ["in"],
         "tensors": {"kernel": {"key": "w", "shape": [4, 3], "dtype": "f32"},
                     "bias": {"key": "b", "shape": [3], "dtype": "f32"}}}]}
    with freshet.Publisher("m", graph=graph) as publisher, freshet.Subscriber("m") as subscriber:
        backwards = dict(reversed(weights(1).items()))
        subscriber.wait_for(publisher.publish(backwards).version, PATIENCE)
        assert list(subscriber.snapshot()) == ["w", "b"]
        more = {"name": "more", "class": "Dense", "config": {}, "inputs": ["dense"],
                "tensors": {"k": {"key": "k", "shape": [2], "dtype": "f32"}}}
        grown = dict(graph, layers=[*graph["layers"], more])
        receipt = publisher.publish({"k": np.ones(2, np.float32), **weights(2)}, graph=grown)
        subscriber.wait_for(receipt.version, PATIENCE)
        assert list(subscriber.snapshot()) == ["w", "b", "k"]
    with pytest.raises(freshet.InvalidArgument):
        freshet.Publisher("m", graph={"layers": 3})
    with pytest.raises(freshet.NotFound):
        freshet.Publisher("m", graph="no/such/file.json")


def test_an_event_loop_waits_for_updates():
    async def follow(publisher, subscriber):
        publisher.publish(weights(1))
        assert await asyncio.wait_for(subscriber.updated(), PATIENCE) == 1
        waiting = [asyncio.ensure_future(subscriber.updated())]
        await asyncio.sleep(0)  # It looks, and waits.
        assert not waiting[0].done()
        publisher.publish(weights(2))
        assert await asyncio.wait_for(waiting[0], PATIENCE) == 2
        waiting = asyncio.ensure_future(subscriber.updated())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        waiting = asyncio.ensure_future(subscriber.updated())
        await asyncio.sleep(0)
        subscriber.close()
        with pytest.raises(freshet.FailedPrecondition):
            await asyncio.wait_for(waiting, PATIENCE)

    async def several(publisher, subscriber):
        told = {0: [], 1: [], 2: []}

        async def task(number):
            while not told[number] or told[number][-1] < 4:
                told[number].append(await asyncio.wait_for(subscriber.updated(), PATIENCE))

        tasks = [asyncio.create_task(task(number)) for number in told]
        for version in (2, 3, 4):
            publisher.publish(weights(version))
            while not all(numbers and numbers[-1] >= version for numbers in told.values()):
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert all(numbers == [2, 3, 4] for numbers in told.values()), told
        assert await asyncio.gather(subscriber.updated(), subscriber.updated()) == [4, 4], "this task was not told yet"

    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        asyncio.run(follow(publisher, subscriber))
    with freshet.Publisher("n") as publisher, freshet.Subscriber("n") as subscriber:
        subscriber.wait_for(publisher.publish(weights(1)).version, PATIENCE)
        asyncio.run(several(publisher, subscriber))


def test_a_callback_is_told_and_may_raise(caplog):
    told, both = [], threading.Event()

    def on_update(update):
        told.append(update.version)
        if update.version == 2:
            both.set()
        raise RuntimeError("the callback's own")

    with caplog.at_level(logging.ERROR, logger="freshet"):
        with freshet.Publisher("m") as publisher, freshet.Subscriber("m", on_update=on_update) as subscriber:
            for number in (1, 2):
                subscriber.wait_for(publisher.publish(weights(number)).version, PATIENCE)
            assert both.wait(PATIENCE)
            assert told == [1, 2]
            assert eventually(lambda: sum("the callback's own" in (one.exc_text or "") for one in caplog.records) == 2)


def test_both_ends_say_that_the_fabric_is_trusted(monkeypatch):
    with pytest.raises(freshet.FailedPrecondition, match="offer the channel nccl: .*trusted_fabric"):
        freshet.Publisher("m", channels="nccl,zmq")
    with pytest.raises(freshet.Unavailable, match="offer the channel nccl: open"):  # There is no NCCL, or no GPU.
        freshet.Publisher("m", channels="nccl,zmq", trusted_fabric=True)
    opened = []
    monkeypatch.setattr("freshet.subscriber._core", types.SimpleNamespace(Subscriber=types.SimpleNamespace(
        open=lambda *given: opened.append(given) or _core.Subscriber.open(*given))))
    for trusted in (False, True):
        freshet.Subscriber("m", channel="nccl", trusted_fabric=trusted).close()
        assert opened[-1][-1] is trusted


def test_a_callback_is_told_of_the_version_that_comes_while_its_subscriber_is_opened(monkeypatch):
    class Late:
        @staticmethod
        def open(*given):
            core = _core.Subscriber.open(*given)
            core.wait_for(1, PATIENCE)
            return core

    told = []
    with freshet.Publisher("m") as publisher:
        publisher.publish(weights(), sync=True)
        monkeypatch.setattr("freshet.subscriber._core", types.SimpleNamespace(Subscriber=Late))
        with freshet.Subscriber("m", on_update=lambda update: told.append(update.version)):
            assert eventually(lambda: told == [1])


def test_the_callbacks_thread_ends_with_its_subscriber():
    subscriber = freshet.Subscriber("m", on_update=print)
    [thread] = [one for one in threading.enumerate() if one.name == "freshet m"]
    del subscriber
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_wait_ends_when_its_subscriber_is_closed():
    subscriber = freshet.Subscriber("m")
    raised = []

    def wait():
        try:
            subscriber.wait_for()
        except freshet.Error as error:
            raised.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    subscriber.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [type(error) for error in raised] == [freshet.FailedPrecondition] * 3


def test_threads_publish_and_read_side_by_side():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        publisher.publish(weights(0), sync=True)
        subscriber.wait_for(timeout=PATIENCE)
        torn = []

        def publish(first):
            for number in range(first, first + 20):
                publisher.publish(weights(number))

        def read():
            for _ in range(300):
                snapshot = subscriber.snapshot()
                if len({*snapshot["w"].ravel(), *snapshot["b"]}) != 1:
                    torn.append(snapshot.version)

        threads = [threading.Thread(target=publish, args=(100 * one,)) for one in range(2)]
        threads += [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not torn
        assert subscriber.wait_for(41, PATIENCE) == 41


def test_weights_in_two_calls():
    assert freshet.save_weights("two-calls", weights(4)) == 1
    came = freshet.load_weights("two-calls")
    assert came["w"][0, 0] == 4
    came["w"][0, 0] = 5  # Copies are the caller's.
    with pytest.raises(freshet.TimedOut):
        freshet.load_weights("nobody", timeout=0.01)


def test_other_threads_run_while_arrays_are_copied(folder):
    """publish(), put() and get() let go of the interpreter's lock."""
    big = {"w": np.ones(1 << 25, np.uint8)}
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)  # Lets go of the lock.

    def runs_meanwhile(call):
        for _ in range(100):  # The other thread must be woken while one of them is on its way.
            before = counted[0]
            call()
            if counted[0] > before:
                return True
        return False

    counter = threading.Thread(target=count)
    with freshet.Publisher("m") as publisher, freshet.Repository(folder + "/runs") as repository:
        bound = publisher.bind(big)
        bound.publish(sync=True)
        core = repository._core
        record = core.record(repository.put("m", big))
        read = [(0, np.empty(1 << 25, np.uint8))]
        switch = sys.getswitchinterval()
        counter.start()
        try:
            sys.setswitchinterval(1000.0)  # Nobody takes the lock away: whoever has it gives it up by itself.
            assert not runs_meanwhile(lambda: sum(range(1000)))
            assert runs_meanwhile(lambda: bound.publish(changed="all"))
            assert runs_meanwhile(lambda: core.read(record, read))
        finally:
            sys.setswitchinterval(switch)
            stop.set()
            counter.join()


def test_notebooks_show_tables_with_names_escaped():
    nasty = "<script>alert(1)</script>"
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m", label="<b>me") as subscriber:
        publisher.publish({nasty: np.zeros((2, 3), np.float32)}, metrics={"<i>": 2.5})
        subscriber.wait_for(timeout=PATIENCE)
        with subscriber.snapshot() as snapshot:
            shown = snapshot._repr_html_()
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown and "&lt;i&gt; 2.5" in shown and "(2, 3)" in shown
            assert "<script>" not in shown and "<i>" not in shown
        assert "closed" in snapshot._repr_html_()
        shown = publisher._repr_html_()
        assert "m@1" in shown and "&lt;b&gt;me" in shown and "<b>me" not in shown
        assert "m@1" in subscriber._repr_html_()
    assert "closed" in publisher._repr_html_() and "closed" in subscriber._repr_html_()


def test_notebooks_show_how_a_subscriber_follows():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        assert "<svg" not in subscriber._repr_html_(), "there is nothing to draw yet"
        for number in range(1, 4):
            subscriber.wait_for(publisher.publish(weights(number)).version, PATIENCE)
        # A version is served first and booked afterwards.
        assert eventually(lambda: len(subscriber._core.news().past()) == 3)
        past = subscriber._core.news().past()
        assert [version for version, _, _ in past] == [1, 2, 3]
        assert all(latency >= 0 and served > 1e9 for _, served, latency in past)
        shown = subscriber._repr_html_()
        picture = ElementTree.fromstring(shown[shown.index("<svg"):])
        lines = [one.get("points").split() for one in picture.iter("{http://www.w3.org/2000/svg}polyline")]
        assert len(lines) == 2 and all(len(points) == 7 for points in lines), "a step for each version, and one until now"
        for number in range(4, 600):
            subscriber.wait_for(publisher.publish(weights(number)).version, PATIENCE)
        assert eventually(lambda: subscriber._core.news().past()[-1][0] == 599)
        assert [version for version, _, _ in subscriber._core.news().past()] == list(range(88, 600))


def test_a_picture_of_freshness_says_what_is_behind():
    nasty = "</title><script>alert(1)</script>"
    # Versions 1 and 4 were served, after 1 and 2 seconds; 7 is known. Then somebody went back to 2.
    shown = freshness(nasty, [(1, 101.0, 1.0), (4, 106.0, 2.0), (2, 108.0, 9.0)], 7, now=110.0)
    picture = ElementTree.fromstring(shown)
    assert "<script>" not in shown and "{http://www.w3.org/2000/svg}script" not in [one.tag for one in picture.iter()]
    newest, served = ([tuple(map(float, point.split(","))) for point in one.get("points").split()]
                      for one in picture.iter("{http://www.w3.org/2000/svg}polyline"))
    heights = sorted({y for _, y in newest} | {y for _, y in served}, reverse=True)
    assert len(heights) == 4, "1, 2, 4 and 7"
    assert served[-1][1] == heights[1] and newest[-1][1] == heights[3]
    assert newest[0][0] < served[0][0] and newest[-1][0] == served[-1][0]
    assert freshness("m", [], 3) == ""


def test_bindings_of_one_model_may_have_any_order():
    a, b = np.zeros(3), np.zeros(2)
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        first, second = publisher.bind({"a": a, "b": b}), publisher.bind({"b": b, "a": a})
        first.publish(sync=True)
        b += 5
        receipt = second.publish(sync=True)
        subscriber.wait_for(receipt.version, timeout=PATIENCE)
        with subscriber.snapshot() as snapshot:
            assert snapshot["a"].tolist() == [0, 0, 0] and snapshot["b"].tolist() == [5, 5]


def test_a_version_is_captured_layer_by_layer():
    a, b, strided = np.zeros(3), np.zeros(2), np.zeros((4, 3)).T
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        bound = publisher.bind({"a": a, "b": b, "strided": strided})
        for wrong in (lambda: bound.capture(["a"]), bound.end):
            with pytest.raises(freshet.FailedPrecondition, match="begin"):
                wrong()
        for step in (1, 2, 3):
            bound.begin()
            for array in (strided, b, a):
                array[...] = step
            bound.capture(["strided"])
            bound.capture(["b"])
            strided[...] = b[...] = 99  # The next step has begun.
            receipt = bound.end(step=step, metrics={"loss": 0.5})
            subscriber.wait_for(receipt.version, timeout=PATIENCE)
            with subscriber.snapshot() as snapshot:
                assert snapshot.step == step
                for name in ("a", "b", "strided"):
                    assert (snapshot[name] == step).all(), name
        bound.begin()
        other = publisher.bind({"a": a, "b": b, "strided": strided})
        for wrong in (bound.begin, lambda: publisher.publish({"a": a, "b": b, "strided": strided}), other.end, other.begin):
            with pytest.raises(freshet.FailedPrecondition):
                wrong()
        with pytest.raises(freshet.InvalidArgument, match="nothing"):
            bound.capture(["nothing"])
        bound.abandon()
        bound.abandon()
        assert bound.publish(sync=True).version == 4


def test_a_binding_is_checked_again_when_the_model_became_another():
    w, wide = np.zeros(3), np.zeros(5)
    told = {"freshet_graph": 1, "layers": [{"name": "l", "class": "Parameter", "inputs": [],
                                            "tensors": {"w": {"dtype": "f64", "shape": [5], "key": "w"}}}], "outputs": ["l"]}
    with freshet.Publisher("m") as publisher, freshet.Publisher("other") as other, freshet.Subscriber("m") as subscriber:
        bound, grown = publisher.bind({"w": w}), publisher.bind({"w": wide})
        for step in (1, 2):
            w += 1
            assert bound.publish(step=step).version == step
        with pytest.raises(freshet.FailedPrecondition, match="tensor w"):
            grown.publish()
        assert grown.publish(graph=told).version == 3
        with pytest.raises(freshet.FailedPrecondition, match="tensor w"):
            bound.publish()
        wide += 7
        receipt = grown.publish(sync=True)
        subscriber.wait_for(receipt.version, timeout=PATIENCE)
        with subscriber.snapshot() as snapshot:
            assert snapshot["w"].tolist() == [7] * 5
        with pytest.raises(freshet.FailedPrecondition, match="another publisher"):
            other._core.publish(grown._core, 0, [], [], False, None, None, False)


def test_a_refused_publish_leaves_what_was_begun_alone():
    strided = np.zeros((400, 300)).T
    told = {"freshet_graph": 1, "layers": [{"name": "l", "class": "Parameter", "inputs": [], "tensors": {
        "w": {"dtype": "f64", "shape": [300, 400], "key": "w"}}}], "outputs": ["l"]}
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        bound = publisher.bind({"w": strided})
        bound.begin()
        with pytest.raises(freshet.FailedPrecondition, match="begun"):
            bound.publish(graph=told)
        gc.collect()
        fill = [np.full((300, 400), 9.0) for _ in range(3)]  # Takes the memory that the refused call gave back.
        strided[...] = 2
        receipt = bound.end()
        subscriber.wait_for(receipt.version, timeout=PATIENCE)
        with subscriber.snapshot() as snapshot:
            assert (snapshot["w"] == 2).all() and len(fill) == 3


def test_a_model_without_a_byte_is_refused_with_a_reason():
    with freshet.Publisher("m") as publisher, pytest.raises(freshet.InvalidArgument, match="are empty"):
        publisher.publish({"t": np.empty((3, 0, 2))})


def test_the_version_is_known_while_all_pins_are_held():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        held = []
        for step in range(1024):
            receipt = publisher.publish({"w": np.full(1, step)}, sync=True)
            subscriber.wait_for(receipt.version, timeout=PATIENCE)
            held.append(subscriber.snapshot())
        assert subscriber.version == 1024
