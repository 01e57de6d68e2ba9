# SPDX-License-Identifier: Apache-2.0
"""The journal of answers: whole lines or none, bounded, and read past by `freshet why` where it is damaged."""
import glob
import json
import logging
import os
import subprocess
import sys

import freshet
import numpy as np
import pytest
from conftest import PATIENCE, eventually
from freshet.serving import Journal

COMMAND = os.path.join(os.path.dirname(sys.executable), "freshet")


@pytest.fixture
def snapshot(pair):
    pair[0].publish({"w": np.zeros(4, np.float32)}, step=7, metrics={"loss": 0.5, "nan": float("nan")}, tags={"schedule": 'the "gain"'})
    pair[1].wait_for(1, PATIENCE)
    with pair[1].snapshot() as taken:
        yield taken


def lines_of(path):
    """All lines, oldest first. A cut line, or one that is no JSON, fails."""
    text = "".join(open(name, encoding="utf-8").read() for name in sorted(glob.glob(path + ".*"), reverse=True) + [path])
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def why(*arguments, **environment):
    return subprocess.run([COMMAND, "why", *arguments], text=True, capture_output=True, env=dict(os.environ, **environment))


def test_a_line_has_what_is_known_of_the_version(snapshot, folder):
    with Journal(folder + "/j") as journal:
        assert journal.record('r"1', snapshot) is True
        [line] = lines_of(folder + "/j")
    assert list(line) == ["request", "model", "version", "served_unix_ns", "versions_behind", "step", "metrics", "schedule"]
    assert (line["request"], line["model"], line["version"], line["step"], line["schedule"]) == ('r"1', "m", 1, 7, 'the "gain"')
    assert line["metrics"] == {"loss": 0.5, "nan": None}
    assert abs(line["served_unix_ns"] / 1e9 - os.stat(folder + "/j").st_mtime) < PATIENCE


def test_a_bad_id_is_an_error_and_no_line(snapshot, folder):
    with Journal(folder + "/j") as journal:
        for request_id in ("", "x" * 129, "a\nb", "a\x1bb", "\ud800", 7, None):
            with pytest.raises(freshet.InvalidArgument, match="request's id"):
                journal.record(request_id, snapshot)
        with pytest.raises(freshet.InvalidArgument, match="snapshot"):
            journal.record("r", {"w": 1})
        assert os.path.getsize(folder + "/j") == 0 and journal.lost == 0
        snapshot.close()
        with pytest.raises(freshet.FailedPrecondition, match="closed"):
            journal.record("r", snapshot)
    with pytest.raises(freshet.FailedPrecondition, match="closed"):
        journal.record("r", snapshot)


def test_places_that_are_no_files_are_said(folder):
    os.mkfifo(folder + "/pipe")
    with pytest.raises(freshet.InvalidArgument, match="no regular file"):
        Journal(folder + "/pipe")
    with pytest.raises(freshet.Error, match="nowhere"):
        Journal(folder + "/nowhere/j")
    with pytest.raises(freshet.Error, match="directory"):
        Journal(folder)
    with pytest.raises(freshet.InvalidArgument, match="null character"):
        Journal(folder + "/j\0k")
    with pytest.raises(freshet.InvalidArgument, match="1 to 100 files"):
        Journal(folder + "/j", files_max=0)


def test_it_stays_within_its_bounds(snapshot, folder):
    with Journal(folder + "/j", bytes_max=1 << 16, files_max=3) as journal:
        for number in range(3000):
            assert journal.record(f"r{number}", snapshot)
        files = glob.glob(folder + "/j*")
        assert sorted(os.path.basename(name) for name in files) == ["j", "j.1", "j.2"]
        assert all(os.path.getsize(name) < (1 << 16) + 8192 for name in files)
        kept = [line["request"] for line in lines_of(folder + "/j")]
        assert kept == [f"r{number}" for number in range(3000 - len(kept), 3000)], "the newest lines stay, each once"
        os.remove(folder + "/j")
        assert journal.record("after", snapshot) and lines_of(folder + "/j")[-1]["request"] == "after", "a removed file is made again"


