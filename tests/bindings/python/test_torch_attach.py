# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules that follow a subscriber: whole versions between forwards, whatever ends a forward or a swap."""
import gc
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from conftest import PATIENCE, eventually
from torch_modules import Tied, filled, published


def test_an_attached_module_follows(pair):
    served = filled(torch.nn.Linear(4, 1, bias=False), 7)
    attached = ft.attach(served, pair[1])
    x = torch.ones(1, 4)
    assert served(x).item() == 28 and attached.version == 0  # Its own weights, as nothing came yet.
    for value in (1, 2, 3):
        version = published(pair, filled(torch.nn.Linear(4, 1, bias=False), value))
        assert served(x).item() == 4 * value and attached.version == version
    attached.detach()
    published(pair, filled(torch.nn.Linear(4, 1, bias=False), 9))
    gc.collect()
    assert served(x).item() == 12


def test_attach_waits_for_a_first_version_or_says_whose_did_not_come(pair, run_dir):
    served = filled(torch.nn.Linear(4, 1, bias=False), 7)
    for wait in (0, 0.01):
        with pytest.raises(freshet.TimedOut, match=f"^m .*{run_dir}"):
            ft.attach(served, pair[1], wait=wait)
        assert "forward" not in vars(served) and (served.weight == 7).all()
    later = threading.Timer(0.05, lambda: published(pair, filled(torch.nn.Linear(4, 1, bias=False), 2)))
    later.start()
    with ft.attach(served, pair[1], wait=PATIENCE) as attached:
        assert attached.version == 1 and (served.weight == 2).all(), "before any forward"
    later.join()
    with ft.attach(served, pair[1], wait=0) as attached:
        assert attached.version == 1
    other = filled(torch.nn.Linear(4, 2), 7)
    with pytest.raises(freshet.FailedPrecondition, match="tensor weight"):
        ft.attach(other, pair[1], wait=PATIENCE)
    assert "forward" not in vars(other) and (other.weight == 7).all()


def test_copy_keeps_the_addresses(pair):
    served = filled(torch.nn.Linear(4, 1), 7)
    addresses = [parameter.data_ptr() for parameter in served.parameters()]
    attached = ft.attach(served, pair[1], mode="copy")
    published(pair, filled(torch.nn.Linear(4, 1), 2))
    assert attached.refresh() == 1 and [parameter.data_ptr() for parameter in served.parameters()] == addresses
    assert served(torch.ones(1, 4)).item() == 10


