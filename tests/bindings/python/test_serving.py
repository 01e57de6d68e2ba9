# SPDX-License-Identifier: Apache-2.0
"""freshet.serving.middleware, called as a server calls it."""
import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
import threading

import freshet
import numpy as np
import pytest
from asgi_calls import answer_to, call, respond, scope_of
from conftest import PATIENCE, eventually
from freshet import serving
from freshet.serving._metrics import text_of

COMMAND = os.path.join(os.path.dirname(sys.executable), "freshet")


def weights(number):
    return {"w": np.full(1000, number, np.float32)}


def publish(pair, number):
    publisher, subscriber = pair
    version = publisher.publish(weights(number), step=10 * number, metrics={"loss": 1 / number}).version
    assert subscriber.wait_for(version, PATIENCE) == version
    return version


async def echo(scope, receive, send):
    """Answers with the value of the weights that it was given."""
    await respond(send, str(int(scope["freshet.snapshot"]["w"][7])).encode(), headers=[(b"x-weight-version", b"999"), (b"x-own", b"1")])


def held(pair):
    """The versions that the publisher may not overwrite."""
    return [version for one in pair[0].stat()["subscribers"] for version in one["held"]]


def test_the_answer_and_its_header_are_of_one_version(pair):
    publish(pair, 5)
    app = serving.middleware(echo, pair[1])
    answer = answer_to(app)
    assert (answer.status, answer.body, answer.header("x-weight-version"), answer.header("x-own")) == (200, b"5", "1", "1")
    assert answer.header("x-request-id") is None
    publish(pair, 6)
    assert (answer_to(app).body, answer_to(app).header("x-weight-version")) == (b"6", "2")
    scope = scope_of()

    async def send(message):
        pass

    asyncio.run(app(scope, None, send))
    assert "freshet.snapshot" not in scope, "the scope of what stands outside was changed"


def test_a_stream_keeps_its_version_until_the_last_byte(pair):
    publish(pair, 5)
    kept = []

    async def stream(scope, receive, send):
        snapshot = scope["freshet.snapshot"]
        kept.append(snapshot)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d," % snapshot["w"][0], "more_body": True})
        publish(pair, 6)
        publish(pair, 7)
        assert 1 in held(pair)
        await send({"type": "http.response.body", "body": b"%d" % snapshot["w"][0]})
        with pytest.raises(freshet.FailedPrecondition):
            snapshot["w"]

    answer = answer_to(serving.middleware(stream, pair[1]))
    assert (answer.body, answer.header("x-weight-version")) == (b"5,5", "1")
    assert eventually(lambda: 1 not in held(pair))
    assert answer_to(serving.middleware(echo, pair[1])).body == b"7"


def test_the_served_version_stays_mapped_and_an_older_one_is_let_go(pair):
    megabytes = np.ones(4 << 20, np.float32)
    pair[0].publish({"w": megabytes})
    pair[1].wait_for(1, PATIENCE)

    async def read_all(scope, receive, send):
        await respond(send, str(scope["freshet.snapshot"]["w"].sum()).encode())

    async def serve():
        app = serving.middleware(read_all, pair[1])
        await call(app)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            await call(app)
        # The kernel maps 16 pages with a fault: 20 mappings of 16 MiB would be 5120 faults.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 2560
        assert held(pair) == [1]
        pair[0].publish({"w": 2 * megabytes})
        await pair[1].updated()
        while 1 in held(pair):  # No request comes, and the trainer gets its memory back.
            await asyncio.sleep(0.001)
        faults = []
        for version in range(3, 15):  # Pages of all the memory that versions lie in by turns were used by then.
            assert (await call(app)).header("x-weight-version") == str(version - 1)
            pair[0].publish({"w": version * megabytes})
            await pair[1].updated()
            while held(pair) == [version - 1]:
                await asyncio.sleep(0.001)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            assert (await call(app)).body == str(version * megabytes.sum()).encode()
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        assert min(faults[6:]) < 128, f"a new version begins without pages: {faults}"
        pair[1].close()
        while held(pair):
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(serve(), PATIENCE))


