# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of PyTorch's modules and optimizers: training that is broken off goes on as if nothing had been."""
import functools
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
from conftest import eventually, free_port, full_disk
from freshet.torch import Checkpoints
from torch_training import OPTIMIZERS, batch, bits, network, seed, train, undisturbed


@pytest.fixture
def checkpoints_of(tmp_path):
    """Checkpoints of the job "net", in this test's folder."""
    return functools.partial(Checkpoints, "net", local=str(tmp_path))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_been(checkpoints_of, kind):
    want = undisturbed(kind)
    module = network()
    optimizer = OPTIMIZERS[kind](module.parameters())
    before = bits(module, optimizer)
    with checkpoints_of(module, optimizer, every=2, when_behind="wait") as checkpoints:
        assert checkpoints.restored is None and checkpoints.step == 0
        assert bits(module, optimizer) == before, "a job that begins anew has the optimizer that it was given"
        for step in range(7):  # Step 7 has no checkpoint: the last one is that of step 6.
            train(module, optimizer, step)
        assert checkpoints.step == 7

    seed(99)
    module = torch.nn.Sequential(*network())
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, 7)
    optimizer = OPTIMIZERS[kind](module.parameters())
    with checkpoints_of(module, optimizer, every=2) as checkpoints:
        assert checkpoints.restored.step == 6 and checkpoints.step == 6
        for step in range(checkpoints.step, 9):
            train(module, optimizer, step)
    assert bits(module, optimizer) == want


class Quantized(torch.nn.Module):
    """A layer, and bytes in the place of weights that elsewhere are trained."""

    def __init__(self, first, dtype):
        super().__init__()
        self.head = torch.nn.Linear(4, 2)
        raw = torch.arange(first, first + 32, dtype=torch.uint8).reshape(4, 8)
        self.register_buffer("quantized", raw.view(dtype))


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "float8_e4m3fn"])
def test_a_quantized_buffer_comes_back(checkpoints_of, name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"this PyTorch has no {name}")

    def loop(first):
        module = Quantized(first, dtype)
        pairs = freshet.PackedArray(np.full(3, first, np.uint8), "f6_e3m2", (4,))
        return module, torch.optim.SGD(module.parameters(), lr=0.1), pairs

    module, optimizer, pairs = loop(1)
    with checkpoints_of(module, optimizer, extra={"pairs": pairs}) as checkpoints:
        assert checkpoints.restored is None
        module.head(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    again, optimizer, other = loop(100)
    with checkpoints_of(again, optimizer, extra={"pairs": other}) as checkpoints:
        assert checkpoints.restored.step == 1
    assert again.quantized.dtype is dtype
    assert torch.equal(again.quantized.view(torch.uint8), module.quantized.view(torch.uint8))
    assert torch.equal(again.head.weight, module.head.weight)
    assert bytes(other) == bytes(pairs) and other.packed_shape == (4,)


def wide_network():
    """Its layers take longer to copy than to hand over."""
    seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 9000), torch.nn.BatchNorm1d(9000), torch.nn.ReLU(), torch.nn.Dropout(0.3),
                               torch.nn.Linear(9000, 40), torch.nn.Linear(40, 2))


