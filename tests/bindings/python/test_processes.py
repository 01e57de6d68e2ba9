# SPDX-License-Identifier: Apache-2.0
"""Processes, forks and interpreters that end."""
import os
import re
import signal

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually, stand_still

PUBLISHER = """
    import sys, freshet, numpy as np
    with freshet.Publisher("digits") as pub:
        pub.publish({"w": np.zeros((64, 10), np.float32)}, step=1, metrics={"loss": 2.3})
        print("published")
        sys.stdin.read()
"""


def test_the_first_lines_of_the_readme_work_as_they_stand(program, folder, monkeypatch):
    with open(os.path.join(os.path.dirname(__file__), "..", "..", "..", "README.md"), encoding="utf-8") as file:
        blocks = re.findall(r"<!-- python: (\w+) -->\n+```python\n(.*?)```", file.read(), re.DOTALL)
    blocks = dict(blocks)
    assert set(blocks) == {"publisher", "subscriber", "repository"}
    publisher = program(blocks["publisher"])
    assert publisher.process.stdout.read(len("published")) == "published"
    subscriber = program(blocks["subscriber"])
    assert subscriber.line() == "1 (64, 10) 2.3"
    assert subscriber.end()[0] == 0
    monkeypatch.chdir(folder)
    graph = {"freshet_graph": 1, "layers": [{"name": "dense", "class": "Dense", "config": {}, "tensors": {
        "kernel": {"key": "w", "shape": [3], "dtype": "f32"}}}]}
    with freshet.Repository("runs/") as first:
        first.put("cand-1", {"w": np.ones(3, np.float32)}, graph=graph, quality=0.9)
    names = {"freshet": freshet, "graph": graph, "new": {"w": np.zeros(3, np.float32)}}
    exec(blocks["repository"], names)
    assert names["v"] == "cand-7@1" and names["weights"]["w"].tolist() == [1, 1, 1]
    names["repo"].close()


def test_a_publisher_that_ends_at_once_is_followed_by_who_waited(program):
    """The lines as they stand, each process its own."""
    for version in range(1, 4):
        subscriber = program("""
            import freshet
            with freshet.Subscriber("digits") as sub:
                print("waits")
                sub.wait_for(timeout=10)
                with sub.snapshot() as s:
                    print(s.version, s["w"].shape, s.metrics["loss"])
        """)
        assert subscriber.line() == "waits"
        publisher = program("""
            import freshet, numpy as np
            with freshet.Publisher("digits") as pub:
                pub.publish({"w": np.zeros((64, 10), np.float32)}, step=1, metrics={"loss": 2.3})
        """)
        assert subscriber.line() == f"{version} (64, 10) 2.3"
        assert subscriber.end()[0] == publisher.end()[0] == 0


def test_closing_a_publisher_waits_for_who_is_connected_and_not_for_ever(program):
    for stops in (False, True):
        follower = program("""
            import sys, freshet
            sub = freshet.Subscriber("m")
            sub.wait_for(1)
            print("serves", flush=True)
            sys.stdin.readline()
            print(sub.version, flush=True)
        """)
        publisher = freshet.Publisher("m")
        first = publisher.publish({"w": np.zeros(10)}, sync=True).version
        assert follower.line() == "serves"
        if stops:
            stand_still(follower.process.pid)
        publisher.publish({"w": np.ones(10)})
        publisher.close()
        assert publisher.closed
        if stops:
            follower.process.kill()
            continue
        follower.go_on()
        assert follower.line() == str(first + 1)


def test_a_publisher_whose_block_raised_waits_for_nobody(monkeypatch):
    def never():
        raise AssertionError("it waits")

    with pytest.raises(ValueError), freshet.Publisher("m") as publisher:
        publisher._linger = never
        publisher.publish({"w": np.ones(2)})
        raise ValueError
    assert publisher.closed


def test_a_served_version_survives_its_publisher(program):
    publisher = program(PUBLISHER)
    assert publisher.line() == "published"
    with freshet.Subscriber("digits") as subscriber:
        subscriber.wait_for(timeout=PATIENCE)
        publisher.process.kill()
        publisher.process.wait()
        assert eventually(lambda: not subscriber.status()["connected"])
        assert subscriber.snapshot()["w"].shape == (64, 10)
    assert subscriber.closed


