# SPDX-License-Identifier: Apache-2.0
"""PyTorch's checkpoints in a repository: what its own storage tests check, and what a repository adds."""
import io
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

import freshet
import freshet.torch as ft
from conftest import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def save(folder, state, model="net", **how):
    writer = ft.StorageWriter(folder, model, **how)
    dcp.save(state, storage_writer=writer)
    return writer.version


def load(folder, state, version="net"):
    dcp.load(state, storage_reader=ft.StorageReader(folder, version))
    return state


class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


class Mine:
    def __init__(self, number):
        self.number = number


def test_what_a_writer_stored_runs_no_code_unless_asked_for(folder, monkeypatch):
    monkeypatch.setenv("EVIL", os.path.join(folder, "evil"))
    plain = {"step": 3, "list": [1, (2.5, None)], "text": "ü", "set": {1, 2}}
    save(folder, plain)
    assert str(load(folder, dict.fromkeys(plain))) == str(plain)
    with freshet.Repository(folder) as repository:
        arrays = {name: np.array(array) for name, array in repository.get("net@1").items()}
        legacy = io.BytesIO()
        torch.save(Evil(), legacy, _use_new_zipfile_serialization=False)
        for evil in (pickle.dumps(Evil()), legacy.getvalue(), b"", b"no pickle"):
            repository.put("net", {**arrays, "step": np.frombuffer(evil, np.uint8)}, ancestor="net@1")
            with pytest.raises(BaseException, match=r"net@\d: 'step' is no plain object"):
                load(folder, dict.fromkeys(plain))
    assert not os.path.exists(os.environ["EVIL"])

    save(folder, {"mine": Mine(5)}, "own")
    with pytest.raises(BaseException, match="weights_only=False"):
        load(folder, {"mine": None}, "own")
    state = {"mine": None}
    dcp.load(state, storage_reader=ft.StorageReader(folder, "own", weights_only=False))
    assert state["mine"].number == 5
    with torch.serialization.safe_globals([Mine]):
        assert load(folder, {"mine": None}, "own")["mine"].number == 5


def test_a_module_and_its_optimizer_come_back(folder):
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.randn(16, 4)).sum().backward()
        optimizer.step()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "name": "digits"}
    assert save(folder, state, step=3, metrics={"loss": 0.5}) == "net@1"

    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    optimizer2 = torch.optim.Adam(other.parameters())
    other(torch.randn(16, 4)).sum().backward()
    optimizer2.step()
    back = load(folder, {"model": other.state_dict(), "optimizer": optimizer2.state_dict(), "epoch": 0, "name": ""})
    assert back["epoch"] == 7 and back["name"] == "digits"
    for key, tensor in module.state_dict().items():
        assert torch.equal(back["model"][key], tensor), key
    for index, one in optimizer.state_dict()["state"].items():
        for key, tensor in one.items():
            assert torch.equal(back["optimizer"]["state"][index][key], tensor), (index, key)
    with freshet.Repository(folder) as repository:
        assert np.array_equal(repository.get("net@1", ["model.0.weight"])["model.0.weight"],
                              module[0].weight.detach().numpy())
        assert repository.resume("net").step == 3


def test_types_and_shapes(folder):
    state = {"bf16": torch.randn(3, 4).bfloat16(), "f8": torch.randn(5).to(torch.float8_e4m3fn),
             "complex": torch.randn(2, 3, dtype=torch.complex64), "conj": torch.randn(2, dtype=torch.complex64).conj(),
             "bool": torch.tensor([True, False]), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4),
             "i64": torch.arange(6), "u16": torch.arange(4).to(torch.uint16), "strided": torch.randn(4, 6).t()[1:5],
             "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), "bytes": {"a": [1, "x"]}}
    save(folder, state)
    empty = {key: torch.zeros_like(one) if isinstance(one, torch.Tensor) else None for key, one in state.items()}
    empty["bytes"] = {"a": [0, ""]}
    back = load(folder, empty)
    for key, one in state.items():
        if isinstance(one, torch.Tensor):
            assert back[key].dtype == one.dtype and torch.equal(back[key].view(torch.uint8) if key == "f8" else back[key],
                                                                one.view(torch.uint8) if key == "f8" else one), key
    assert back["bytes"] == {"a": [1, "x"]}


def test_only_what_changed_is_stored(folder):
    layers = {f"layer{i}": torch.randn(64, 256) for i in range(10)}
    with freshet.Repository(folder) as repository:
        save(repository, layers)
        first = repository.stat()["live_bytes"]
        layers["layer4"] += 1
        assert save(repository, layers) == "net@2"
        second = repository.stat()["live_bytes"] - first
        assert first / second >= 8
        assert [row.ancestor for row in repository.lineage("net@2")] == ["net@1", None]
        old = load(repository, {key: torch.zeros_like(one) for key, one in layers.items()}, "net@1")
        assert torch.equal(old["layer4"] + 1, layers["layer4"])


