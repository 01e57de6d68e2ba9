# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends every wait, other signals do not, and what a constructor began is gone."""
import signal
import socket
import threading
import types

import freshet
import numpy as np
import pytest

from conftest import eventually, free_port, stand_still


@pytest.mark.parametrize("wait", [
    "freshet.Subscriber('m').wait_for()",
    "freshet.Subscriber('m').snapshot(1)",
    "freshet.Subscriber('m', every=True).next()",
    "asyncio.run(follow())",
])
def test_ctrl_c_ends_a_wait_and_other_signals_do_not(program, wait):
    waiter = program(f"""
        import asyncio, freshet, signal
        signal.signal(signal.SIGUSR1, lambda *_: print("handled"))

        async def follow():
            print("waits")
            await freshet.Subscriber("m").updated()

        try:
            if {"asyncio" not in wait}:
                print("waits")
            {wait}
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert waiter.line() == "waits"
    for _ in range(2):
        waiter.process.send_signal(signal.SIGUSR1)
        assert waiter.line() == "handled"
    waiter.process.send_signal(signal.SIGINT)
    assert waiter.line() == "interrupted"
    assert waiter.end() == (0, "", "")


def test_ctrl_c_ends_the_wait_for_a_version_to_be_staged(program):
    publisher = program("""
        import sys, freshet, numpy as np
        pub = freshet.Publisher("m", keep_versions=3)
        for value in range(2):
            pub.publish({"w": np.full(1 << 20, value)}, sync=True)
        print("published", flush=True)
        sys.stdin.read()
    """)
    assert publisher.line() == "published"
    member = program("""
        import sys, freshet
        sub = freshet.Subscriber("m", staged=True)
        sub.wait_for(1)
        print("serves", flush=True)
        sys.stdin.readline()
        try:
            print("waits", flush=True)
            sub.stage(1)
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert member.line() == "serves"
    stand_still(publisher.process.pid)
    member.go_on()
    assert member.line() == "waits"
    member.process.send_signal(signal.SIGINT)
    assert member.line() == "interrupted"
    publisher.process.kill()
    assert member.end()[0] == 0


def test_ctrl_c_ends_the_wait_for_a_pin(program, folder):
    waiter = program("""
        import sys, freshet, numpy as np
        with freshet.Repository(sys.argv[1]) as repo:
            repo.put("net", {"w": np.ones(2)})
            repo.pin("net@1", "me")
            try:
                print("waits")
                repo.retire("net@1", wait=1e6)
            except KeyboardInterrupt:
                print("interrupted")
    """, folder)
    assert waiter.line() == "waits"
    waiter.process.send_signal(signal.SIGINT)
    assert waiter.line() == "interrupted"
    assert waiter.end()[0] == 0


def test_ctrl_c_ends_the_wait_for_a_repository_that_does_not_answer(program, folder):
    owner = program("""
        import sys, freshet, numpy as np
        repo = freshet.Repository(sys.argv[1])
        repo.put("net", {"w": np.ones(2)})
        print("open")
        sys.stdin.read()
    """, folder)
    assert owner.line() == "open"
    waiter = program("""
        import signal, sys, freshet
        signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
        repo = freshet.Repository(sys.argv[1])
        print("waits", flush=True)
        sys.stdin.readline()
        for call in (repo.stat, lambda: repo.get("net"), lambda: freshet.Repository(sys.argv[1])):
            try:
                print("calls", flush=True)
                call()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        repo.close()
        sys.stdin.readline()
        print([str(row.version) for row in freshet.Repository(sys.argv[1]).versions("net")])
    """, folder)
    assert waiter.line() == "waits"
    stand_still(owner.process.pid)
    waiter.go_on()
    for _ in range(3):
        assert waiter.line() == "calls"
        waiter.process.send_signal(signal.SIGUSR1)
        assert waiter.line() == "handled"
        waiter.process.send_signal(signal.SIGINT)
        assert waiter.line() == "interrupted"
    owner.process.kill()
    owner.process.wait()
    waiter.go_on()
    assert waiter.line() == "['net@1']", "no constructor left the folder taken"
    assert waiter.end() == (0, "", "")


def test_ctrl_c_ends_the_wait_for_an_activation(program):
    member = program("""
        import sys, freshet
        subscriber = freshet.Subscriber("m", staged=True)
        subscriber.wait_for(1)
        print("serves")
        sys.stdin.read()
    """)
    publisher = program("""
        import signal, sys, freshet, numpy as np
        signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
        with freshet.Publisher("m", group_commit=True, keep_versions=3) as pub:
            pub.publish({"w": np.zeros(3)}, sync=True)
            pub.publish({"w": np.ones(3)}, sync=True)
            print("published", flush=True)
            sys.stdin.readline()
            try:
                print("calls", flush=True)
                pub.rollback(1)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
    """)
    assert publisher.line() == "published" and member.line() == "serves"
    stand_still(member.process.pid)  # A member that does not stage.
    publisher.go_on()
    assert publisher.line() == "calls"
    publisher.process.send_signal(signal.SIGUSR1)
    assert publisher.line() == "handled"
    publisher.process.send_signal(signal.SIGINT)
    assert publisher.line() == "interrupted"
    assert publisher.end()[0] == 0


def test_ctrl_c_while_the_logs_thread_starts(program, folder):
    logs = program("""
        import logging, queue, sys, threading
        lines = queue.Queue()
        class Handler(logging.Handler):
            def emit(self, record):
                lines.put(record)
        logging.getLogger("freshet").addHandler(Handler())
        import freshet
        start = threading.Thread.start
        def interrupted(thread):
            threading.Thread.start = start
            raise KeyboardInterrupt
        threading.Thread.start = interrupted
        try:
            freshet.Subscriber("m")
        except KeyboardInterrupt:
            print("interrupted")
        with freshet.Subscriber("m", directory=f"redis+unix://{sys.argv[1]}/away"):
            print("away" in lines.get(timeout=60).getMessage())
    """, folder)
    assert logs.end() == (0, "interrupted\nTrue\n", "")


def test_ctrl_c_while_the_logs_thread_starts_and_nothing_else_is_opened(program):
    ended = program("""
        import threading, freshet
        def interrupted(thread):
            raise KeyboardInterrupt
        threading.Thread.start = interrupted
        try:
            freshet.Subscriber("m")
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert ended.end() == (0, "interrupted\n", "")


COLLECTIVE = """
    import sys, freshet, numpy as np
    rank = int(sys.argv[1])
    w = np.zeros(3)
    checkpointer = freshet.Checkpointer("net", {"w": w}, local=sys.argv[2] + f"/{rank}", rank=rank, ranks=2, meet=sys.argv[3])
    print("met", flush=True)
    sys.stdin.readline()
    if rank == 0:
        try:
            print("calls", flush=True)
            checkpointer.restore({"w": w})
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        checkpointer.close()
"""


def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_call(program, folder):
    meet = f"tcp://127.0.0.1:{free_port()}"
    ranks = [program(COLLECTIVE, str(rank), folder, meet) for rank in range(2)]
    assert [rank.line() for rank in ranks] == ["met", "met"]
    ranks[0].go_on()
    assert ranks[0].line() == "calls"
    ranks[0].process.send_signal(signal.SIGINT)
    assert ranks[0].line() == "interrupted"
    assert ranks[0].end()[0] == 0


MEETING = """
    import sys, freshet
    def meet(patience):
        return freshet.Checkpointer("net", {"w": memoryview(b"abc")}, local=sys.argv[3], rank=int(sys.argv[1]), ranks=2,
                                    meet=f"tcp://127.0.0.1:{sys.argv[2]}", patience=patience)
    try:
        meet(1e6)
    except KeyboardInterrupt as interrupted:
        print("interrupted")
        try:
            meet(0.1)
        except freshet.Unavailable:
            print("free")
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_ctrl_c_ends_the_wait_for_ranks_that_do_not_come(program, folder, rank):
    """Folder and address are free at once."""
    port = free_port()
    if rank == 0:
        waiter = program(MEETING, "0", str(port), folder)
        assert eventually(lambda: is_listening(port))
        waiter.process.send_signal(signal.SIGINT)
        assert waiter.line() == "interrupted"
    else:
        with socket.create_server(("127.0.0.1", port)) as meeting:
            waiter = program(MEETING, "1", str(port), folder)
            meeting.accept()
            waiter.process.send_signal(signal.SIGINT)
            assert waiter.line() == "interrupted"
    assert waiter.end()[:2] == (0, "free\n")


def is_listening(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except ConnectionRefusedError:
        return False


def test_ctrl_c_ends_the_wait_for_a_directory_that_does_not_answer(program):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiter = program("""
            import sys, freshet
            try:
                freshet.Publisher("m", directory=f"redis://127.0.0.1:{sys.argv[1]}")
            except KeyboardInterrupt:
                print("interrupted")
        """, str(silent.getsockname()[1]))
        silent.accept()
        waiter.process.send_signal(signal.SIGINT)
        assert waiter.line() == "interrupted"
        assert waiter.end()[0] == 0


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_publisher_that_ctrl_c_ended_as_it_began_holds_no_name(monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
        patch.setattr(freshet.publisher, "time", types.SimpleNamespace(monotonic=interrupt))
        freshet.Publisher("m")
    freshet.Publisher("m").close()
    assert kept.tb is not None, "the traceback, which has the publisher, lives on"


def test_a_subscriber_that_ctrl_c_ended_as_it_began_is_gone(monkeypatch):
    with freshet.Publisher("m") as publisher:
        publisher.publish({"w": np.zeros(2)})
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
            patch.setattr(threading.Thread, "start", interrupt)
            freshet.Subscriber("m", on_update=lambda update: None)
        assert all(handle.closed for handle in freshet._handles._open if isinstance(handle, freshet.Subscriber))
        assert kept.tb is not None


def test_a_checkpointer_that_ctrl_c_ended_as_it_began_holds_no_folder(monkeypatch, tmp_path):
    how = {"tensors": {"w": np.zeros(2)}, "local": str(tmp_path), "rank": 0, "ranks": 1}
    freshet.Checkpointer("net", **how).close()  # The thread of the logs has begun.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
        patch.setattr(threading.Thread, "start", interrupt)
        freshet.Checkpointer("net", on_reached=print, **how)
    freshet.Checkpointer("net", patience=0.1, **how).close()
    assert kept.tb is not None