@pytest.mark.parametrize("make", [network, wide_network])
@pytest.mark.parametrize("beside", [True, False])
def test_each_layer_is_captured_when_its_update_is_done(checkpoints_of, make, beside):
    """Optimizers that step in the backward pass: values are those of the step though each layer goes on at once. With
    beside=False they are those when the last optimizer has stepped, whatever the program changed before."""
    module = make()
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in module if list(layer.parameters())]
    order, at_last = [], []
    extra = torch.zeros(3)
    with checkpoints_of(module, optimizers, every=1, extra={"seen": extra}, when_behind="wait", beside=beside) as checkpoints:
        capture = checkpoints.checkpointer.capture

        def noted(tensors, **how):
            assert how == {"beside": beside}
            order.extend(tensors)
            capture(tensors, **how)

        checkpoints.checkpointer.capture = noted
        for step in range(3):
            x, y = batch(step)
            torch.nn.functional.mse_loss(module(x), y).backward()
            extra += 1
            for optimizer in reversed(optimizers):
                if optimizer is optimizers[0]:
                    at_last.append(len(order))
                optimizer.step()
                optimizer.zero_grad()
                if optimizer is optimizers[-1] and not beside:
                    with torch.no_grad():
                        optimizer.param_groups[0]["params"][0].mul_(0.5)
        want = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    if beside:
        assert order.index("4.weight") < order.index("1.weight") < order.index("0.weight")
    else:
        assert at_last[0] == 0, "nothing was captured in the middle of the step"
    again = make()
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in again if list(layer.parameters())]
    seen = np.zeros(3, np.float32)
    with checkpoints_of(again, optimizers, extra={"seen": seen}) as checkpoints:
        assert checkpoints.step == 3
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor, want[name]), name
        np.testing.assert_array_equal(seen, 3)


def test_a_parameter_of_two_optimizers_is_captured_when_both_have_stepped(checkpoints_of):
    module = wide_network()
    shared = module[4]
    optimizers = [torch.optim.SGD(shared.parameters(), lr=0.1), torch.optim.SGD(module.parameters(), lr=0.1)]
    with checkpoints_of(module, optimizers, when_behind="wait") as checkpoints:
        for step in range(8):
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
            for optimizer in optimizers:
                optimizer.step()
        assert checkpoints.step == 8
    want = shared.weight.detach()
    again = wide_network()
    optimizers = [torch.optim.SGD(again[4].parameters(), lr=0.1), torch.optim.SGD(again.parameters(), lr=0.1)]
    with checkpoints_of(again, optimizers) as checkpoints:
        assert checkpoints.step == 8
        assert torch.equal(again[4].weight, want)


def test_a_step_that_not_all_optimizers_take_has_no_checkpoint(checkpoints_of):
    module = network()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in module if list(layer.parameters())]
    with checkpoints_of(module, optimizers, when_behind="wait") as checkpoints:
        for step in range(3):
            x, y = batch(step)
            torch.nn.functional.mse_loss(module(x), y).backward()
            for optimizer in optimizers if step != 1 else optimizers[:1]:
                optimizer.step()
        assert checkpoints.step == 3
        optimizers[0].step()  # And one that is under way at the end.
    assert newest_step(checkpoints_of, module) == 3
    checkpoints.close()
    optimizers[0].step()  # Nobody captures any more.


def newest_step(checkpoints_of, module):
    """The newest step that is there."""
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in module if list(layer.parameters())]
    with checkpoints_of(module, optimizers) as checkpoints:
        return checkpoints.step


class Changing(torch.nn.Module):
    """A head that gets a gradient only later, and a buffer that each forward pass replaces."""

    def __init__(self):
        super().__init__()
        self.used, self.later = torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.use_later = False

    def forward(self, x):
        y = self.used(x) + (self.later(x) if self.use_later else 0)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y


def changing():
    seed(4)
    module = Changing()
    return module, torch.optim.Adam(module.parameters(), lr=0.01)


def test_parameters_without_gradients_and_replaced_buffers(checkpoints_of):
    module, optimizer = changing()
    for step in range(6):
        module.use_later = step >= 4
        train(module, optimizer, step)
    want = bits(module, optimizer)
    module, optimizer = changing()
    with checkpoints_of(module, optimizer, when_behind="wait"):
        for step in range(3):
            train(module, optimizer, step)
    module, optimizer = changing()
    with checkpoints_of(module, optimizer, when_behind="wait") as checkpoints:
        assert checkpoints.step == 3
        assert module.later.weight not in optimizer.state
        for step in range(checkpoints.step, 6):
            module.use_later = step >= 4
            train(module, optimizer, step)
    assert bits(module, optimizer) == want


