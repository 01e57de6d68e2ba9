# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of tensors in a GPU's memory, on the host device: no GPU and no framework on CUDA is needed."""
import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually, free_port
from test_gpus import GpuArray, gpus, values  # noqa: F401
from test_jax_gpus import JaxArray


@pytest.fixture
def job(gpus, tmp_path):
    """Lives of a job of one rank."""
    opened = type("OnHostGpus", (freshet.Checkpointer,), {"_test_gpus": gpus})
    lives = []

    def begin(tensors):
        if lives:
            lives.pop().close()
        lives.append(opened("net", tensors, local=str(tmp_path / "ck"), rank=0, ranks=1, keep={"local": 20}))
        return lives[-1]

    yield begin
    gpus.hold(False)
    if lives:
        lives.pop().close()


def check_stored(job, ck, version, wanted):
    """The version is on the disk, and the next life goes on from it."""
    ck.wait(version, "local", PATIENCE)
    ck.finish(PATIENCE)
    again = job(wanted)
    state = {name: np.zeros_like(array) for name, array in wanted.items()}
    assert again.restore(state).version == version
    for name, array in wanted.items():
        np.testing.assert_array_equal(state[name], array)
    return again


def test_a_version_has_what_the_stream_had_queued(gpus, job):
    array = GpuArray(gpus, "float32", (301, 7), stream=gpus.create_stream(0))
    array.write(values("float32", (301, 7), 0))
    ck = job({"w": array})
    assert ck.restore({"w": np.zeros((301, 7), np.float32)}) is None and ck.held("w") == (301, 7)
    for step in range(1, 4):
        gpus.hold(True)
        wanted = values("float32", (301, 7), step)
        array.write(wanted)
        captured = ck.checkpoint(step, {"w": array})  # Nothing runs on the device, and it returns.
        assert captured.bytes == wanted.nbytes and not ck.poll(captured.version, "memory")
        array.write(values("float32", (301, 7), 100 + step))
        gpus.hold(False)
        ck = check_stored(job, ck, captured.version, {"w": wanted})


def test_layers_of_two_devices_and_of_the_host(gpus, job):
    streams = [gpus.create_stream(0), gpus.create_stream(1)]
    arrays = {f"layer{at}": GpuArray(gpus, "int32", (50, at), at % 2, streams[at % 2]) for at in range(4)}
    described = {name: freshet.CheckpointTensor("i32", array.shape) for name, array in arrays.items()}
    described["host"] = freshet.CheckpointTensor("f64", (20_000,))
    ck = job(described)
    ck.restore({name: np.zeros(tensor.shape, np.float64 if name == "host" else np.int32) for name, tensor in described.items()})
    gpus.hold(True)
    version = ck.begin(7)
    wanted = {}
    for at, (name, array) in enumerate(arrays.items()):
        wanted[name] = values("int32", array.shape, at)
        array.write(wanted[name])
        host = values("float64", (20_000,), 9)
        ck.capture({name: array, **({"host": host} if at == 1 else {})}, beside=True)
        ck.wait_for_copies([name])  # For no GPU.
        array.write(values("int32", array.shape, 50 + at))
    wanted["host"] = values("float64", (20_000,), 9)
    ck.end()
    gpus.hold(False)
    check_stored(job, ck, version, wanted)


def test_what_jax_lends_stays_until_its_copies_have_ended(gpus, job):
    stream, dropped = gpus.create_stream(0), []
    ck = job({"w": freshet.CheckpointTensor("f32", (301, 7))})
    ck.restore({"w": np.zeros((301, 7), np.float32)})
    for step in range(1, 3):
        gpus.hold(True)
        wanted = values("float32", (301, 7), step)
        captured = ck.checkpoint(step, {"w": JaxArray(gpus, wanted, stream, dropped)})
        gc.collect()
        assert len(dropped) == step - 1, "what our copies read stays"
        gpus.hold(False)
        ck.wait(captured.version, "memory", PATIENCE)
        assert eventually(lambda: len(dropped) == step), "and goes when they have ended"
    gpus.hold(True)
    ck.begin(3)
    ck.capture({"w": JaxArray(gpus, wanted, stream, dropped)})
    with pytest.raises(freshet.InvalidArgument, match="captured already"):
        ck.capture({"w": JaxArray(gpus, wanted, stream, dropped)})
    with pytest.raises(freshet.InvalidArgument, match="captured already"):
        ck.end()
    gc.collect()
    assert len(dropped) == 2, "so it is where the version fails"
    gpus.hold(False)
    assert eventually(lambda: gc.collect() >= 0 and len(dropped) == 4)
    check_stored(job, ck, 2, {"w": wanted})