def test_processes_share_a_path(program, folder):
    text = """
        import sys, freshet, numpy as np
        from freshet.serving import Journal
        name, path = sys.argv[1:]
        with freshet.Publisher(name) as publisher, freshet.Subscriber(name) as subscriber:
            publisher.publish({"w": np.zeros(4, np.float32)})
            subscriber.wait_for(timeout=60)
            with Journal(path, bytes_max=1 << 16, files_max=50) as journal, subscriber.snapshot() as snapshot:
                print("ready", flush=True)
                sys.stdin.readline()
                for number in range(4000):
                    assert journal.record(f"{name}-{number}", snapshot)
    """
    both = [program(text, name, folder + "/j") for name in ("a", "b")]
    for one in both:
        assert one.line() == "ready"
    for one in both:
        one.go_on()
    for one in both:
        code, _, complaint = one.end()
        assert code == 0, complaint
    found = [line["request"] for name in [folder + "/j", *glob.glob(folder + "/j.*")] for line in map(json.loads, open(name))]
    assert sorted(found) == sorted(f"{name}-{number}" for name in "ab" for number in range(4000))
    assert len(glob.glob(folder + "/j.*")) > 5


def test_a_full_disk_fails_no_answer_and_is_said_once(snapshot, folder, caplog):
    with caplog.at_level(logging.WARNING, "freshet"), Journal("/dev/full") as journal:
        assert [journal.record(f"r{number}", snapshot) for number in range(100)] == [False] * 100
        assert journal.lost == 100
        assert eventually(lambda: "No space left on device" in caplog.text)
    assert caplog.text.count("No space left") == 1


def test_a_line_that_a_full_disk_cuts_is_taken_back(program, folder):
    one = program("""
        import resource, signal, sys, freshet, numpy as np
        from freshet.serving import Journal
        with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
            publisher.publish({"w": np.zeros(4, np.float32)})
            subscriber.wait_for(timeout=60)
            with Journal(sys.argv[1]) as journal, subscriber.snapshot() as snapshot:
                assert journal.record("whole", snapshot)
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))    # The kernel writes so much of a line, and no more.
                assert not journal.record("cut", snapshot) and not journal.record("none", snapshot)
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                assert journal.record("after", snapshot) and journal.lost == 2
    """, folder + "/j")
    code, _, complaint = one.end()
    assert code == 0, complaint
    assert [line["request"] for line in lines_of(folder + "/j")] == ["whole", "after"]


def test_a_child_makes_its_own(snapshot, folder):
    with Journal(folder + "/j") as journal:
        pid = os.fork()
        if pid == 0:
            try:
                journal.record("child", snapshot)
            except freshet.FailedPrecondition:
                os._exit(3)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert journal.record("parent", snapshot)
    assert [line["request"] for line in lines_of(folder + "/j")] == ["parent"]


@pytest.mark.skipif(not os.path.exists(COMMAND), reason="without the command freshet beside Python")
def test_why_finds_an_answer_and_where_its_version_came_from(pair, folder):
    publisher, subscriber = pair
    repository = freshet.Repository(folder + "/runs")
    with repository.sink("m") as sink, Journal(folder + "/j") as journal:
        for number in (1, 2, 3):
            publisher.publish({"a": np.zeros(4, np.float32), "b": np.full(4, number, np.float32)}, step=number * 10,
                              metrics={"loss": 1 / number}, tags={"schedule": "gain 3 > cost 1"})
            subscriber.wait_for(number, PATIENCE)
            sink.wait_for(number, PATIENCE)
            with subscriber.snapshot() as snapshot:
                journal.record(f"r{number}", snapshot)
    repository.close()
    told = why("r3", "--journal", folder + "/j", "--repo", folder + "/runs", "--json")
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    lineage = subprocess.run([COMMAND, "repo", "lineage", "m@3", "--repo", folder + "/runs", "--json"], text=True, capture_output=True)
    assert answer["lineage"] == json.loads(lineage.stdout) and len(answer["lineage"]) == 3
    assert {key: answer[key] for key in ("request", "model", "version", "versions_behind", "step", "schedule")} == \
        {"request": "r3", "model": "m", "version": 3, "versions_behind": 0, "step": 30, "schedule": "gain 3 > cost 1"}
    assert answer["metrics"] == {"loss": 1 / 3}
    assert {writer["version"]: writer["names"] for writer in answer["writers"]} == {"m@3": ["b"], "m@1": ["a"]}
    # The line that goes on is one that can be run.
    line = answer["bisect"].replace("./eval.sh {}", "case {} in *m@1.*) exit 0;; *) exit 1;; esac")
    ran = subprocess.run(line.replace("freshet", COMMAND, 1), shell=True, text=True, capture_output=True)
    assert ran.returncode == 0 and "first bad: m@2" in ran.stdout, ran.stderr
    shown = why("r3", "--journal", folder + "/j", FRESHET_REPO=folder + "/runs").stdout
    assert "m@3 gave the answer" in shown and "gain 3 > cost 1" in shown and "freshet bisect m" in shown
    assert why("r4", "--journal", folder + "/j").returncode == 3
    assert why("r3", "--journal", folder + "/none").returncode == 3
