# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules: published and viewed."""
import os
import pickle
import signal

import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from freshet._torch_arrays import with_tied
from conftest import PATIENCE
from torch_modules import Net, Tied, published


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


def test_tied_weights_of_a_repository_are_viewed_by_all_names(pair, folder):
    module = Tied()
    repository = freshet.Repository(os.path.join(folder, "repository"))
    with repository.sink("m") as sink:
        sink.wait_for(ft.publish(pair[0], module).version, PATIENCE)
    stored = repository.get("m")
    assert list(stored) == ["embed.weight"] and stored.version == "m@1" and "freshet.tied" in stored.tags
    for arrays in (stored, pickle.loads(pickle.dumps(stored))):
        viewed = ft.view(arrays)
        assert viewed["head.weight"] is viewed["embed.weight"]
        Tied().load_state_dict(viewed)
    assert list(ft.view(repository.get("m", {"embed.weight": "embed.weight"}))) == ["embed.weight"], "names of the caller's"


def test_a_module_is_filled_from_a_repository(folder):
    repository = freshet.Repository(os.path.join(folder, "repository"))
    trained, newer = Net(), Net()
    for module in (trained, newer):
        repository.put("net", ft.tensors(module))
    module = Net()
    assert ft.load(module, repository, "net@1") == "net@1"
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(module.state_dict().values(), trained.state_dict().values()))
    assert ft.load(module, repository, "net") == "net@2"
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(module.state_dict().values(), newer.state_dict().values()))
    tied = Tied()
    repository.put("tied", {"embed.weight": tied.embed.weight}, tags={"freshet.tied": '{"head.weight": "embed.weight"}'})
    other = Tied()
    assert ft.load(other, repository, "tied") == "tied@1" and torch.equal(other.head.weight, tied.embed.weight)
    with pytest.raises(freshet.FailedPrecondition, match="embed.weight: net@2 does not have it"):
        ft.load(other, repository, "net")
    assert torch.equal(other.head.weight, tied.embed.weight), "all or none"
    repository.put("more", {**ft.tensors(trained), "extra": torch.zeros(2)})
    with pytest.raises(freshet.FailedPrecondition, match="tensor extra: more@1 has it"):
        ft.load(module, repository, "more")
    ft.load(module, repository, "more", strict=False)
    with pytest.raises(freshet.NotFound, match="none"):
        ft.load(module, repository, "none@1")
    with pytest.raises(freshet.InvalidArgument, match="module"):
        ft.load({}, repository, "net")
    repository.close()


def test_a_tag_that_says_nothing_sound_of_tied_weights_says_nothing(pair):
    publisher, subscriber = pair
    tensors = {"weight": torch.zeros(2, 3), "bias": torch.ones(2)}
    for tied in ("{", "[]", '{"weight": 1}', '{"a": ["bias"]}'):
        with pytest.raises(freshet.InvalidArgument, match="freshet.tied"):
            publisher.publish(tensors, tags={"freshet.tied": tied})
        bias = tensors["bias"].numpy()
        assert list(with_tied({"bias": bias}, {"freshet.tied": tied})) == ["bias"], "of a publisher that looks at no tags"
    with pytest.raises(freshet.InvalidArgument, match="freshet.other"):
        publisher.publish(tensors, tags={"freshet.other": "x"})
    publisher.publish(tensors, tags={"freshet.tied": '{"weight": "bias", "other": "bias", "none": "gone"}'}, sync=True)
    viewed = ft.view(subscriber.snapshot(1, timeout=PATIENCE))
    assert sorted(viewed) == ["bias", "other", "weight"]
    assert viewed["weight"].shape == (2, 3) and viewed["other"] is viewed["bias"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "uint8",
                                   "bool"])
def test_types_come_as_they_went(pair, dtype):
    module = torch.nn.Module()
    module.register_buffer("w", torch.tensor([[0.0, 1.0], [2.0, -3.0]]).to(getattr(torch, dtype)))
    published(pair, module)
    came = ft.view(pair[1].snapshot())["w"]
    assert came.dtype == module.w.dtype and torch.equal(came.double(), module.w.double())


@pytest.mark.parametrize("dtype", ["complex64", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn_x2"])
def test_types_that_are_carried_as_bits_come_as_they_went(pair, dtype):
    if not hasattr(torch, dtype):
        pytest.skip(f"this PyTorch has no {dtype}")
    raw = torch.arange(64, dtype=torch.uint8).reshape(4, 16)
    module = torch.nn.Module()
    module.register_buffer("w", raw.view(getattr(torch, dtype)))
    published(pair, module)
    came = ft.view(pair[1].snapshot())["w"]
    assert came.dtype == module.w.dtype and came.shape == module.w.shape
    assert torch.equal(came.view(torch.uint8), raw)


def test_strided_parameters_come_as_they_look(pair):
    module = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    module.extra = torch.nn.Parameter(torch.randn(3, 5).t())
    published(pair, module)
    came = ft.view(pair[1].snapshot())
    assert torch.equal(came["weight"], module.weight) and torch.equal(came["extra"], module.extra)


@pytest.mark.parametrize("name, tensor", [
    ("meta", torch.empty(3, device="meta")), ("complex", torch.zeros(2, dtype=torch.complex128)),
    ("sparse", torch.eye(2).to_sparse()),
])
def test_what_has_no_bytes_of_its_own_is_refused_by_name(pair, name, tensor):
    module = torch.nn.Module()
    module.register_buffer("good", torch.ones(1))
    module.register_buffer(name, tensor)
    with pytest.raises(freshet.InvalidArgument, match=f"tensor {name}:"):
        ft.publish(pair[0], module)
    with pytest.raises(freshet.InvalidArgument, match="that the module does not have"):
        ft.publish(pair[0], Net(), optimizer=torch.optim.SGD(Net().parameters(), 0.1))


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