def test_jax_copies_within_the_gpu_what_the_rank_stores(gpus, tmp_path, monkeypatch):
    monkeypatch.setattr("freshet._dlpack.part_of", lambda value, first, count: value.part(first, count))
    opened = type("OnHostGpus", (freshet.Checkpointer,), {"_test_gpus": gpus})
    meet, wanted = f"tcp://127.0.0.1:{free_port()}", {"w": values("float32", (40_003,), 1), "one": values("int64", (10, 7), 2)}
    described = {"w": freshet.CheckpointTensor("f32", (40_003,)), "one": freshet.CheckpointTensor("i64", (10, 7), layout="from:1")}

    def run(rank):
        arrays = {name: JaxArray(gpus, value, gpus.create_stream(0), []) for name, value in wanted.items()}
        with opened("net", described, local=str(tmp_path / f"{rank}"), rank=rank, ranks=2, meet=meet) as ck:
            ck.restore({name: np.zeros_like(value) for name, value in wanted.items()})
            assert ck.checkpoint(1, arrays).version == 1
            ck.wait(1, "local", PATIENCE)
            ck.finish(PATIENCE)
        return arrays

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(run, range(2))
    parts = first["w"].parts + second["w"].parts
    assert len(parts) == 2 and all(20_000 <= count <= 20_003 for _, count in parts) and first["w"].copies + second["w"].copies == 0
    assert [(one["one"].copies, one["one"].parts) for one in (first, second)] == [(0, []), (1, [])]
    with opened("net", wanted, local=[str(tmp_path / f"{rank}") for rank in range(2)], rank=0, ranks=1) as ck:
        state = {name: np.zeros_like(value) for name, value in wanted.items()}
        assert ck.restore(state).version == 1
    for name, value in wanted.items():
        np.testing.assert_array_equal(state[name], value)


def test_a_loop_that_is_ahead_leaves_a_step_out(gpus, job):
    array = GpuArray(gpus, "int32", (1000,), stream=gpus.create_stream(0))
    ck = job({"w": array})
    ck.restore({"w": np.zeros(1000, np.int32)})
    gpus.hold(True)
    for step in (1, 2):
        wanted = values("int32", (1000,), step)
        array.write(wanted)
        last = ck.checkpoint(step, {"w": array})
    array.write(values("int32", (1000,), 3))
    with pytest.raises(freshet.OutOfSpace, match="not copied from the GPU yet"):
        ck.begin(3)
    gpus.hold(False)
    ck = check_stored(job, ck, last.version, {"w": wanted})
    captured = ck.checkpoint(4, {"w": array})
    check_stored(job, ck, captured.version, {"w": values("int32", (1000,), 3)})


@pytest.mark.parametrize("more, words", [
    ({"strides": (8,)}, "tensor w: it lies strided"),
    ({"typestr": "<i4"}, r"tensor w: int32 \(100,\) came, this rank holds float32 \(100,\)"),
    ({"shape": (99,)}, r"tensor w: float32 \(99,\) came"),
    ({"stream": 0xdead}, "no such stream"),
    ({"data": (np.zeros(100, np.float32).ctypes.data, False)}, "tensor w on GPU 0: the driver knows its address as host memory"),
])
def test_what_is_refused_names_the_tensor(gpus, job, more, words):
    array = GpuArray(gpus, "float32", (100,), stream=gpus.create_stream(0))
    wanted = values("float32", (100,), 1)
    array.write(wanted)
    ck = job({"w": array})
    ck.restore({"w": np.zeros(100, np.float32)})
    array.more = more
    with pytest.raises(freshet.InvalidArgument, match="(?s)" + words):
        ck.checkpoint(1, {"w": array})
    array.more = {}
    captured = ck.checkpoint(2, {"w": array})
    check_stored(job, ck, captured.version, {"w": wanted})


def test_a_lost_device_harms_no_version(gpus, job):
    array = GpuArray(gpus, "float32", (100,), stream=gpus.create_stream(0))
    wanted = values("float32", (100,), 1)
    array.write(wanted)
    ck = job({"w": array})
    ck.restore({"w": np.zeros(100, np.float32)})
    first = ck.checkpoint(1, {"w": array})
    ck.wait(first.version, "local", PATIENCE)
    gpus.hold(True)
    array.write(values("float32", (100,), 2))
    second = ck.checkpoint(2, {"w": array})
    gpus.strike(0)
    gpus.hold(False)
    with pytest.raises(freshet.FailedPrecondition, match="version 2, copy the tensors"):
        ck.wait(second.version, "memory", PATIENCE)
    with pytest.raises(freshet.FailedPrecondition, match="lost to this process"):
        ck.checkpoint(3, {"w": array})
    failed = [event for event in ck.events() if event["event"] == "failed" and event["level"] == "memory"]
    assert [event["version"] for event in failed] in ([2], [2, 3])
    check_stored(job, ck, first.version, {"w": wanted})


def test_it_is_closed_with_copies_under_way(gpus, job):
    array = GpuArray(gpus, "float32", (30_000,), stream=gpus.create_stream(0))
    for step in range(4):
        ck = job({"w": array})
        ck.restore({"w": np.zeros(30_000, np.float32)}, anew=True)
        array.write(values("float32", (30_000,), step))
        ck.checkpoint(1, {"w": array})
        if step % 2 == 0:
            ck.begin(2)
            ck.capture({"w": array})
        ck.close()
