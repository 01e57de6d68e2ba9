# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules: published, viewed, attached, and as graphs."""
import gc
import os
import signal
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from conftest import PATIENCE, eventually


class Net(torch.nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.first = torch.nn.Linear(4, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden)
        self.last = torch.nn.Linear(hidden, 2)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


@pytest.fixture
def pair():
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        yield publisher, subscriber


def filled(module, value):
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.fill_(value)
    return module


def published(pair, module, **how):
    publisher, subscriber = pair
    version = ft.publish(publisher, module, **how).version
    subscriber.wait_for(version, PATIENCE)
    return version


def test_a_snapshot_loads_into_another_module(pair):
    trained = Net()
    published(pair, trained, step=3, metrics={"loss": 0.5})
    snapshot = pair[1].snapshot()
    assert snapshot.step == 3 and set(snapshot) == set(trained.state_dict())
    other = Net()
    other.load_state_dict(ft.view(snapshot))
    x = torch.randn(7, 4)
    assert torch.equal(other.eval()(x), trained.eval()(x))


def test_tied_weights_travel_once_and_are_viewed_by_all_names(pair):
    module = Tied()
    published(pair, module)
    snapshot = pair[1].snapshot()
    assert list(snapshot) == ["embed.weight"]
    viewed = ft.view(snapshot)
    assert viewed["head.weight"] is viewed["embed.weight"]
    other = Tied()
    other.load_state_dict(viewed)
    assert torch.equal(other.head.weight, module.embed.weight)
    third = Tied()
    attached = ft.attach(third, pair[1])
    attached.refresh()
    assert third.head.weight is third.embed.weight and torch.equal(third.head.weight, module.embed.weight)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "uint8",
                                   "bool"])
def test_types_come_as_they_went(pair, dtype):
    module = torch.nn.Module()
    module.register_buffer("w", torch.tensor([[0.0, 1.0], [2.0, -3.0]]).to(getattr(torch, dtype)))
    published(pair, module)
    came = ft.view(pair[1].snapshot())["w"]
    assert came.dtype == module.w.dtype and torch.equal(came.double(), module.w.double())


def test_strided_parameters_come_as_they_look(pair):
    module = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    module.extra = torch.nn.Parameter(torch.randn(3, 5).t())
    published(pair, module)
    came = ft.view(pair[1].snapshot())
    assert torch.equal(came["weight"], module.weight) and torch.equal(came["extra"], module.extra)