def test_the_interpreter_may_end_at_any_moment(program, folder):
    """With everything open, views alive, and threads inside of calls."""
    one = program("""
        import sys, threading, freshet, numpy as np
        pub = freshet.Publisher("m")
        pub.publish({"w": np.ones(100000, np.float32)})
        sub = freshet.Subscriber("m", on_update=lambda update: None)
        sub.wait_for(timeout=60)
        view = sub.snapshot()["w"]
        repo = freshet.Repository(sys.argv[1])
        lonely = freshet.Subscriber("nobody")

        def wait():
            try:
                lonely.wait_for()
            except freshet.Error:
                pass

        def publish():
            try:
                while True:
                    pub.publish({"w": np.ones(100000, np.float32)})
            except freshet.Error:
                pass

        def read():
            try:
                while True:
                    sub.snapshot()["w"].sum()
            except freshet.Error:
                pass

        for target in (wait, publish, read, read):
            threading.Thread(target=target, daemon=True).start()
        print("ends")
    """, folder)
    assert one.line() == "ends"
    assert one.end() == (0, "", "")


def test_threads_that_go_on_after_errors_end_with_the_interpreter(program):
    for _ in range(5):
        one = program("""
            import threading, freshet
            closed = freshet.Subscriber("nobody")
            closed.close()

            def serve():
                while True:
                    try:
                        closed.snapshot()
                    except freshet.Error:
                        pass

            for _ in range(4):
                threading.Thread(target=serve, daemon=True).start()
            print("ends")
        """)
        assert one.line() == "ends"
        assert one.end() == (0, "", "")


def test_a_forked_child_touches_nothing_of_its_parents(program, folder):
    parent = program("""
        import os, sys, gc, freshet, numpy as np
        pub = freshet.Publisher("m")
        bound = pub.bind({"w": np.zeros(10)})
        pub.publish({"w": np.zeros(10)})
        sub = freshet.Subscriber("m", on_update=lambda update: None)
        sub.wait_for(timeout=60)
        snapshot = sub.snapshot()
        view = snapshot["w"]
        repo = freshet.Repository(sys.argv[1])
        repo.put("net", {"w": np.zeros(3)})
        child = os.fork()
        if child == 0:
            refused = 0
            calls = [lambda: pub.publish({"w": np.zeros(10)}), bound.publish, pub.stat, lambda: pub.wait_committed(1),
                     pub.release, sub.snapshot, sub.wait_for, lambda: sub.version, sub.status, lambda: snapshot["w"],
                     lambda: snapshot.version, lambda: repo.get("net"), lambda: repo.put("net", {"w": np.ones(2)}),
                     repo.stat]
            for call in calls:
                try:
                    call()
                except freshet.FailedPrecondition as error:
                    refused += "forked" in str(error) or print(error) or 0
            for one in (snapshot, sub, pub, repo):
                one.close()
            own = freshet.Publisher("childs")
            own.publish({"w": np.ones(2)}, sync=True)
            own.close()
            print("child", refused == len(calls))
            del view, snapshot, sub, pub, repo, bound
            gc.collect()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert pub.publish({"w": np.ones(10)}).version == 2
        assert sub.wait_for(2, 60) == 2 and view[0] == 0 and sub.snapshot()["w"][0] == 1
        assert repo.get("net")["w"].tolist() == [0, 0, 0]
        print("parent")
    """, folder)
    assert parent.line() == "child True"
    assert parent.line() == "parent"
    assert parent.end() == (0, "", "")


