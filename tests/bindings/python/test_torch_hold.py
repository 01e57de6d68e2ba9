# SPDX-License-Identifier: Apache-2.0
"""Which version answered, one version for several forwards, and forwards that wait for no other."""
import asyncio
import copy
import functools
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

import freshet.torch as ft
from conftest import PATIENCE
from torch_modules import filled, published

X = torch.ones(1, 4)


class Net(torch.nn.Module):
    """Answers with the sum of what its tensors have, after the steps that a test wants in the middle of a forward."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1, bias=False)
        self.between = lambda: None
        self.scale = 1

    def forward(self, x):
        first = self.head(x)
        self.between()
        return (first + self.head(x)) * self.scale

    def generate(self, x, count):
        answers = []
        for _ in range(count):
            answers.append(self(x).item())
            self.between()
        return answers

    async def generate_slowly(self, x, count):
        answers = []
        for _ in range(count):
            answers.append(self(x).item())
            await asyncio.sleep(0)
        return answers

    def encode(self, x):
        return self.head(x).item()


def serve(pair, value):
    return published(pair, filled(Net(), value))


def in_thread(call):
    """What it answers in a thread of its own."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert answers, "it waits for somebody"
    return answers[0]


def test_each_thread_and_task_holds_a_version_of_its_own_and_others_follow(pair):
    served = filled(Net(), 7)
    attached = ft.attach(served, pair[1])
    with attached.hold() as version:  # Its own weights.
        assert version == 0
        first = serve(pair, 1)
        assert served(X).item() == 56 and attached.answered == 0
    with attached.hold() as version:
        assert version == first and served(X).item() == 8
        second = serve(pair, 2)

        def other():
            with attached.hold() as theirs:
                assert theirs == second and served(X).item() == 16
                third = serve(pair, 3)
                assert in_thread(lambda: (served(X).item(), attached.answered)) == (24, third)
                with attached.hold() as inner:
                    assert inner == second and served(X).item() == 16 and attached.answered == second
                return third

        third = in_thread(other)
        assert served(X).item() == 8 and served.encode(X) == 4 and attached.answered == first
        assert attached.refresh() == third, "here nothing changes"
        assert served(X).item() == 8
        fourth = serve(pair, 4)
        assert in_thread(lambda: served(X).item()) == 32
    assert served(X).item() == 32 and attached.answered == attached.version == fourth
    assert served.head.weight[0, 0] == 4, "the module itself is at the newest when nobody holds it"

    async def task(value, ready, go):
        with attached.hold() as version:
            ready.set()
            await go.wait()
            answers = [served(X).item() for _ in range(2)]
            return version, answers == [8 * value] * 2, attached.answered, await asyncio.to_thread(lambda: served(X).item())

    async def tasks():
        go, running = asyncio.Event(), []
        for value in (4, 5, 6):
            ready = asyncio.Event()
            running.append(asyncio.create_task(task(value, ready, go)))
            await ready.wait()
            serve(pair, value + 1)
            assert served(X).item() == 8 * (value + 1), "this task follows"
        go.set()
        return await asyncio.gather(*running)

    told = asyncio.run(tasks())
    assert told[0] == (fourth, True, fourth, 32) and told[1] == (fourth + 1, True, fourth + 1, 40)
    assert told[2][0] == told[2][2] == fourth + 2 and told[2][3] == 48
    assert served(X).item() == 56


def test_one_answer_of_many_forwards_has_one_version_and_other_methods_follow(pair):
    served = filled(Net(), 7)
    attached = ft.attach(served, pair[1])
    first = serve(pair, 1)
    assert served.encode(X) == 4 and attached.answered == first, "before any forward"
    values = iter(range(2, 100))
    served.between = lambda: serve(pair, next(values)) if threading.current_thread() is threading.main_thread() else None
    assert served.generate(X, 3) == [8, 8, 8]
    served.between = lambda: None
    newest = next(values) - 1
    assert served(X).item() == 8 * newest

    async def both():
        slow = asyncio.create_task(served.generate_slowly(X, 3))
        await asyncio.sleep(0)
        serve(pair, 50)
        return await slow, served(X).item()

    assert asyncio.run(both()) == ([8 * newest] * 3, 400)
    served.scale = 2  # Also in the twin.
    with attached.hold():
        serve(pair, 51)
        assert in_thread(lambda: served(X).item()) == 816
    with attached:
        pass
    serve(pair, 52)
    assert served(X).item() == 816 and served.encode(X) == 204 and not {"forward", "encode", "generate"} & vars(served).keys()