def test_some_of_a_checkpoint_and_strictness(folder):
    save(folder, {"a": torch.ones(3), "b": torch.zeros(3)})
    assert load(folder, {"a": torch.zeros(3)})["a"].sum() == 3
    with pytest.raises(dcp.api.CheckpointException, match="c"):
        load(folder, {"c": torch.zeros(3)})
    with pytest.raises(dcp.api.CheckpointException, match="size|shape|mismatch"):
        load(folder, {"a": torch.zeros(4)})


def test_async_save(folder):
    state = {"w": torch.arange(1000.0)}
    writer = ft.StorageWriter(folder, "net")
    future = dcp.async_save(state, storage_writer=writer)
    state["w"] += 1  # It had been copied.
    future.result(timeout=PATIENCE)
    assert writer.version == "net@1"
    assert torch.equal(load(folder, {"w": torch.zeros(1000)})["w"], torch.arange(1000.0))


def test_writer_and_reader_travel_to_other_processes(folder):
    writer = pickle.loads(pickle.dumps(ft.StorageWriter(folder, "net")))
    dcp.save({"w": torch.ones(2)}, storage_writer=writer)
    reader = pickle.loads(pickle.dumps(ft.StorageReader(folder, "net")))
    state = {"w": torch.zeros(2)}
    dcp.load(state, storage_reader=reader)
    assert state["w"].sum() == 2


def test_a_folder_that_was_removed_is_made_anew(folder):
    """The open repository is shared by all who save in a process; what lies in the folder's place may be another one."""
    place = os.path.join(folder, "runs")
    assert save(place, {"w": torch.ones(2)}) == "net@1" and save(place, {"w": torch.zeros(2)}) == "net@2"
    shutil.rmtree(place)
    assert save(place, {"w": torch.full((2,), 7.0)}) == "net@1"
    assert load(place, {"w": torch.zeros(2)})["w"].tolist() == [7, 7]
    assert os.path.isdir(place)


def test_bad_input_names_the_tensor_and_stores_nothing(folder):
    with freshet.Repository(folder) as repository:
        for bad in (torch.ones(2, 2).to_sparse(), torch.empty(2, device="meta")):
            with pytest.raises(dcp.api.CheckpointException, match="tensor bad"):
                save(repository, {"good": torch.ones(2), "bad": bad})
        assert repository.models() == []
        repository.put("plain", {"w": np.zeros(3, np.float32)})
        with pytest.raises(dcp.api.CheckpointException, match="plain@1 is not a checkpoint"):
            load(repository, {"w": torch.zeros(3)}, "plain")
        with pytest.raises(dcp.api.CheckpointException, match="nobody"):
            load(repository, {"w": torch.zeros(3)}, "nobody")
        for text in (b"", b"{", b"[]", b'{"freshet_checkpoint":2}', b'{"freshet_checkpoint":1,"tensors":{"w":{"dtype":"os"}}}',
                     b"[" * 100000):
            repository.put("bad", {"w": np.zeros(3, np.float32), ".metadata": np.frombuffer(text or b"\0", np.uint8)})
            with pytest.raises(dcp.api.CheckpointException, match="bad@"):
                load(repository, {"w": torch.zeros(3)}, "bad")


RANKS = """
    import os, sys
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor
    import freshet, freshet.torch as ft
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    folder, what = sys.argv[1], sys.argv[2]
    whole = torch.arange(48.0).reshape(12, 4)
    if what == "save":
        for change in range(2):
            state = {"cut": distribute_tensor(whole + change, mesh, [Shard(0)]), "same": torch.ones(5),
                     "other": distribute_tensor(whole.t().contiguous(), mesh, [Shard(1)]), "epoch": change}
            writer = ft.StorageWriter(folder, "net")
            dcp.save(state, storage_writer=writer)
            assert (writer.version is None) == (dist.get_rank() != 0)
    else:
        state = {"cut": distribute_tensor(torch.zeros(12, 4), mesh, [Shard(1)]), "same": torch.zeros(5),
                 "other": distribute_tensor(torch.zeros(4, 12), mesh, [Replicate()]), "epoch": -1}
        dcp.load(state, storage_reader=ft.StorageReader(folder, "net"))
        assert torch.equal(state["cut"].full_tensor(), whole + 1), state["cut"]
        assert torch.equal(state["other"].full_tensor(), whole.t())
        assert state["same"].sum() == 5 and state["epoch"] == 1
    dist.barrier()
    print("done", flush=True)
    dist.destroy_process_group()
"""


def run_ranks(count, *arguments):
    run_ranks_of(RANKS, count, *arguments)