def test_each_event_loop_of_a_process_answers_right_and_lets_old_versions_go(pair):
    """One app in two loops, each with a thread of its own: the first one holds the served version, and after its end the other."""
    publish(pair, 5)
    app = serving.middleware(echo, pair[1])
    loops = [asyncio.new_event_loop() for _ in range(2)]
    threads = [threading.Thread(target=loop.run_forever, daemon=True) for loop in loops]

    def ask(loop):
        answer = asyncio.run_coroutine_threadsafe(call(app), loop).result(PATIENCE)
        return int(answer.body), int(answer.header("x-weight-version"))

    def end(loop, thread):
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()

    for thread in threads:
        thread.start()
    try:
        for number in (5, 6, 7):
            if number > 5:
                publish(pair, number)
                assert eventually(lambda: held(pair) == [number - 4]), "no loop holds the version of before"
            assert [ask(loop) for loop in loops * 3] == [(number, number - 4)] * 6

        async def watches():
            return app._kept._is_watched_by(asyncio.get_running_loop())

        assert [asyncio.run_coroutine_threadsafe(watches(), loop).result(PATIENCE) for loop in loops] == [True, False]
        # Many at a time, while versions come.
        asked = [asyncio.run_coroutine_threadsafe(call(app), loops[nth % 2]) for nth in range(200)]
        publish(pair, 8)
        asked += [asyncio.run_coroutine_threadsafe(call(app), loops[nth % 2]) for nth in range(200)]
        for answer in (one.result(PATIENCE) for one in asked):
            assert int(answer.body) - int(answer.header("x-weight-version")) == 4
    finally:
        end(loops[0], threads[0])
    try:
        publish(pair, 9)
        assert [ask(loops[1]) for _ in range(3)] == [(9, 5)] * 3
        assert app._kept._loop is loops[1] and app._kept.version == 5
        publish(pair, 10)
        assert eventually(lambda: held(pair) == [6]), "the loop that took over lets the version go"
    finally:
        end(loops[1], threads[1])


@pytest.mark.parametrize("end", ["cancelled", "the client went away"])
def test_a_cut_stream_gives_its_version_up(pair, end):
    publish(pair, 5)
    kept = []

    async def stream(scope, receive, send):
        kept.append(scope["freshet.snapshot"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"more", "more_body": True})
            await asyncio.sleep(0)

    app = serving.middleware(stream, pair[1])

    async def cut():
        count = 0

        async def sent(message):
            nonlocal count
            count += 1
            if count == 3:
                if end == "cancelled":
                    task.cancel()
                else:
                    raise OSError("broken pipe")

        task = asyncio.ensure_future(call(app, sent=sent))
        with pytest.raises((asyncio.CancelledError, OSError)):
            await task

    asyncio.run(cut())
    assert "closed" in repr(kept[0])


