# SPDX-License-Identifier: Apache-2.0
"""Sinks: each published version is stored, and a program waits until its own is."""
import os
import shutil
import threading

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually


@pytest.fixture
def repo(folder):
    with freshet.Repository(folder + "/repo") as repository:
        yield repository


def test_a_sink_stores_what_is_published(repo):
    with freshet.Publisher("run") as publisher, repo.sink("run") as sink:
        for number in range(1, 4):
            publisher.publish({"w": np.full(5, number, np.float32), "still": np.zeros(9)}, step=number, sync=True)
            assert eventually(lambda: sink.status()["newest"] == number)
    assert [repo.get(f"run@{number}")["w"][0] for number in (1, 2, 3)] == [1, 2, 3]
    assert {one.tensor: one.owner for one in repo.owners("run@3")} == {"w": "run@3", "still": "run@1"}
    with pytest.raises(freshet.FailedPrecondition):
        sink.status()


def test_a_program_waits_until_its_sink_has_the_last_version(repo):
    with freshet.Publisher("run") as publisher:
        sink = repo.sink("run")
        for number in range(1, 6):
            receipt = publisher.publish({"w": np.full(5, number, np.float32)}, step=number)
        assert sink.wait_for(receipt.version, PATIENCE) == 5 and repo.get("run@5")["w"][0] == 5
        assert sink.wait_for(1) == 5
        with pytest.raises(freshet.TimedOut, match="version 6 was not stored"):
            sink.wait_for(6, 0.01)
        raised = []

        def wait():
            try:
                sink.wait_for(6)
            except freshet.FailedPrecondition as error:
                raised.append(str(error))

        waiting = threading.Thread(target=wait)
        waiting.start()
        sink.close()
        waiting.join(PATIENCE)
        assert raised == ["the sink was closed"]
        with repo.sink("run") as sink:
            assert sink.wait_for(5, PATIENCE) == 5, "stored in a life before"
    with repo.sink("run") as sink, pytest.raises(freshet.TimedOut, match="no publisher of the model answers"):
        sink.wait_for(5, 0.01)  # The next publisher's fifth may be another one.


def test_numbers_of_before_the_host_was_started_again_do_not_count(repo, run_dir):
    """The publisher gives 1, 2 … anew; the repository goes on with 4, 5 …"""
    def publish(publisher, value):
        return publisher.publish({"w": np.full(5, value, np.float32)}, sync=True).version

    with freshet.Publisher("run") as publisher, repo.sink("run") as sink:
        assert [publish(publisher, value) for value in (1, 2, 3)] == [1, 2, 3]
        assert sink.wait_for(3, PATIENCE) == 3
    os.remove(os.path.join(run_dir, "run.number"))
    shutil.rmtree(run_dir + "-state")  # The host was made anew.
    with freshet.Publisher("run") as publisher:
        assert publish(publisher, 4) == 1
        with repo.sink("run") as sink:
            newest = sink.wait_for(1, PATIENCE)
            assert newest == 4 and repo.get("run@4")["w"][0] == 4
            with pytest.raises(freshet.TimedOut, match="version 3 was not stored"):
                sink.wait_for(3, 0.01)
            published = publish(publisher, 5)
            assert sink.wait_for(published, PATIENCE) == 5
            assert sink.status()["published"] == published and sink.status()["newest"] == 5
        with repo.sink("run") as sink:
            assert sink.wait_for(published, PATIENCE) == 5, "stored in a life before"


def stored(repo, model="run"):
    return [row.version.number for row in repo.versions(model) if not row.retired]


def test_a_sink_keeps_the_newest_versions_and_those_that_are_named(repo):
    for wrong in (0, -1, True, 1.5, "3"):
        with pytest.raises(freshet.InvalidArgument, match="keep="):
            repo.sink("run", keep=wrong)
    for number in range(1, 4):
        repo.put("run", {"w": np.full(500, number, np.float32), "still": np.zeros(900)}, ancestor=f"run@{number - 1}" if number > 1 else None)
    repo.set_alias("run", "good", 2)
    with freshet.Publisher("run", resume=(repo, "run")) as publisher, repo.sink("run", keep=3) as sink:
        for number in range(4, 16):
            receipt = publisher.publish({"w": np.full(500, number, np.float32), "still": np.zeros(900)}, step=number, sync=True)
            assert sink.wait_for(receipt.version, PATIENCE) == number
            if number == 5:
                repo.pin("run@5", "a reader")
    assert stored(repo) == [2, 5, 13, 14, 15], "an alias and a pin keep two"
    assert repo.gc().freed_bytes == 0, "the sink gave the room back"
    assert [row.version.number for row in repo.lineage("run@15")] == list(range(15, 0, -1)), "the lineage has all"
    assert (repo.get("run@15")["still"] == 0).all() and repo.owners("run@15")[1].owner == "run@1", "what is inherited stays"

    repo.unpin("run@5", "a reader")
    repo.set_alias("run", "good", 0)
    with freshet.Publisher("run", resume=(repo, "run")) as publisher, repo.sink("run", keep=2) as sink:
        receipt = publisher.publish({"w": np.zeros(500, np.float32), "still": np.zeros(900)}, sync=True)
        assert sink.wait_for(receipt.version, PATIENCE) == 16
        assert eventually(lambda: stored(repo) == [15, 16]), "while it runs"
    with repo.sink("run", keep=2) as sink:
        sink.close()
        sink.close()


def test_a_sink_that_keeps_some_ends_with_its_last_reference_and_with_the_program(repo, program):
    sink = repo.sink("run", keep=2)
    thread = sink._keeper._thread
    del sink
    thread.join(PATIENCE)
    assert not thread.is_alive()
    ran = program("""
        import freshet, numpy as np, sys
        repo = freshet.Repository(sys.argv[1])
        sink = repo.sink("other", keep=1)
        publisher = freshet.Publisher("other")
        for number in range(3):
            sink.wait_for(publisher.publish({"w": np.zeros(9)}, sync=True).version, 60)
        print("ended", flush=True)
        """, os.path.dirname(repo.place) + "/another")
    assert ran.line() == "ended"
    code, _, complaints = ran.end()
    assert code == 0 and not complaints, complaints