def run_ranks_of(text, count, *arguments):
    """A program as so many ranks, each of which ends with the line "done"."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", textwrap.dedent(text), *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1",
                                       MASTER_PORT=str(port), OMP_NUM_THREADS="1")) for rank in range(count)]
    for rank in ranks:
        out, err = rank.communicate(timeout=5 * PATIENCE)
        assert rank.returncode == 0 and out == "done\n", err


def test_a_tag_alone_makes_no_share_of_a_checkpoint(folder):
    with freshet.Repository(folder) as repository:
        one = {"w": np.zeros(2, np.float32)}
        share = repository.put("net.rank1", one, tags={"freshet.part_of": "net"})
        repository.put("net.rank1", one)                                         # Says nothing of a checkpoint.
        repository.put("net.rank2", one, tags={"freshet.part_of": "other"})
        prod = repository.put("prod.rank1", one, tags={"freshet.part_of": "net"})
        good = repository.put("net", one, tags={"freshet.parts": '["net.rank1@1"]'})
        repository.pin(share, str(good), stays=True)
        claimed = ["net.rank1@1", "net.rank1@2", "net.rank2@1", "net.rank3@1", "prod.rank1@1", "net.rank1@1"]
        bad = repository.put("net", one, tags={"freshet.parts": json.dumps(claimed)})
        ft.retire_checkpoint(repository, bad)
        for part in (share, "net.rank1@2", "net.rank2@1", prod, good):
            assert repository.get(part), part
        ft.retire_checkpoint(repository, good)
        with pytest.raises(freshet.NotFound):
            repository.get(share)
        for tag in ('["prod@1"]', "[1]", "{", '"net.rank1@1"'):
            with pytest.raises(freshet.InvalidArgument, match="freshet.parts"):
                repository.put("net", one, tags={"freshet.parts": tag})


def test_saved_by_three_ranks_loaded_by_two_and_by_one(folder):
    run_ranks(3, folder, "save")
    run_ranks(2, folder, "load")
    with freshet.Repository(folder) as repository:
        back = load(repository, {"cut": torch.zeros(12, 4), "epoch": 0})
        assert torch.equal(back["cut"], torch.arange(48.0).reshape(12, 4) + 1) and back["epoch"] == 1
        assert repository.pins("net.rank1@2") == ["net@2"]
        with pytest.raises(freshet.FailedPrecondition, match="net@2"):
            repository.retire("net.rank1@2")

        # What a save that ended half-way left is retired by the next one, and nothing else.
        orphan = repository.put("net.rank1", {"cut[4,0]": np.zeros((4, 4), np.float32)}, tags={"freshet.part_of": "net"})
        foreign = repository.put("net.rank2", {"mine": np.zeros(4, np.float32)})
    run_ranks(3, folder, "save")
    with freshet.Repository(folder) as repository:
        kept = [row.version for row in repository.versions("net.rank1") if not row.retired]
        assert orphan not in kept and kept == ["net.rank1@1", "net.rank1@2", "net.rank1@4", "net.rank1@5"]

        assert foreign in [row.version for row in repository.versions("net.rank2") if not row.retired]

        repository.pin("net.rank2@1", "somebody")
        with pytest.raises(freshet.FailedPrecondition, match="somebody"):
            ft.retire_checkpoint(repository, "net@1")
        assert not repository.lineage("net@1")[0].retired
        repository.unpin("net.rank2@1", "somebody")
        ft.retire_checkpoint(repository, "net@1")
        assert [row.retired for row in repository.versions("net.rank1")][0]
        repository.gc()
        assert torch.equal(load(repository, {"cut": torch.zeros(12, 4)}, "net@2")["cut"],
                           torch.arange(48.0).reshape(12, 4) + 1)


IN_A_PROCESS = """
    import os, sys
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    import freshet.torch as ft

    if __name__ == "__main__":
        dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/meet", rank=0, world_size=1)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
        writer = ft.StorageWriter(sys.argv[1] + "/runs", "net")
        state = {"w": torch.arange(1000.0)}
        for _ in range(2):
            saved = dcp.async_save(state, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
            state["w"] += 1
            saved.result()
        read = {"w": torch.zeros(1000)}
        dcp.load(read, storage_reader=ft.StorageReader(sys.argv[1] + "/runs", "net"))
        print(torch.equal(read["w"], torch.arange(1000.0) + 1), flush=True)
        dist.destroy_process_group()
"""


def test_async_save_in_a_process_of_its_own(program, folder):
    saver = program(IN_A_PROCESS, folder)
    assert saver.line() == "True"
    assert saver.end()[0] == 0
    with freshet.Repository(folder + "/runs") as repository:
        assert [row.ancestor for row in repository.lineage("net@2")] == ["net@1", None]
