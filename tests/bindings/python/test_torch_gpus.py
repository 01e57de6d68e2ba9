# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch loop on a GPU goes on from, on the host device: no byte of it goes through PyTorch's own copies."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from conftest import PATIENCE
from freshet import _torch_on_device, _torch_state
from test_gpus import GpuArray, gpus, values  # noqa: F401


class OnGpu(torch.Tensor):
    """What a CUDA tensor says of itself; its bytes lie in the host device's memory."""
    is_cuda = True
    device = torch.device("cuda:0")

    def detach(self):
        return self

    def data_ptr(self):
        return self.array.address

    def record_stream(self, stream):
        self.recorded += 1

    def cpu(self, *_, **__):
        raise AssertionError("PyTorch's own copy")

    numpy = to = cpu


class Stream:
    def __init__(self, number):
        self.cuda_stream = number


@pytest.fixture
def stream(gpus, monkeypatch):
    made = Stream(gpus.create_stream(0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    for module in (_torch_on_device, _torch_state):
        monkeypatch.setattr(module, "_check", lambda name, tensor: None)  # It takes no class of a program's own.
    return made


def on_gpu(gpus, stream, shape):
    tensor = torch.empty(shape).as_subclass(OnGpu)
    tensor.array = GpuArray(gpus, "float32", shape, stream=stream.cuda_stream)
    tensor.recorded = 0
    return tensor


def test_an_optimizers_state_comes_as_the_stream_had_queued_it(gpus, stream, tmp_path):
    module = torch.nn.Linear(7, 5)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for parameter in module.parameters():
        optimizer.state[parameter]["momentum_buffer"] = on_gpu(gpus, stream, tuple(parameter.shape))
    buffers = {f"optimizer/{name}/momentum_buffer": optimizer.state[parameter]["momentum_buffer"]
               for name, parameter in module.named_parameters()}
    opened = type("OnHostGpus", (freshet.Publisher,), {"_test_gpus": gpus})
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        with opened("net") as publisher, repository.sink("net") as sink:
            for step in range(3):
                wanted = {name: values("float32", tuple(buffer.shape), 10 * step + at) for at, (name, buffer) in enumerate(buffers.items())}
                gpus.hold(True)
                for name, buffer in buffers.items():
                    buffer.array.write(wanted[name])
                receipt = ft.publish(publisher, module, optimizer=optimizer, step=step)  # Nothing runs on the device, and it returns.
                for buffer in buffers.values():
                    buffer.array.write(values("float32", tuple(buffer.shape), 99))
                gpus.hold(False)
                publisher.wait_committed(receipt.version, PATIENCE)
                sink.wait_for(receipt.version, PATIENCE)
                state = repository.resume(f"net@{receipt.version}").state
                for name, array in wanted.items():
                    np.testing.assert_array_equal(state[name], array)
    assert all(buffer.recorded for buffer in buffers.values()), "the allocator hears of the stream that our copies are ordered by"
