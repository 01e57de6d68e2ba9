# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a PyTorch loop on a GPU, on the host device: no byte is captured by PyTorch's own copies."""
import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
from conftest import PATIENCE
from freshet import _torch_checkpoints
from freshet.torch import Checkpoints
from test_gpus import GpuArray, gpus, values  # noqa: F401
from test_torch_gpus import OnGpu, stream  # noqa: F401


class Filled(OnGpu):
    """Tells what a restart fills it with."""

    def copy_(self, other):
        self.filled = other.numpy().copy()
        return self


def on_gpu(gpus, stream, shape):  # noqa: F811
    tensor = torch.empty(shape).as_subclass(Filled)
    tensor.array = GpuArray(gpus, "float32", shape, stream=stream.cuda_stream)
    tensor.recorded = 0
    return tensor


@pytest.fixture
def checkpoints_of(gpus, stream, monkeypatch, tmp_path):  # noqa: F811
    opened = type("OnHostGpus", (freshet.Checkpointer,), {"_test_gpus": gpus})
    monkeypatch.setattr(_torch_checkpoints, "Checkpointer", opened)
    return functools.partial(Checkpoints, "net", local=str(tmp_path), rank=0, ranks=1)


def loop(gpus, stream, layers=1):  # noqa: F811
    """A module whose optimizers have their state on the GPU."""
    module = torch.nn.Sequential(*(torch.nn.Linear(7, 7) for _ in range(layers)))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.0, momentum=0.9) for layer in module]
    for optimizer in optimizers:
        optimizer.step = functools.partial(_stepped, optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                buffer = on_gpu(gpus, stream, tuple(parameter.shape))
                optimizer.state[parameter]["momentum_buffer"] = buffer
    return module, optimizers


def buffers_of(module, optimizers):
    names = {parameter: name for name, parameter in module.named_parameters()}
    return {names[parameter]: state["momentum_buffer"] for optimizer in optimizers for parameter, state in optimizer.state.items()}


def _stepped(optimizer):
    """The step of an optimizer on the GPU, as its hooks hear of it."""
    for hook in list(optimizer._optimizer_step_pre_hooks.values()):
        hook(optimizer, (), {})
    for buffer in [state["momentum_buffer"] for state in optimizer.state.values()]:
        buffer.array.write(buffer.next)
    for hook in list(optimizer._optimizer_step_post_hooks.values()):
        hook(optimizer, (), {})


@pytest.mark.parametrize("layers, beside", [(1, True), (3, True), (3, False)])
def test_an_optimizers_state_is_that_of_the_step_and_comes_back_onto_the_gpu(gpus, stream, checkpoints_of, layers, beside):  # noqa: F811
    module, optimizers = loop(gpus, stream, layers)
    buffers = buffers_of(module, optimizers)
    wanted = {}
    checkpoints = checkpoints_of(module, optimizers, beside=beside)
    for step in range(3):
        gpus.hold(True)
        for at, (name, buffer) in enumerate(buffers.items()):
            wanted[name] = buffer.next = values("float32", tuple(buffer.shape), 100 * step + at)
        for optimizer in reversed(optimizers):
            optimizer.step()  # Nothing runs on the device, and it returns.
            if beside:
                for parameter in optimizer.state:
                    optimizer.state[parameter]["momentum_buffer"].array.write(np.zeros(tuple(parameter.shape), np.float32))
        for buffer in buffers.values():
            buffer.array.write(values("float32", tuple(buffer.shape), 7))
        gpus.hold(False)
        checkpoints.checkpointer.wait(step + 1, "local", PATIENCE)
    checkpoints.finish(PATIENCE)
    checkpoints.close()
    assert all(buffer.recorded for buffer in buffers.values()), "the allocator hears of the stream that our copies are ordered by"
    module, optimizers = loop(gpus, stream, layers)
    with checkpoints_of(module, optimizers) as checkpoints:
        assert checkpoints.step == 3
        for name, buffer in buffers_of(module, optimizers).items():
            np.testing.assert_array_equal(buffer.filled, wanted[name])


def test_a_step_that_the_gpu_is_too_far_behind_for_has_no_checkpoint(gpus, stream, checkpoints_of, caplog):  # noqa: F811
    module, optimizers = loop(gpus, stream)
    buffers = buffers_of(module, optimizers)
    checkpoints = checkpoints_of(module, optimizers)
    gpus.hold(True)
    for step in range(3):
        for buffer in buffers.values():
            buffer.next = values("float32", tuple(buffer.shape), step)
        optimizers[0].step()
    assert checkpoints.step == 3 and "step 3 has no checkpoint" in caplog.text
    gpus.hold(False)
    checkpoints.finish(PATIENCE)
    checkpoints.close()
    module, optimizers = loop(gpus, stream)
    with checkpoints_of(module, optimizers) as checkpoints:
        assert checkpoints.step == 2
        for buffer in buffers_of(module, optimizers).values():
            np.testing.assert_array_equal(buffer.filled, values("float32", tuple(buffer.shape), 1))


def test_tensors_on_a_gpu_are_filled_by_a_checkpointer(gpus, stream, tmp_path):  # noqa: F811
    opened = type("OnHostGpus", (freshet.Checkpointer,), {"_test_gpus": gpus})
    tensor = on_gpu(gpus, stream, (5, 3))
    wanted = values("float32", (5, 3), 1)
    tensor.array.write(wanted)
    with opened("net", {"w": tensor}, local=str(tmp_path), rank=0, ranks=1) as ck:
        assert ck.restore({"w": tensor}) is None and not hasattr(tensor, "filled")
        ck.checkpoint(1, {"w": tensor})
        ck.finish(PATIENCE)
    more = on_gpu(gpus, stream, (2,))
    with opened("net", {"w": tensor, "more": more}, local=str(tmp_path), rank=0, ranks=1) as ck:
        other = on_gpu(gpus, stream, (3, 5))
        with pytest.raises(freshet.InvalidArgument, match=r"tensor w: float32 \(3, 5\) came, this rank holds float32 \(5, 3\)"):
            ck.restore({"w": other, "more": more})
        assert not hasattr(other, "filled")
        assert ck.restore({"w": tensor, "more": more}).fresh == ("more",)
        np.testing.assert_array_equal(tensor.filled, wanted)
        assert not hasattr(more, "filled"), "what the version lacks stays as it is"
