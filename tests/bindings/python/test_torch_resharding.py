# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's tests of its own storage check, with a repository in its place: every way of cutting a tensor read by every other,
state that is no tensor, other types, ranks that fail; and modules that FSDP cut into pieces."""
import glob
import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")

import freshet
import freshet.torch as ft
from conftest import PATIENCE
from test_torch_storage import run_ranks_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

BEGIN = """
    import os, sys
    import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor
    import freshet, freshet.torch as ft
    folder = sys.argv[1]
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
"""
# The last one: nobody can meet afterwards.
DYING = """
    dist.barrier()
    class Dying(ft.StorageWriter):
        def write_data(self, plan, planner):
            if rank == 3:
                super().write_data(plan, planner).wait()
                print("done", flush=True)
                os._exit(0)
            return super().write_data(plan, planner)
    state = {"cut": distribute_tensor(torch.arange(8.0), init_device_mesh("cpu", (ranks,)), [Shard(0)])}
    try:
        dcp.save(state, storage_writer=Dying(folder, "dying"))
        raise SystemExit("nobody noticed")
    except Exception:
        print("done", flush=True)
        os._exit(0)
"""

RESHARD = """
    line, square = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    whole = torch.arange(10 * 7.0).reshape(10, 7)  # No axis is a multiple of the ranks.
    ways = {"line rows": (line, [Shard(0)]), "line columns": (line, [Shard(1)]), "line whole": (line, [Replicate()]),
            "square both": (square, [Shard(0), Shard(1)]), "square rows": (square, [Shard(0), Replicate()]),
            "square rows twice": (square, [Shard(0), Shard(0)]), "square columns": (square, [Replicate(), Shard(1)])}
    saved = {name: distribute_tensor(whole + at, *way) for at, (name, way) in enumerate(ways.items())}
    saved["few"] = distribute_tensor(torch.arange(2.0), line, [Shard(0)])  # Two of the ranks have nothing of it.
    dcp.save(saved, storage_writer=ft.StorageWriter(folder, "dtensors"))
    for name, way in ways.items():  # Each way is read by all: as `name`, whatever it was saved as.
        state = {other: distribute_tensor(torch.zeros(10, 7), *way) for other in ways}
        state["few"] = distribute_tensor(torch.zeros(2), line, [Replicate()])
        dcp.load(state, storage_reader=ft.StorageReader(folder, "dtensors"))
        for at, other in enumerate(ways):
            assert torch.equal(state[other].full_tensor(), whole + at), (name, other)
        assert torch.equal(state["few"].full_tensor(), torch.arange(2.0))
    plain = {name: torch.zeros(10, 7) for name in ways}  # And as no distributed tensor at all.
    dcp.load(plain, storage_reader=ft.StorageReader(folder, "dtensors"))
    assert all(torch.equal(plain[name], whole + at) for at, name in enumerate(ways))

    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
    def pieces(*cuts):
        return EnumerableShardingSpec([ShardMetadata(shard_offsets=[begin, 0], shard_sizes=[end - begin, 6], placement=f"rank:{of}/cpu")
                                       for begin, end, of in cuts])
    specs = [ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(4)]),
             ChunkShardingSpec(dim=1, placements=[f"rank:{r}/cpu" for r in (3, 1, 0, 2)]),
             pieces((0, 1, 2), (1, 5, 0), (5, 6, 3), (6, 9, 1)), pieces((0, 8, 3), (8, 9, 0))]
    for at, spec in enumerate(specs):
        cut = sharded_tensor.rand(spec, 9, 6)
        dcp.save({"cut": cut}, storage_writer=ft.StorageWriter(folder, "sharded"))
        want = torch.zeros(9, 6) if rank == 0 else None
        cut.gather(out=want)
        for other in specs:
            read = sharded_tensor.zeros(other, 9, 6)
            dcp.load({"cut": read}, storage_reader=ft.StorageReader(folder, "sharded"))
            got = torch.zeros(9, 6) if rank == 0 else None
            read.gather(out=got)
            assert rank != 0 or torch.equal(want, got), (at, specs.index(other))