@pytest.mark.parametrize("mode", ["swap", "copy"])
@pytest.mark.parametrize("ends", ["refresh", "detach", "with"])
def test_nobody_waits_for_a_method_that_awaits(pair, mode, ends):
    """It may be suspended in the loop of the very thread that would wait. It keeps its version to its end."""
    served = filled(Net(), 7)

    async def tasks():
        with ft.attach(served, pair[1], mode=mode) as attached:
            first = serve(pair, 1)
            slow = asyncio.create_task(served.generate_slowly(X, 3))
            await asyncio.sleep(0)
            second = serve(pair, 2)
            if ends == "refresh":
                assert attached.refresh() == (second if mode == "swap" else first)
                assert served(X).item() == (16 if mode == "swap" else 8)
            elif ends == "detach":
                attached.detach()
        return await slow, served(X).item()

    answers, after = in_thread(lambda: asyncio.run(tasks()))
    assert answers == [8, 8, 8] and after in (8, 16)


@pytest.mark.parametrize("mode, locked", [("swap", False), ("swap", True), ("copy", False)])
def test_a_slow_forward_delays_no_other(pair, mode, locked):
    """Nor does it keep versions away, where the module can be doubled; a lock cannot."""
    served = filled(Net(), 7)
    served.lock = threading.Lock() if locked else None
    attached = ft.attach(served, pair[1], mode=mode)
    first = serve(pair, 1)
    assert served(X).item() == 8
    inside, leave, slow = threading.Event(), threading.Event(), []

    def between():
        if threading.current_thread().name == "slow":
            inside.set()
            leave.wait(PATIENCE)

    served.between = between
    thread = threading.Thread(target=lambda: slow.append((served(X).item(), attached.answered)), name="slow")
    thread.start()
    assert inside.wait(PATIENCE)
    for value in (2, 3, 4):
        version = serve(pair, value)
        follows = mode == "swap" and not locked
        want = (8 * value, version) if follows else (8, first)
        for _ in range(2):
            assert in_thread(lambda: (served(X).item(), attached.answered)) == want
    leave.set()
    thread.join()
    assert slow == [(8, first)], "all of a forward has one version"
    assert served(X).item() == 32 and attached.answered == version


def test_ctrl_c_where_a_forward_ends_leaves_the_module_free(pair, monkeypatch):
    served = filled(Net(), 7)
    attached = ft.attach(served, pair[1])
    serve(pair, 1)

    def interrupted(use):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(attached, "_answers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            served(X)
    version = serve(pair, 2)
    assert served(X).item() == 16 and attached.answered == version and served.head.weight[0, 0] == 2


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_recurrent_module_and_lists_of_parts_have_twins(pair, kind):
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(4, 3)
            self.register_buffer("mask", torch.ones(3), persistent=False)
            self.parts = kind([self.lstm])
            self.own_hooks = [1]

        def forward(self, x):
            return self.parts[0](x)[0] * self.mask

    served, trained = Parts().eval(), Parts().eval()
    attached = ft.attach(served, pair[1])
    published(pair, trained)
    assert torch.equal(served(X), trained(X))
    hooked = []
    with attached.hold():
        published(pair, filled(trained, 0.5))
        served.lstm.register_forward_hook(lambda *_: hooked.append(1))
        assert torch.equal(in_thread(lambda: served(X)), trained(X)) and hooked
        assert not torch.equal(served(X), trained(X))


class Copied(Net):
    """With a way of its own to be copied."""

    def __deepcopy__(self, memo):
        made = memo[id(self)] = type(self).__new__(type(self))
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made


@pytest.mark.parametrize("mode", ["swap", "copy"])
@pytest.mark.parametrize("kind", ["plain", "forward of its own", "copied its own way"])
def test_a_deep_copy_is_a_plain_module_with_weights_of_its_own(pair, mode, kind):
    served = filled(Copied() if kind == "copied its own way" else Net(), 7)
    if kind == "forward of its own":
        served.forward = functools.partial(type(served).forward, served)
    before = set(vars(served))
    attached = ft.attach(served, pair[1], mode=mode)
    serve(pair, 1)
    assert served(X).item() == 8
    one, within = copy.deepcopy(served), copy.deepcopy(torch.nn.Sequential(served))[0]
    serve(pair, 2)
    assert served(X).item() == 16
    for made in (one, within):
        assert set(vars(made)) == before
        assert made(X).item() == 8 and made.encode(X) == 4
        assert filled(made, 5)(X).item() == 40 and made.generate(X, 1) == [40] and served(X).item() == 16
    attached.detach()
    assert set(vars(served)) == before
    assert filled(copy.deepcopy(served), 3)(X).item() == 24 and served(X).item() == 16


class Adapted(Net):
    def __init__(self):
        super().__init__()
        self.adapter = torch.nn.Linear(4, 1, bias=False)

    def adapted(self, part, inputs, output):
        return output + self.adapter(inputs[0])


class Adapter:
    __slots__ = ("layer",)

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, part, inputs, output):
        return output + self.layer(inputs[0])