@pytest.mark.parametrize("name, tensor", [
    ("meta", torch.empty(3, device="meta")), ("complex", torch.zeros(2, dtype=torch.complex64)),
    ("sparse", torch.eye(2).to_sparse()),
])
def test_what_has_no_bytes_of_its_own_is_refused_by_name(pair, name, tensor):
    module = torch.nn.Module()
    module.register_buffer("good", torch.ones(1))
    module.register_buffer(name, tensor)
    with pytest.raises(freshet.InvalidArgument, match=f"tensor {name}:"):
        ft.publish(pair[0], module)
    with pytest.raises(freshet.InvalidArgument, match="none of the module's"):
        ft.publish(pair[0], Net(), optimizer=torch.optim.SGD(Net().parameters(), 0.1))


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
                eventually(lambda: attached._swapping is not None)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                interrupted.wait(PATIENCE)
            return super().forward(x)

    served = filled(Waits(4, 1), 7)
    attached = ft.attach(served, pair[1])
    x = torch.ones(1, 4)
    first = threading.Thread(target=lambda: errors.append(served(x).item()))
    first.start()
    assert begun.wait(PATIENCE)
    version = published(pair, filled(torch.nn.Linear(4, 1), 1))
    with pytest.raises(KeyboardInterrupt):
        attached.refresh()
    second = threading.Thread(target=lambda: served(x))  # Waits for the first one, and nobody waits for it.
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

    def interrupted(came):
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
    """Also when another thread was in a forward, and what the parent had is written again."""
    parent = program("""
        import os, sys, threading, freshet, torch
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
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
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


def test_graphs_of_equal_prefixes_match(folder):
    shallow = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    graph = ft.graph(shallow, torch.zeros(1, 4))
    assert graph["traced_by"] == "torch.fx" and [layer["class"] for layer in graph["layers"]] == [
        "Input", "torch.nn.Linear", "torch.nn.ReLU", "torch.nn.Linear"]
    with freshet.Repository(folder + "/runs") as repository:
        version = repository.put("a", ft.tensors(shallow), graph=graph)
        match = repository.match(ft.graph(other, torch.zeros(1, 4)))
        assert match.version == version and match.tensors == {"0.weight": "0.weight", "0.bias": "0.bias"}
        taken = repository.get(match.version, tensors=match.tensors)
        other.load_state_dict({name: torch.from_numpy(array) for name, array in taken.items()}, strict=False)
        assert torch.equal(other[0].weight, shallow[0].weight)
        wider = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU())
        assert repository.match(ft.graph(wider, torch.zeros(1, 5))) is None


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.ones(4))
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, x, y):
        return self.shared(x) + self.shared(y) * self.scale


class Decides(Net):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize("module, traced_by", [(Branches(), "torch.fx"), (Tied(), "torch.fx"), (Net(), "torch.fx"),
                                               (Decides(), "module tree"), (torch.nn.Linear(2, 2), "torch.fx")])
def test_a_graph_has_every_tensor_once(folder, module, traced_by):
    graph = ft.graph(module)
    assert graph["traced_by"] == traced_by
    keys = [tensor["key"] for layer in graph["layers"] for tensor in layer.get("tensors", {}).values()]
    assert sorted(keys) == sorted(ft.tensors(module))
    with freshet.Repository(folder + "/runs") as repository:
        version = repository.put("m", ft.tensors(module), graph=graph)
        stored = repository.get(version)
        for name, array in ft.tensors(module).items():
            np.testing.assert_array_equal(stored[name], array)


DDP = """
    import os, sys, logging
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    rank = int(sys.argv[1])
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    import torch, freshet, freshet.torch as ft
    torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    torch.manual_seed(0)
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    publisher = freshet.Publisher("ddp") if rank == 0 else None
    answers = [ft.publish(publisher, module) for _ in range(3)]
    print([answer and answer.version for answer in answers], flush=True)
    if rank == 0:
        with freshet.Subscriber("ddp") as subscriber:
            subscriber.wait_for(3, 60)
            print(sorted(subscriber.snapshot()), flush=True)
    torch.distributed.destroy_process_group()
"""


def test_rank_0_publishes_and_the_others_say_once_that_they_do_not(program, folder):
    ranks = [program(DDP, str(rank), folder + "/meet") for rank in range(2)]
    said = [rank.end() for rank in ranks]
    assert [code for code, _, _ in said] == [0, 0], said
    assert said[0][1].splitlines()[-2:] == ["[1, 2, 3]", "['bias', 'weight']"]
    assert said[1][1].splitlines()[-2:] == ["this is rank 1: rank 0 publishes", "[None, None, None]"]


def test_a_data_loaders_worker_that_outlives_the_loop_holds_neither_name_nor_version(program):
    loop = program("""
        import os, sys, torch, freshet
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, at):
                return os.getpid()
        module = torch.nn.Linear(4, 2)
        pub, sub = freshet.Publisher("loop"), freshet.Subscriber("loop")
        freshet.torch.publish(pub, module)
        sub.wait_for(1, 60)
        snapshot = sub.snapshot()
        batches = iter(torch.utils.data.DataLoader(Data(), batch_size=1, num_workers=1, persistent_workers=True))
        print(next(batches).item())
        sys.stdin.read()
    """)
    worker = int(loop.line())
    assert worker != loop.process.pid
    try:
        os.kill(worker, signal.SIGSTOP)  # It would end by itself, sooner or later.
        loop.process.kill()
        loop.process.wait()
        with freshet.Publisher("loop") as successor, freshet.Subscriber("loop") as subscriber:
            version = ft.publish(successor, torch.nn.Linear(4, 2)).version
            assert version > 1 and subscriber.wait_for(version, PATIENCE) == version
            assert successor.stat()["subscribers"][0]["pid"] == os.getpid() and len(successor.stat()["subscribers"]) == 1
            os.kill(worker, 0)
    finally:
        os.kill(worker, signal.SIGKILL)


class AsksForShapes(Tied):
    """torch.fx cannot follow it: whether there is a second row decides."""

    def __init__(self, hidden=6):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.first = torch.nn.Linear(3, hidden)
        self.last = torch.nn.Linear(hidden, 3)
        self.drop = torch.nn.Dropout()

    def forward(self, x):
        if x.shape[0] > 1:
            x = x + 1
        return self.head.weight @ self.drop(self.last(torch.relu(self.first(self.norm(x))))).T


def test_what_fx_cannot_trace_is_exported(folder):
    example = torch.zeros(2, 3)
    module = AsksForShapes()
    assert ft.graph(module)["traced_by"] == "module tree"
    graph = ft.graph(module, example)
    assert graph["traced_by"] == "torch.export" and module.training and module.drop.training
    keys = [tensor["key"] for layer in graph["layers"] for tensor in layer.get("tensors", {}).values()]
    assert sorted(keys) == sorted(ft.tensors(module))
    linear = next(layer for layer in graph["layers"] if "first.weight" in str(layer))
    assert set(linear["tensors"]) == {"weight", "bias"} and "linear" in linear["class"]
    with freshet.Repository(folder) as repository:
        repository.put("m", ft.tensors(module), graph=graph, quality=1.0)
        other = AsksForShapes(hidden=7)
        moved = ft.transfer(other, repository, example)
        assert torch.equal(other.norm.weight, module.norm.weight) and "first.weight" not in moved.match.tensors
        same = ft.transfer(AsksForShapes(), repository, example)
        assert set(same.match.tensors) == set(keys)
    assert ft.graph(Decides(), (torch.zeros(2, 4),))["traced_by"] == "module tree"


def test_what_was_mixed_up_is_named(tmp_path):
    module = torch.nn.Linear(2, 2)
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        for call, said in [(lambda: freshet.torch.attach(module, "m"), "subscriber.*freshet.Subscriber, not 'm'"),
                           (lambda: freshet.torch.attach(subscriber, module), "model|module"),
                           (lambda: freshet.torch.publish(module, publisher), "the publisher comes first"),
                           (lambda: freshet.torch.publish("m", module), "freshet.Publisher, not 'm'"),
                           (lambda: freshet.torch.resume(None, module), "Repository.resume")]:
            with pytest.raises(freshet.InvalidArgument, match=said):
                call()
        with pytest.raises(freshet.TimedOut, match="version 1 did not come"):
            subscriber.wait_for(timeout=0.01)
    transfer = freshet.torch.transfer(module, str(tmp_path / "runs"))  # A repository's place will do.
    assert transfer.match is None and transfer.store("a").model == "a"