def test_a_forked_worker_that_outlives_the_loop_holds_no_name(program):
    loop = program("""
        import os, sys, freshet, numpy as np
        pub = freshet.Publisher("digits")
        pub.publish({"w": np.zeros(10)})
        sub = freshet.Subscriber("digits")
        sub.wait_for(timeout=60)
        snapshot = sub.snapshot()
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(writer)
            os.close(0)
            print("worker", os.getpid())
            os.read(reader, 1)  # Until the test ends it.
            os._exit(0)
        sys.stdin.read()
    """)
    worker = int(loop.line().split()[1])
    writer_of_loop = loop.process.pid
    try:
        stand_still(writer_of_loop)
        stand_still(worker)  # Its pipe ends with the loop; it is to live on.
        os.kill(writer_of_loop, signal.SIGKILL)
        loop.process.wait()
        with freshet.Publisher("digits") as successor, freshet.Subscriber("digits") as subscriber:
            receipt = successor.publish({"w": np.ones(10)})
            assert receipt.version > 1
            subscriber.wait_for(receipt.version, PATIENCE)
            os.kill(worker, 0)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_spawned_workers_use_what_was_pickled(program, folder):
    """A pool of new interpreters, as a search has them."""
    script = os.path.join(folder, "pool.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write("""
import multiprocessing, sys
import freshet, numpy as np

def work(given):
    repo, number = given
    with repo:
        return repo.put("cand", {"w": repo.get("net")["w"] + number}, ancestor="net@1")

if __name__ == "__main__":
    repo = freshet.Repository(sys.argv[1])
    repo.put("net", {"w": np.zeros(3)})
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sorted(version.number for version in pool.map(work, [(repo, n) for n in range(4)])))
    print(repo.stat()["versions"])
""")
    pool = program("import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')",
                   script, folder + "/repo")
    assert pool.line() == "[1, 2, 3, 4]"
    assert pool.line() == "5"
    assert pool.end()[0] == 0


def test_importing_brings_no_framework(program):
    one = program("""
        import sys, freshet
        print(sorted(set(sys.modules) & {"torch", "tensorflow", "keras", "jax", "ml_dtypes", "pandas"}))
    """)
    assert one.line() == "[]"


def test_the_command_comes_with_the_wheel():
    import subprocess
    import sys
    command = os.path.join(os.path.dirname(sys.executable), "freshet")
    ran = subprocess.run([command, "--version"], text=True, capture_output=True, check=True)
    assert ran.stdout.startswith("freshet ")


def test_nothing_of_ours_leaks_into_other_libraries():
    """The extension shows one symbol; a second C++ library in the process sees none of ours."""
    import ctypes

    from freshet import _core
    with pytest.raises(AttributeError):
        getattr(ctypes.CDLL(_core.__file__), "_ZN7freshet9Publisher4openENS_16PublisherOptionsE")
    assert ctypes.CDLL(_core.__file__).PyInit__core


def test_what_the_library_logs_comes_to_logging_also_after_a_fork(program, folder):
    logs = program("""
        import logging, os, queue, sys
        lines = queue.Queue()
        class Handler(logging.Handler):
            def emit(self, record):
                lines.put(record)
        logging.getLogger("freshet").addHandler(Handler())
        import freshet
        def told(name):
            with freshet.Subscriber("m", directory=f"redis+unix://{sys.argv[1]}/{name}"):
                record = lines.get(timeout=60)
            print(record.levelname, name in record.getMessage(), "away" in record.getMessage(), flush=True)
        told("first")
        child = os.fork()
        if child == 0:
            told("second")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    """, folder)
    assert logs.end() == (0, "WARNING True True\n" * 2, "")


def test_who_loads_after_a_save_returned_gets_that_version(program):
    for value in range(1, 31):  # In one process.
        freshet.save_weights("here", {"w": np.full(1000, value, np.float32)})
        assert freshet.load_weights("here")["w"][0] == value
    saver = """
        import sys, numpy as np, freshet
        for line in sys.stdin:
            freshet.save_weights("there", {"w": np.full(1000, float(line), np.float32)})
            print("saved")
    """
    first, second = program(saver), None
    for value in range(1, 31):  # The last ones are another process's: the first one has ended.
        if value == 25:
            first.end()
            assert freshet.load_weights("there")["w"][0] == 24
            second = program(saver)
        saves = second or first
        saves.process.stdin.write(f"{value}\n")
        saves.process.stdin.flush()
        assert saves.line() == "saved" and freshet.load_weights("there")["w"][0] == value


def test_a_program_that_ends_with_a_save_waits_for_who_loads(program):
    saver = program("""
        import sys, numpy as np, freshet
        freshet.save_weights("last", {"w": np.full(1000, 1, np.float32)})
        print("saved")
        sys.stdin.read(1)
        freshet.save_weights("last", {"w": np.full(1000, 2, np.float32)})
    """)
    assert saver.line() == "saved" and freshet.load_weights("last")["w"][0] == 1
    saver.end()
    assert freshet.load_weights("last")["w"][0] == 2