def test_a_module_with_other_names_is_refused_and_stays_as_it_was(checkpoints_of):
    module = network()
    optimizer = torch.optim.Adam(module.parameters())
    with checkpoints_of(module, optimizer):
        train(module, optimizer, 0)
    other = torch.nn.ModuleDict({"body": network()})
    optimizer = torch.optim.Adam(other.parameters())
    before = bits(other, optimizer)
    with pytest.raises(freshet.FailedPrecondition, match="body."):
        checkpoints_of(other, optimizer)
    assert bits(other, optimizer) == before


def test_a_module_that_lost_a_layer_says_so(checkpoints_of):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with checkpoints_of(module, optimizer):
        train(module, optimizer, 0)
    less = torch.nn.Sequential(*list(network())[:4])
    optimizer = torch.optim.SGD(less.parameters(), lr=0.1)
    before = bits(less, optimizer)
    with pytest.raises(freshet.FailedPrecondition, match="4.bias, 4.weight|4.weight, 4.bias"):
        checkpoints_of(less, optimizer)
    assert bits(less, optimizer) == before
    with checkpoints_of(less, optimizer, allow_left=True) as checkpoints:
        assert checkpoints.step == 1 and {"4.weight", "4.bias"} <= set(checkpoints.restored.left)
        assert torch.equal(less[0].weight, module[0].weight)


def test_an_array_that_the_version_lacks_is_named(checkpoints_of):
    module = network()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with checkpoints_of(module, optimizer) as checkpoints:
        train(module, optimizer, 0)
        first = bits(module, optimizer)
        checkpoints.checkpointer.wait(1, "local")
        train(module, optimizer, 1)
    seen = torch.zeros(3)
    with pytest.raises(freshet.FailedPrecondition, match="tensor seen"):
        checkpoints_of(module, optimizer, extra={"seen": seen})
    with checkpoints_of(module, optimizer, version=1) as checkpoints:
        assert checkpoints.step == 1 and bits(module, optimizer) == first
    with checkpoints_of(module, optimizer, anew=True, extra={"seen": seen}) as checkpoints:
        assert checkpoints.restored is None and checkpoints.step == 0


RANK = """
    import json, sys
    import numpy as np, torch
    import freshet.torch as ft

    rank, folder = int(sys.argv[1]), sys.argv[2]
    for ranks, meet, step in json.loads(sys.argv[3]):  # Lives of the job; a rank above `ranks` has no part in it.
        if rank >= ranks:
            continue
        torch.manual_seed(5)
        module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        seen = np.full(2, float(rank))
        with ft.Checkpoints("net", module, optimizer, local=folder, rank=rank, ranks=ranks, meet=meet, lost_after=30,
                            patience=1e6, when_behind="wait", extra={"seen": seen}) as checkpoints:
            restored = checkpoints.restored
            begun = checkpoints.step, module[1].running_mean.tolist(), sorted(restored.left) if restored else [], seen.tolist()
            while checkpoints.step < step:
                seen += 10
                module(torch.full((8, 6), 1.0 + rank) + torch.randn(8, 6))  # Each rank sees other data,
                optimizer.zero_grad()
                module(torch.ones(8, 6)).sum().backward()                   # and all have one gradient.
                optimizer.step()
        print(json.dumps([*begun, module[1].running_mean.tolist()]), flush=True)
"""


def test_ranks_get_back_the_buffers_of_rank_0_and_arrays_of_their_own(program, folder):
    lives = [(2, 3), (2, 0), (3, 0), (1, 0)]
    given = json.dumps([(ranks, f"tcp://127.0.0.1:{free_port()}", step) for ranks, step in lives])
    jobs = [program(RANK, str(rank), folder, given) for rank in range(3)]
    first, *later = [[json.loads(jobs[rank].line()) for rank in range(ranks)] for ranks, _ in lives]
    for job in jobs:
        assert job.end()[0] == 0
    (*_, mean), (*_, other) = first
    assert mean != other, "the ranks' moving statistics differ"
    for life in later:
        for rank, (step, came, left, seen, _) in enumerate(life):
            assert (step, came) == (3, mean)
            assert seen == [rank + 30 if rank < 2 else rank] * 2, "a rank that is new keeps what it begins with"
            assert any(name.endswith(".r1") for name in left) == (len(life) == 1), \
                "the random state of a rank that is no more is named, and is no error"