def test_another_architecture_is_told_once_and_not_served(pair, caplog):
    served = filled(torch.nn.Linear(4, 1), 7)
    attached = ft.attach(served, pair[1])
    published(pair, filled(torch.nn.Linear(4, 2), 1))
    for _ in range(3):
        assert served(torch.ones(1, 4)).item() == 35
    assert sum("weight" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(freshet.FailedPrecondition, match="tensor weight"):
        attached.refresh()
    with pytest.raises(freshet.InvalidArgument, match="mode"):
        ft.attach(served, pair[1], mode="both")


def test_a_version_of_a_larger_network_is_refused_unless_it_is_asked_for(pair, caplog):
    larger = filled(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), 1)
    strict, lax = (filled(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), 7) for _ in range(2))
    attached = ft.attach(strict, pair[1])
    ft.attach(lax, pair[1], strict=False)
    published(pair, larger)
    x = torch.ones(1, 4)
    assert strict(x)[0, 0].item() == 4 * 35 * 7 + 7 and attached.version == 0
    assert lax(x)[0, 0].item() == 4 * 5 + 1
    assert sum("2.weight" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(freshet.FailedPrecondition, match="2.weight"):
        attached.refresh()


def test_tied_weights_take_no_version_that_has_two(pair):
    served = filled(Tied(), 7)
    attached = ft.attach(served, pair[1])
    apart = filled(Tied(), 1)
    apart.head.weight = torch.nn.Parameter(torch.full((5, 3), 2.0))
    published(pair, apart)
    with pytest.raises(freshet.FailedPrecondition, match="head.weight"):
        attached.refresh()
    tied = filled(Tied(), 3)
    version = published(pair, tied, graph=ft.graph(tied))
    assert attached.refresh() == version and served(torch.tensor([0]))[0, 0].item() == 27


class Slow(torch.nn.Module):
    """Reads its two tensors at different times, so a forward with two versions would tell."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(1000))
        self.b = torch.nn.Parameter(torch.zeros(1000))

    def forward(self, x):
        first = self.a.sum().item()
        for _ in range(20):
            x = x @ x / 10
        return first, self.b.sum().item()


def test_one_forward_has_one_version_in_several_threads_and_none_starves(pair):
    served = Slow()
    attached = ft.attach(served, pair[1])
    stop, answers, wrong = threading.Event(), [0] * 4, []

    def serve(thread):
        while not stop.is_set():
            first, second = served(torch.randn(20, 20))
            if first != second:
                wrong.append((first, second))
            answers[thread] += 1

    threads = [threading.Thread(target=serve, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    try:
        trained = Slow()
        for value in range(1, 40):
            before = list(answers)
            version = published(pair, filled(trained, value))
            assert eventually(lambda: attached.version >= version)
            assert eventually(lambda: all(now > then for now, then in zip(answers, before)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong and served(torch.zeros(20, 20)) == (39_000, 39_000)


def test_a_forward_that_raises_counts_as_ended(pair):
    served = torch.nn.Linear(4, 1)
    attached = ft.attach(served, pair[1])
    for value in (1, 2):
        with pytest.raises(RuntimeError):
            served(torch.ones(1, 5))
        version = published(pair, filled(torch.nn.Linear(4, 1), value))
        assert served(torch.ones(1, 4)).item() == 5 * value and attached.version == version


class Interrupted(torch.nn.Linear):
    """Raises what `raises` holds, once, in the middle of a forward."""

    raises = None

    def forward(self, x):
        raised, self.raises = self.raises, None
        answer = super().forward(x)
        if raised is not None:
            raise raised()
        return answer


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_a_forward_that_ctrl_c_ends_counts_as_ended(pair, raised):
    served = filled(Interrupted(4, 1), 7)
    attached = ft.attach(served, pair[1])
    x = torch.ones(1, 4)

    def breaks():
        served.raises = raised
        with pytest.raises(raised):
            served(x)

    for value, thread in enumerate([None, threading.Thread(target=breaks), None], 1):
        if thread is None:
            breaks()
        else:
            thread.start()
            thread.join()
        version = published(pair, filled(torch.nn.Linear(4, 1), value))
        answers = []
        other = threading.Thread(target=lambda: answers.append(attached.refresh()))
        other.start()
        other.join()
        assert answers == [version]
        assert served(x).item() == 5 * value, "this thread follows, too"


def test_ctrl_c_ends_a_refresh_that_waits_for_a_forward(pair):
    begun, interrupted, errors = threading.Event(), threading.Event(), []
    attached = None

    class Waits(torch.nn.Linear):
        def forward(self, x):
            if not begun.is_set():
                begun.set()
                eventually(lambda: attached._changed._waiters)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                interrupted.wait(PATIENCE)
            return super().forward(x)

    served = filled(Waits(4, 1), 7)
    attached = ft.attach(served, pair[1], mode="copy")
    x = torch.ones(1, 4)
    first = threading.Thread(target=lambda: errors.append(served(x).item()))
    first.start()
    assert begun.wait(PATIENCE)
    version = published(pair, filled(torch.nn.Linear(4, 1), 1))
    with pytest.raises(KeyboardInterrupt):
        attached.refresh()
    second = threading.Thread(target=lambda: served(x))  # Nobody waits for it.
    second.start()
    interrupted.set()
    first.join()
    second.join()
    assert errors == [35] and attached.refresh() == version and served(x).item() == 5


@pytest.mark.parametrize("mode", ["swap", "copy"])
def test_ctrl_c_in_the_middle_of_a_swap_leaves_a_whole_version(pair, mode, monkeypatch):
    served = filled(torch.nn.Linear(4, 1), 7)
    attached = ft.attach(served, pair[1], mode=mode)
    install = attached._install
    version = published(pair, filled(torch.nn.Linear(4, 1), 1))

    def interrupted(lane, came):
        monkeypatch.setattr(attached, "_install", install)
        served.weight.data.copy_(came["weight"])
        raise KeyboardInterrupt

    monkeypatch.setattr(attached, "_install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served(torch.ones(1, 4))
    assert attached.version == version and served(torch.ones(1, 4)).item() == 5
    assert attached.refresh() == version


@pytest.mark.parametrize("mode", ["swap", "copy"])
def test_a_module_whose_subscriber_is_closed_goes_on(caplog, mode):
    served = filled(torch.nn.Linear(4, 1), 7)
    x = torch.ones(1, 4)
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        attached = ft.attach(served, subscriber, mode=mode)
        published((publisher, subscriber), filled(torch.nn.Linear(4, 1), 2))
        assert served(x).item() == 10
    for _ in range(3):
        assert served(x).item() == 10
    assert sum("closed" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(freshet.FailedPrecondition, match="closed"):
        attached.refresh()
    attached.detach()
    assert served(x).item() == 10 and attached.refresh() == 1 and "forward" not in vars(served)


def test_a_forked_child_goes_on_with_what_it_has(program):
    """Also when another thread was in a forward, and the parent goes on before the child has copied anything."""
    parent = program("""
        import os
        reader, writer = os.pipe()
        os.register_at_fork(after_in_child=lambda: os.read(reader, 1))  # Before freshet's.
        import sys, threading, freshet, torch
        torch.set_num_threads(1)
        inside, leave = threading.Event(), threading.Event()

        class Net(torch.nn.Linear):
            def forward(self, x):
                if threading.current_thread() is not threading.main_thread():
                    inside.set()
                    leave.wait(60)
                return super().forward(x)

        def filled(module, value):
            with torch.no_grad():
                for tensor in module.parameters():
                    tensor.fill_(value)
            return module

        pub, sub = freshet.Publisher("m"), freshet.Subscriber("m")
        served, x = filled(Net(4, 1), 7), torch.ones(1, 4)
        freshet.torch.attach(served, sub)
        freshet.torch.publish(pub, filled(torch.nn.Linear(4, 1), 1))
        sub.wait_for(1, 60)
        print(served(x).item())
        thread = threading.Thread(target=lambda: served(x))
        thread.start()
        inside.wait(60)
        child = os.fork()
        if child == 0:
            print([served(x).item() for _ in range(2)])
            os._exit(0)
        leave.set()
        thread.join()
        for value in range(2, 8):
            version = freshet.torch.publish(pub, filled(torch.nn.Linear(4, 1), value)).version
            sub.wait_for(version, 60)
            served(x)
        os.write(writer, b"x")
        os.waitpid(child, 0)
        print(served(x).item())
    """)
    said = parent.end()
    assert said[:2] == (0, "5.0\n[5.0, 5.0]\n35.0\n"), said
    assert said[2].count("forked") == 1, said