a_global = None


def by_a_global(part, inputs, output):
    return output + a_global.adapter(inputs[0])


HOOKS = {
    "closure": lambda net: lambda part, inputs, output: output + net.adapter(inputs[0]),
    "list in a closure": lambda net: (lambda held: lambda part, inputs, output: output + held[0](inputs[0]))([net.adapter]),
    "method in a closure": lambda net: (lambda call: lambda part, inputs, output: output + call(inputs[0]))(net.adapter.forward),
    "tensor in a closure": lambda net: (lambda own: lambda part, inputs, output: output + inputs[0] @ own.T)(net.adapter.weight),
    "default": lambda net: lambda part, inputs, output, adapter=net.adapter: output + adapter(inputs[0]),
    "partial": lambda net: functools.partial(lambda held, part, inputs, output: output + held["it"](inputs[0]), {"it": net.adapter}),
    "method": lambda net: net.adapted,
    "object": lambda net: Adapter(net.adapter),
    "weak": lambda net: (lambda weak: lambda part, inputs, output: output + weak()(inputs[0]))(weakref.ref(net.adapter)),
    "global": lambda net: by_a_global,
}


@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("of_a_part", [True, False])
def test_no_forward_mixes_versions_where_a_hook_or_a_function_has_a_part_of_the_module(pair, monkeypatch, kind, of_a_part):
    served = filled(Adapted(), 7)
    monkeypatch.setitem(globals(), "a_global", served)
    if of_a_part:
        served.head.register_forward_hook(HOOKS[kind](served))
    else:
        served.hook = [HOOKS[kind](served)]
        served.head.register_forward_hook(lambda part, inputs, output: output)
        monkeypatch.setattr(Adapted, "forward", lambda self, x: 2 * self.hook[0](None, (x,), self.head(x)))
    attached = ft.attach(served, pair[1])
    first = published(pair, filled(Adapted(), 1))
    with attached.hold() as version:
        assert version == first and served(X).item() == 16
        second = published(pair, filled(Adapted(), 2))
        assert in_thread(lambda: (served(X).item(), attached.answered)) in ((16, first), (32, second))
    assert served(X).item() == 32 and attached.answered == second


def test_a_twin_begins_with_what_the_module_has_by_now(pair):
    served = filled(Adapted(), 7)
    attached = ft.attach(served, pair[1])
    first = published(pair, filled(Adapted(), 1))
    with attached.hold():
        assert served(X).item() == 8
        second = published(pair, filled(Adapted(), 2))
        assert in_thread(lambda: served(X).item()) == 16
        served.scale = 3  # No version came since.
        assert in_thread(lambda: (served(X).item(), attached.answered)) == (48, second)
        served.head = torch.nn.Sequential(served.head, torch.nn.Identity())
        assert in_thread(lambda: (served(X).item(), attached.answered)) == (48, second)
        served.head.register_forward_hook(lambda part, inputs, output: output + served.adapter(inputs[0]))
        assert in_thread(lambda: (served(X).item(), attached.answered)) == (48, first), "it cannot be doubled any more"
    assert served(X).item() == 96 and attached.answered == second


@pytest.mark.parametrize("order", ["attached first", "compiled first", "in place", "compiled is attached"])
def test_a_compiled_module_follows(pair, order):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))

    torch._dynamo.reset()
    served = filled(net(), 7)
    if order == "attached first":
        attached = ft.attach(served, pair[1])
        served = torch.compile(served, backend=backend)
    elif order == "compiled first":
        module, served = served, torch.compile(served, backend=backend)
        attached = ft.attach(module, pair[1])
    elif order == "in place":
        served.compile(backend=backend)
        attached = ft.attach(served, pair[1])
    else:
        served = torch.compile(served, backend=backend)
        attached = ft.attach(served, pair[1])
    trained = net()
    with torch.no_grad():
        for value in (1, 2, 3):
            version = published(pair, filled(trained, value))
            assert torch.equal(served(X), trained(X)) and attached.answered == version
        with attached.hold():
            published(pair, filled(net(), 9))
            assert torch.equal(served(X), trained(X))
    assert graphs, "what the module computes is compiled all the same"
