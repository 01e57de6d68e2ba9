# SPDX-License-Identifier: Apache-2.0
"""Frameworks' arrays in a real GPU's memory. Elsewhere these are skips: test_gpus.py and test_torch_device.py have the same ways on
the host device. The kit for a machine with a GPU (scripts/test_gpu.sh) has this file."""
import numpy as np
import pytest

import freshet
from conftest import PATIENCE
from freshet import _core

pytestmark = pytest.mark.skipif(_core.why_no_gpus() is not None, reason=f"no GPU here: {_core.why_no_gpus()}")


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch


def check_served(pair, receipt, wanted):
    publisher, subscriber = pair
    assert receipt.version is not None, receipt.skipped
    publisher.wait_committed(receipt.version, PATIENCE)
    subscriber.wait_for(receipt.version, PATIENCE)
    snapshot = subscriber.snapshot()
    for name, array in wanted.items():
        np.testing.assert_array_equal(snapshot[name], array, err_msg=name)


def test_a_version_has_what_pytorchs_stream_had_queued(torch, pair):
    import freshet.torch
    module = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.BatchNorm1d(1000)).cuda()
    for step in range(3):
        torch.cuda._sleep(10**8)
        with torch.no_grad():
            for tensor in module.state_dict().values():
                tensor.add_(1)
        wanted = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        receipt = freshet.torch.publish(pair[0], module, step=step)
        with torch.no_grad():
            for tensor in module.state_dict().values():
                tensor.zero_()
        check_served(pair, receipt, {name: tensor.cpu().numpy() for name, tensor in wanted.items()})


def test_strided_views_not_a_number_and_a_tensor_that_is_freed(torch, pair):
    base = torch.randn(301, 7, device="cuda")
    base[5, 3] = float("nan")
    bits = torch.randint(-2**15, 2**15, (4097,), dtype=torch.int16, device="cuda")
    given = {"transposed": base.t(), "every_other": base[::2], "odd": base.reshape(-1)[1:], "bits": bits.view(torch.bfloat16)}
    wanted = {name: tensor.contiguous().cpu() for name, tensor in given.items()}
    receipt = pair[0].publish(given)
    del given, base, bits
    for _ in range(8):  # The allocator's first choice is the memory that was freed.
        torch.zeros(301 * 7, device="cuda")
    publisher, subscriber = pair
    publisher.wait_committed(receipt.version, PATIENCE)
    subscriber.wait_for(receipt.version, PATIENCE)
    snapshot = freshet.torch.view(subscriber.snapshot())
    for name, tensor in wanted.items():
        assert torch.equal(snapshot[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("device_memory", [None, 2.0])
def test_a_module_on_the_gpu_is_served_between_two_forwards(torch, device_memory):
    import freshet.torch
    trained, served = (torch.nn.Linear(513, 257, bias=False, device="cuda") for _ in range(2))
    address = served.weight.data_ptr()
    ones = torch.ones(1, 513, device="cuda")
    with freshet.Publisher("m", device_memory=device_memory) as publisher, freshet.Subscriber("m") as subscriber:
        attached = freshet.torch.attach(served, subscriber)
        for step in range(3):
            with torch.no_grad():
                trained.weight.fill_(step + 1)
            receipt = freshet.torch.publish(publisher, trained, step=step)
            subscriber.wait_for(receipt.version, PATIENCE)
            attached.refresh()
            assert torch.equal(served(ones), torch.full((1, 257), 513.0 * (step + 1), device="cuda"))
            assert served.weight.data_ptr() == address
        assert publisher.stat()["device_memory_why"] == ""


def test_cupys_arrays(pair):
    cupy = pytest.importorskip("cupy")
    given = {"f32": cupy.arange(10001, dtype=cupy.float32), "i64": cupy.arange(77), "empty": cupy.zeros((0, 3), cupy.float16)}
    receipt = pair[0].publish(given)
    wanted = {name: cupy.asnumpy(array) for name, array in given.items()}
    for array in given.values():
        array.fill(0)
    check_served(pair, receipt, wanted)
    into = {name: cupy.zeros_like(array) for name, array in given.items()}
    with freshet.DeviceTensors(into) as tensors:
        tensors.refresh(pair[1].snapshot(), cupy.cuda.get_current_stream().ptr)
        tensors.wait(PATIENCE)
    for name, array in wanted.items():
        np.testing.assert_array_equal(cupy.asnumpy(into[name]), array)


def trained(torch, seed):
    """A module on the GPU, its optimizer, and what a step of training does."""
    torch.manual_seed(seed)
    module = torch.nn.Sequential(torch.nn.Linear(257, 129), torch.nn.BatchNorm1d(129), torch.nn.Linear(129, 3)).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad()
        module(torch.randn(16, 257, device="cuda")).square().mean().backward()
        optimizer.step()

    return module, optimizer, step


def bits_of(module, optimizer):
    found = {name: tensor.cpu().numpy().tobytes() for name, tensor in module.state_dict().items()}
    for at, state in optimizer.state_dict()["state"].items():
        found.update({f"{at}/{key}": value.cpu().numpy().tobytes() for key, value in state.items()})
    return found


def test_a_loop_goes_on_with_its_optimizer(torch, tmp_path):
    import freshet.torch
    module, optimizer, step = trained(torch, 1)
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        with freshet.Publisher("net") as publisher, repository.sink("net") as sink:
            for number in range(3):
                step()
                wanted = bits_of(module, optimizer)
                receipt = freshet.torch.publish(publisher, module, optimizer=optimizer, step=number)
                step()
            assert receipt.version is not None, receipt.skipped
            publisher.wait_committed(receipt.version, PATIENCE)
            sink.wait_for(receipt.version, PATIENCE)
        module, optimizer, _ = trained(torch, 2)
        assert freshet.torch.resume(repository.resume("net"), module, optimizer) == 2
    assert bits_of(module, optimizer) == wanted


def test_checkpoints_of_a_module_on_the_gpu(torch, tmp_path):
    import freshet.torch
    module, optimizer, step = trained(torch, 1)
    with freshet.torch.Checkpoints("net", module, optimizer, local=str(tmp_path), when_behind="wait"):
        for _ in range(3):
            step()
        wanted = bits_of(module, optimizer)
    module, optimizer, _ = trained(torch, 2)
    with freshet.torch.Checkpoints("net", module, optimizer, local=str(tmp_path)) as checkpoints:
        assert checkpoints.step == 3
        assert bits_of(module, optimizer) == wanted


def test_jaxs_arrays_that_the_next_step_takes(pair):
    jax = pytest.importorskip("jax")
    if jax.devices()[0].platform != "gpu":
        pytest.skip("JAX sees no GPU")
    step = jax.jit(lambda arrays: {name: array + 1 for name, array in arrays.items()}, donate_argnums=0)
    arrays = {"f32": jax.numpy.arange(100_001, dtype="float32"), "bf16": jax.numpy.ones((33, 7), "bfloat16"),
              "i32": jax.numpy.arange(5), "scalar": jax.numpy.float32(3)}
    for number in range(3):
        wanted = {name: np.asarray(array) for name, array in arrays.items()}
        receipt = pair[0].publish(arrays, step=number)
        arrays = step(arrays)
        check_served(pair, receipt, wanted)