"""


FAILING = """
    import torch.distributed.checkpoint.api as api
    state = {"cut": distribute_tensor(torch.arange(9.0), init_device_mesh("cpu", (ranks,)), [Shard(0)]), "epoch": 1}

    class Failing(ft.StorageWriter):
        def __init__(self, where, who):
            super().__init__(folder, "failing")
            self.where, self.who = where, who
        def maybe(self, where):
            if where == self.where and rank == self.who:
                raise ValueError(f"rank {rank} fails in {where}")
        def set_up_storage_writer(self, *given, **how):
            self.maybe("set up")
            return super().set_up_storage_writer(*given, **how)
        def prepare_local_plan(self, plan):
            self.maybe("local plan")
            return super().prepare_local_plan(plan)
        def prepare_global_plan(self, plans):
            self.maybe("global plan")
            return super().prepare_global_plan(plans)
        def write_data(self, plan, planner):
            self.maybe("write")
            return super().write_data(plan, planner)
        def finish(self, metadata, results):
            self.maybe("finish")
            return super().finish(metadata, results)

    for where, who in (("set up", 0), ("local plan", 1), ("global plan", 0), ("write", 2), ("write", 0), ("finish", 0)):
        try:
            dcp.save(state, storage_writer=Failing(where, who))
            raise SystemExit(f"{where} did not fail")
        except api.CheckpointException as error:
            assert list(error.failures) == [who] and where in str(error), error
    dist.barrier()
    if rank == 0:
        with freshet.Repository(folder) as repository:
            assert "failing" not in repository.models(), "a save that failed is no checkpoint"
    dist.barrier()
    dcp.save(state, storage_writer=ft.StorageWriter(folder, "failing"))

    class Broken(ft.StorageReader):
        def read_data(self, plan, planner):
            if rank == 1:
                raise ValueError("rank 1 cannot read")
            return super().read_data(plan, planner)
    read = {"cut": distribute_tensor(torch.zeros(9), init_device_mesh("cpu", (ranks,)), [Shard(0)]), "epoch": 0}
    try:
        dcp.load(read, storage_reader=Broken(folder, "failing"))
        raise SystemExit("nobody failed")
    except api.CheckpointException as error:
        assert list(error.failures) == [1]
    dcp.load(read, storage_reader=ft.StorageReader(folder, "failing"))
    assert torch.equal(read["cut"].full_tensor(), torch.arange(9.0)) and read["epoch"] == 1
"""


class Blob:
    """State that has a say in how it is stored."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"blob": self.value}

    def load_state_dict(self, state):
        self.value = state["blob"]


def test_what_is_nested_and_what_says_its_own_state(folder):
    state = {"blob": Blob(b"bytes"), "list": [torch.ones(2), {"deep": [torch.zeros(1), 3]}], "nothing": None, "text": "x",
             "bag": torch.nn.EmbeddingBag(5, 10).state_dict()}
    dcp.save(state, storage_writer=ft.StorageWriter(folder, "net"))
    back = {"blob": Blob(b""), "list": [torch.zeros(2), {"deep": [torch.ones(1), 0]}], "nothing": 1, "text": "",
            "bag": torch.nn.EmbeddingBag(5, 10).state_dict()}
    dcp.load(back, storage_reader=ft.StorageReader(folder, "net"))
    assert back["blob"].value == b"bytes" and back["nothing"] is None and back["text"] == "x"
    assert torch.equal(back["list"][0], torch.ones(2)) and back["list"][1]["deep"][1] == 3
    assert torch.equal(back["list"][1]["deep"][0], torch.zeros(1))
    assert torch.equal(back["bag"]["weight"], state["bag"]["weight"])


def test_planners_have_their_say(folder):
    from torch.distributed.checkpoint import DefaultLoadPlanner
    dcp.save({"a": torch.rand(4, 3), "b": torch.ones(2)}, storage_writer=ft.StorageWriter(folder, "net"))
    narrow = {"a": torch.zeros(4, 3, dtype=torch.bfloat16)}
    dcp.load(narrow, storage_reader=ft.StorageReader(folder, "net"))
    wide = {"a": torch.zeros(4, 3, dtype=torch.float64)}
    dcp.load(wide, storage_reader=ft.StorageReader(folder, "net"))
    assert torch.equal(wide["a"].bfloat16(), narrow["a"]) and narrow["a"].any()
    missing = {"b": torch.zeros(2), "c": torch.zeros(2)}
    with pytest.raises(dcp.api.CheckpointException, match="c"):
        dcp.load(missing, storage_reader=ft.StorageReader(folder, "net"))
    dcp.load(missing, storage_reader=ft.StorageReader(folder, "net"), planner=DefaultLoadPlanner(allow_partial_load=True))
    assert missing["b"].sum() == 2 and missing["c"].sum() == 0
    metadata = ft.StorageReader(folder, "net").read_metadata()
    assert sorted(metadata.state_dict_metadata) == ["a", "b"] and len(metadata.storage_data) == 2
    with pytest.raises(freshet.NotFound):
        ft.StorageReader(folder, "nobody").read_metadata()