def test_an_app_that_raises_is_answered_by_500_with_the_version(pair):
    publish(pair, 5)
    kept = []

    async def broken(scope, receive, send):
        kept.append(scope["freshet.snapshot"])
        raise RuntimeError("of the app")

    messages = []

    async def sent(message):
        messages.append(message)

    with pytest.raises(RuntimeError, match="of the app"):
        asyncio.run(call(serving.middleware(broken, pair[1]), sent=sent))
    assert messages[0]["status"] == 500 and (b"x-weight-version", b"1") in messages[0]["headers"]
    assert "closed" in repr(kept[0])

    async def broken_later(scope, receive, send):
        kept.append(scope["freshet.snapshot"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("of the app")

    messages.clear()
    with pytest.raises(RuntimeError, match="of the app"):
        asyncio.run(call(serving.middleware(broken_later, pair[1]), sent=sent))
    assert [message.get("status") for message in messages] == [200], "an answer that has begun gets no second begin"
    assert "closed" in repr(kept[1])


def test_a_version_that_is_not_served_is_409_with_what_is_kept(pair):
    publish(pair, 5)
    publish(pair, 6)
    app = serving.middleware(echo, pair[1])
    for headers in ({"x-min-version": "2"}, {"x-min-version": "0"}, {"x-exact-version": "2"},
                    {"x-min-version": "1", "x-exact-version": "2"}):
        assert answer_to(app, headers=headers.items()).status == 200, headers
    for headers in ({"x-min-version": "3"}, {"x-exact-version": "1"}, {"x-exact-version": "3"}, {"x-exact-version": "0"},
                    {"x-min-version": "1", "x-exact-version": "1"}, {"x-min-version": "9223372036854775807"}):
        answer = answer_to(app, headers=headers.items())
        assert answer.status == 409 and answer.header("x-weight-version") == "2", headers
        told = answer.json()
        assert told["kept"] == [2] and told["model"] == "m" and "m@2" in told["error"]
        assert (told["min_version"], told["exact_version"]) == tuple(
            int(headers[name]) if name in headers else None for name in ("x-min-version", "x-exact-version"))


def test_a_header_that_is_no_number_is_400(pair):
    publish(pair, 5)
    app = serving.middleware(echo, pair[1])
    for name in ("x-min-version", "x-exact-version", "x-max-wait"):
        for value in ("", "-1", "1e3", "seven", "1 ", "+1", "0x1", "nan", "9" * 30, "\u00b2", "1_0"):
            answer = answer_to(app, headers=[(name, value)])
            assert answer.status == 400, (name, value)
            assert name in answer.json()["error"] and repr(value.encode("latin-1"))[2:-1][:40] in answer.json()["error"]


def test_a_header_twice_is_400(pair):
    publish(pair, 5)
    answer = answer_to(serving.middleware(echo, pair[1]), headers=[("x-min-version", "1"), ("x-min-version", "2")])
    assert answer.status == 400 and "x-min-version" in answer.json()["error"]


def test_a_request_waits_for_its_minimum_while_others_are_answered(pair):
    publish(pair, 5)
    app = serving.middleware(echo, pair[1])

    async def both():
        waiting = asyncio.ensure_future(call(app, headers=[("x-min-version", "2"), ("x-max-wait", str(PATIENCE))]))
        meanwhile = [await call(app) for _ in range(3)]
        assert not waiting.done() and [answer.body for answer in meanwhile] == [b"5"] * 3
        pair[0].publish(weights(6))
        return await waiting

    app_with_patience = serving.middleware(echo, pair[1], max_wait=PATIENCE)
    answer = asyncio.run(both())
    assert (answer.status, answer.body, answer.header("x-weight-version")) == (200, b"6", "2")
    late = answer_to(app_with_patience, headers=[("x-min-version", "3"), ("x-max-wait", "0.02")])
    assert late.status == 409 and "after a wait of 0.0" in late.json()["error"]
    none = serving.middleware(echo, pair[1], max_wait=0)
    assert "wait" not in answer_to(none, headers=[("x-min-version", "3"), ("x-max-wait", "5")]).json()["error"]


def test_before_the_first_version_it_is_503(pair):
    async def hello(scope, receive, send):
        await respond(send, b"hello")

    app = serving.middleware(hello, pair[1], unpinned=["/hello"])
    answer = answer_to(app)
    assert answer.status == 503 and answer.json()["model"] == "m" and "no version of m" in answer.json()["error"]
    assert answer.header("x-weight-version") is None and answer.header("retry-after") == "1"
    assert (answer_to(app, "/hello").status, answer_to(app, "/hello").body) == (200, b"hello")
    pair[1].close()
    assert answer_to(app).status == 503 and "closed" in answer_to(app).json()["error"]
    assert answer_to(app, "/freshet/ready").status == answer_to(app, "/freshet/metrics").status == 503


def test_the_readiness_route_tells_stale_from_fresh():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m", staged=True) as subscriber:
        app = serving.middleware(echo, subscriber)
        strict = serving.middleware(echo, subscriber, ready="/up", stale_after=0)

        def state():
            answer = answer_to(app, "/freshet/ready")
            return answer.status, answer.json()["state"], answer.json()["versions_behind"]

        assert state() == (503, "none", 0)
        publisher.publish(weights(1))
        subscriber.wait_for(1, PATIENCE)
        # A member is stale until its publisher has confirmed the membership.
        assert eventually(lambda: state() == (200, "fresh", 0)) and answer_to(strict, "/up").status == 200
        publisher.publish(weights(2))  # Waits to be staged.
        assert eventually(lambda: state() == (200, "stale", 1))
        assert answer_to(strict, "/up").status == 503 and answer_to(strict, "/up").json()["stale_s"] > 0
        subscriber.stage(2, PATIENCE)
        subscriber.commit()
        assert eventually(lambda: state() == (200, "fresh", 0)) and answer_to(strict, "/up").status == 200
        assert answer_to(serving.middleware(echo, subscriber, ready=None), "/freshet/ready").body == b"2", "without the route it is the app's"


def test_a_member_without_a_version_is_not_stale():
    with freshet.Subscriber("m", staged=True) as subscriber:
        app = serving.middleware(echo, subscriber)
        assert eventually(lambda: subscriber.status()["stale"]), "no publisher has confirmed the membership"
        answers = [answer_to(app, "/freshet/ready").json() for _ in range(3)]  # An earlier one begins no count.
        assert [(answer["state"], answer["stale_s"]) for answer in answers] == [("none", 0.0)] * 3


@pytest.mark.parametrize("kind", ["websocket", "lifespan", "something new"])
def test_what_is_no_request_passes_untouched(pair, kind):
    seen = []

    async def app(*arguments):
        seen.extend(arguments)

    given = {"type": kind, "path": "/freshet/ready", "headers": []}, object(), object()
    asyncio.run(serving.middleware(app, pair[1])(*given))
    assert all(a is b for a, b in zip(seen, given)) and len(seen) == 3


def test_the_metrics_are_what_prometheus_reads(pair):
    parser = pytest.importorskip("prometheus_client.parser")
    publish(pair, 5)
    publish(pair, 6)
    app = serving.middleware(echo, pair[1])
    answer_to(app)
    answer_to(app, headers=[("x-min-version", "9")])
    answer = answer_to(app, "/freshet/metrics")
    assert answer.header("content-type").startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in parser.text_string_to_metric_families(answer.body.decode())}
    values = {sample.name: sample.value for family in families.values() for sample in family.samples if sample.labels == {"model": "m"}}
    status = pair[1].status()
    assert values["freshet_served_version"] == values["freshet_newest_version"] == 2
    assert values["freshet_versions_behind"] == values["freshet_staleness_seconds"] == values["freshet_update_failures_total"] == 0
    assert 0 <= values["freshet_served_version_age_seconds"] < PATIENCE
    assert values["freshet_updates_total"] == status["updates"] and values["freshet_fetched_bytes_total"] == status["bytes_fetched"]
    assert values["freshet_requests_answered_total"] == 1
    refused = {sample.labels["code"]: sample.value for sample in families["freshet_requests_refused"].samples}
    assert refused == {"400": 0, "409": 1, "503": 0}
    assert {family.type for name, family in families.items() if name in ("freshet_updates", "freshet_gaps")} == {"counter"}
    assert all(family.documentation for family in families.values())
    with freshet.Subscriber("another") as another:
        both = list(parser.text_string_to_metric_families(serving.metrics(pair[1], another)))
    served = next(family for family in both if family.name == "freshet_served_version")
    assert {sample.labels["model"]: sample.value for sample in served.samples} == {"m": 2, "another": 0}
    with freshet.Subscriber("m") as twin, pytest.raises(freshet.InvalidArgument, match="two subscribers of m"):
        serving.metrics(pair[1], twin)


def test_label_values_are_escaped():
    parser = pytest.importorskip("prometheus_client.parser")
    hostile = 'a"b\\c\nd{}=, \\n'
    text = text_of([("freshet_x", "gauge", "A value.", [({"model": hostile, "code": "1"}, 2.5)])])
    [family] = parser.text_string_to_metric_families(text)
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"model": hostile, "code": "1"}, 2.5)]