def test_frozen_and_bfloat16_parameters_come_back(checkpoints_of):
    def make():
        module = network().to(torch.bfloat16)
        module[0].requires_grad_(False)
        return module, torch.optim.AdamW(module.parameters(), lr=0.01)

    module, optimizer = make()
    with checkpoints_of(module, optimizer):
        x, y = batch(1)
        torch.nn.functional.mse_loss(module(x.bfloat16()), y.bfloat16()).backward()
        optimizer.step()
    again, optimizer = make()
    with checkpoints_of(again, optimizer):
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name


def test_a_parameter_that_is_trained_later_is_frozen_after_the_checkpoints_were_made(checkpoints_of, tmp_path):
    def begin(frozen):
        module = network()
        module[0].requires_grad_(not frozen)
        return module, torch.optim.Adam(module.parameters(), lr=0.01)

    def go_on(module, optimizer, first, last):
        for step in range(first, last):
            module[0].requires_grad_(step >= 2)
            train(module, optimizer, step)
        return bits(module, optimizer)

    module, optimizer = begin(frozen=True)
    with pytest.raises(freshet.FailedPrecondition, match="tensor optimizer/0.bias/.*frozen"):
        with checkpoints_of(module, optimizer, local=str(tmp_path / "other")):
            go_on(module, optimizer, 0, 3)
    want = go_on(*begin(frozen=False), 0, 4)
    module, optimizer = begin(frozen=False)
    with checkpoints_of(module, optimizer):
        go_on(module, optimizer, 0, 1)
    module, optimizer = begin(frozen=False)
    with checkpoints_of(module, optimizer) as checkpoints:
        assert checkpoints.step == 1
        assert go_on(module, optimizer, 1, 4) == want


def test_wrong_use_names_what_is_wrong(checkpoints_of):
    module = network()
    adam = torch.optim.Adam(module.parameters())
    with pytest.raises(freshet.InvalidArgument, match="every"):
        checkpoints_of(module, adam, every=0)
    with pytest.raises(freshet.InvalidArgument, match="optimizer"):
        checkpoints_of(module, "adam")
    with pytest.raises(freshet.Unsupported, match="LBFGS"):
        checkpoints_of(module, torch.optim.LBFGS(module.parameters()))
    with pytest.raises(freshet.InvalidArgument, match="that the module does not have"):
        checkpoints_of(module, torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))]))
    with pytest.raises(freshet.InvalidArgument, match="0.weight"):
        checkpoints_of(module, adam, extra={"0.weight": np.zeros(3)})
    assert not adam.state, "what was tried left its mark"
    with checkpoints_of(module, adam):
        train(module, adam, 0)
    wider = torch.nn.Sequential(torch.nn.Linear(6, 17))
    with pytest.raises(freshet.FailedPrecondition, match="0.weight"):
        checkpoints_of(wider, torch.optim.Adam(wider.parameters()))


def test_a_job_whose_last_version_is_not_stored_ends_with_its_error(checkpoints_of, caplog):
    module = torch.nn.Linear(200, 200)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with full_disk(), pytest.raises(freshet.Error, match="version 3, the last one, is stored nowhere"):
        with checkpoints_of(module, optimizer, when_behind="wait") as checkpoints:
            for _ in range(3):
                module(torch.ones(1, 200)).sum().backward()
                optimizer.step()
    assert checkpoints.checkpointer.closed
    assert eventually(lambda: caplog.text.count("did not reach local") == 1)