FSDP = """
    import logging
    import numpy as np
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    said = []
    class Keep(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
    logging.getLogger("freshet").addHandler(Keep())
    logging.getLogger("freshet").setLevel(logging.INFO)

    mesh = init_device_mesh("cpu", (ranks,))
    def network(seed):
        torch.manual_seed(seed)
        module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
        for layer in module:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module, torch.optim.Adam(module.parameters(), lr=0.01)
    def train(module, optimizer, step):
        torch.manual_seed(100 * step + rank)
        optimizer.zero_grad()
        module(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
    def whole(module):
        return {name: one.full_tensor().numpy() for name, one in module.state_dict().items()}

    module, optimizer = network(1)
    for step in range(2):
        train(module, optimizer, step)
    publisher = freshet.Publisher("net") if rank == 0 else None
    want = whole(module)
    for _ in range(2):
        receipt = ft.publish(publisher, module, step=2)
        assert (receipt is None) == (rank != 0)
    try:
        ft.publish(publisher, module, optimizer=optimizer)
        assert rank != 0
    except freshet.Unsupported as error:
        assert rank == 0 and "cut into pieces" in str(error)
    if rank == 0:
        with freshet.Subscriber("net") as server:
            server.wait_for(2)
            with server.snapshot() as snapshot:
                assert sorted(snapshot) == sorted(want)
                assert all(np.array_equal(snapshot[name], one) for name, one in want.items())
    assert sum("rank 0 publishes" in line for line in said) == (0 if rank == 0 else 1), said

    of_module, of_optimizer = get_state_dict(module, optimizer)
    dcp.save({"model": of_module, "optimizer": of_optimizer}, storage_writer=ft.StorageWriter(folder, "fsdp"))
    for step in range(2, 4):
        train(module, optimizer, step)
    want = whole(module)
    again, optimizer = network(9)
    of_module, of_optimizer = get_state_dict(again, optimizer)
    state = {"model": of_module, "optimizer": of_optimizer}
    dcp.load(state, storage_reader=ft.StorageReader(folder, "fsdp"))
    set_state_dict(again, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for step in range(2, 4):
        train(again, optimizer, step)
    got = whole(again)
    assert all(np.array_equal(got[name], one) for name, one in want.items()), "it goes on as if nothing had been"
"""


def test_four_ranks(folder):
    """Every cut is read as every other; a rank that fails leaves no checkpoint, and the next save is whole; what FSDP cut into pieces is
    published whole, and goes on from a checkpoint; a rank that dies is noticed by the others. All at once, since each rank takes its time to load PyTorch."""
    run_ranks_of(BEGIN + RESHARD + FAILING + FSDP + DYING, 4, folder)
    with freshet.Repository(folder) as repository:
        assert [row.version for row in repository.versions("failing") if not row.retired] == ["failing@1"]
        parts = [row.version for row in repository.versions("failing.rank1") if not row.retired]
        assert len(parts) == 1, "what the saves that failed had stored is retired"
        assert "dying" not in repository.models()
        dcp.save({"cut": torch.arange(8.0)}, storage_writer=ft.StorageWriter(repository, "dying"))
        read = {"cut": torch.zeros(8)}
        dcp.load(read, storage_reader=ft.StorageReader(repository, "dying"))
        assert torch.equal(read["cut"], torch.arange(8.0)), "the next save is whole"


# PyTorch's own tests of what stores checkpoints, with our storage in the place of its files.
OWN = ["test_file_system_checkpoint_cpu.py", "test_dtensor_resharding.py", "test_dtensor_checkpoint.py", "test_nested_dict.py",
       "test_hsdp_checkpoint.py", "test_tp_checkpoint.py", "test_fsdp_model_state.py", "test_fsdp_optim_state.py"]


@pytest.mark.parametrize("name", OWN)
def test_pytorchs_own(name, folder):
    where = os.environ.get("FRESHET_PYTORCH_TESTS")
    if not where:
        pytest.skip("FRESHET_PYTORCH_TESTS names no folder with PyTorch's test/distributed/checkpoint")
    path = os.path.join(where, name)
    if not os.path.exists(path):
        pytest.skip(f"{where} has no {name}")
    if importlib.util.find_spec("expecttest") is None:
        pytest.skip("PyTorch's tests need the package expecttest")
    shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorch_storage")
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", path], text=True, cwd=folder,
                         capture_output=True, timeout=10 * PATIENCE,
                         env=dict(os.environ, PYTHONPATH=shim, FRESHET_PLACES=folder, OMP_NUM_THREADS="1"))
    print(ran.stdout)
    assert ran.returncode in (0, 5), ran.stdout[-4000:] + ran.stderr[-4000:]
    assert ran.returncode == 5 or " skipped" in ran.stdout or glob.glob(os.path.join(folder, "*", "used")), "our storage was used"