@pytest.mark.parametrize("wrong", [{"ready": "ready"}, {"metrics": 3}, {"max_wait": -1}, {"max_wait": float("nan")}, {"stale_after": "x"},
                                   {"unpinned": "/health"}, {"journal": "answers.jsonl"}])
def test_wrong_options_are_said_at_once(pair, wrong):
    with pytest.raises(freshet.InvalidArgument, match=next(iter(wrong))):
        serving.middleware(echo, pair[1], **wrong)
    with pytest.raises(freshet.InvalidArgument, match="subscriber"):
        serving.middleware(echo, pair[0])


def test_the_journal_has_a_line_for_each_answer(pair, folder):
    publish(pair, 5)
    with serving.Journal(folder + "/answers.jsonl") as journal:
        app = serving.middleware(echo, pair[1], journal=journal)
        assert answer_to(app, headers=[("x-request-id", "mine-1")]).header("x-request-id") == "mine-1"
        made = [answer_to(app, headers=headers).header("x-request-id")
                for headers in ((), [("x-request-id", "a b")], [("x-request-id", "x" * 129)], [("x-request-id", "")])]
        assert len(set(made)) == 4 and all(made)
        assert answer_to(app, headers=[("x-exact-version", "9"), ("x-request-id", "refused")]).status == 409
        lines = [json.loads(line) for line in open(journal.path, encoding="utf-8")]
        assert [line["request"] for line in lines] == ["mine-1", *made]
        assert {(line["model"], line["version"], line["step"], line["versions_behind"], line["metrics"]["loss"]) for line in lines} == \
            {("m", 1, 50, 0, 0.2)}
        metrics = answer_to(app, "/freshet/metrics").body.decode()
        assert 'freshet_journal_lines_lost_total{model="m"} 0' in metrics
    answer = answer_to(app)
    assert (answer.status, answer.body) == (200, b"5"), "a closed journal fails no answer"


@pytest.mark.skipif(not os.path.exists(COMMAND), reason="without the command freshet beside Python")
def test_top_tells_prometheus_of_each_subscriber(pair, folder):
    parser = pytest.importorskip("prometheus_client.parser")
    publisher, subscriber = pair
    publish(pair, 5)
    with freshet.Subscriber("m", label='ho"s\\tile', staged=True) as first, freshet.Subscriber("m", label='ho"s\\tile') as twin:
        first.wait_for(1, PATIENCE)
        publish(pair, 6)
        twin.wait_for(2, PATIENCE)

        def families():
            told = subprocess.run([COMMAND, "top", "m", "--metrics"], text=True, capture_output=True)
            assert told.returncode == 0, told.stderr
            return {family.name: family for family in parser.text_string_to_metric_families(told.stdout)}

        def behind():
            return sorted((sample.labels["subscriber"].split("#")[0], sample.value)
                          for sample in families()["freshet_versions_behind"].samples)

        own = next(one["label"] for one in publisher.stat()["subscribers"] if one["label"] != 'ho"s\\tile')
        assert eventually(lambda: behind() == sorted([(own, 0), ('ho"s\\tile', 0), ('ho"s\\tile', 1)])), behind()
        found = families()
        labels = [tuple(sorted(sample.labels.items())) for sample in found["freshet_served_version"].samples]
        assert len(set(labels)) == 3 and {dict(one)["pid"] for one in labels} == {str(os.getpid())}
        stat = publisher.stat()
        assert [sample.value for sample in found["freshet_newest_version"].samples] == [2]
        assert found["freshet_updates"].type == "counter" and found["freshet_updates"].samples[0].value == stat["versions_published"]
        assert found["freshet_published_bytes"].samples[0].value == stat["bytes_published"]
        assert found["freshet_activation_failed"].samples[0].value == 0
        # The member that has only staged the second version is stale since the second publish, and goes on being so.
        stale = {sample.labels["subscriber"].split("#")[0]: sample.value for sample in found["freshet_staleness_seconds"].samples if sample.value}
        assert set(stale) == {'ho"s\\tile'} and 0 < min(stale.values()) < PATIENCE
        assert {sample.value for sample in found["freshet_update_failures"].samples} == {0}
        known = [one["staleness"] for one in publisher.stat()["subscribers"] if one["staleness"]]
        assert known and known[0] > min(stale.values()), "and time goes on"
    assert subprocess.run([COMMAND, "top", "m", "--metrics", "--json"], capture_output=True).returncode == 2
    assert subprocess.run([COMMAND, "top", "none", "--metrics"], capture_output=True).returncode == 3
