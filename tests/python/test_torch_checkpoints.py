# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of PyTorch's modules and optimizers: training that is broken off goes on as if nothing had been."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
from freshet.torch import Checkpoints

OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9, centered=True),
}


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.ReLU(),
                               torch.nn.Linear(16, 2))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)


def train(module, optimizer, step):
    x, y = batch(step)
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.97
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(module(x), y).backward()
    optimizer.step()


def bits(module, optimizer):
    found = {name: tensor.numpy(force=True).tobytes() for name, tensor in module.state_dict().items()}
    for at, state in enumerate(optimizer.state_dict()["state"].values()):
        found.update({f"{at}/{key}": value.numpy(force=True).tobytes() for key, value in state.items() if value is not None})
    found["lr"] = repr([group["lr"] for group in optimizer.param_groups]).encode()
    found["rng"] = torch.get_rng_state().numpy().tobytes()
    return found


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_goes_on_as_if_nothing_had_been(tmp_path, kind):
    module = network()
    optimizer = OPTIMIZERS[kind](module.parameters())
    for step in range(9):
        train(module, optimizer, step)
    want = bits(module, optimizer)

    module = network()
    optimizer = OPTIMIZERS[kind](module.parameters())
    before = bits(module, optimizer)
    with Checkpoints("net", module, optimizer, every=2, local=str(tmp_path), when_behind="wait") as checkpoints:
        assert checkpoints.restored is None and checkpoints.step == 0
        assert bits(module, optimizer) == before, "a job that begins anew has the optimizer that it was given"
        for step in range(7):  # Step 7 has no checkpoint: the last one is that of step 6.
            train(module, optimizer, step)
        assert checkpoints.step == 7

    torch.manual_seed(99)
    module = torch.nn.Sequential(*network())
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, 7)
    optimizer = OPTIMIZERS[kind](module.parameters())
    with Checkpoints("net", module, optimizer, every=2, local=str(tmp_path)) as checkpoints:
        assert checkpoints.restored.step == 6 and checkpoints.step == 6
        for step in range(checkpoints.step, 9):
            train(module, optimizer, step)
    assert bits(module, optimizer) == want


def test_each_layer_is_captured_when_its_update_is_done(tmp_path):
    """Optimizers that step in the backward pass: values are those of the step though each layer goes on at once."""
    module = network()
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in module if list(layer.parameters())]
    order = []
    extra = torch.zeros(3)
    with Checkpoints("net", module, optimizers, every=1, extra={"seen": extra}, local=str(tmp_path),
                     when_behind="wait") as checkpoints:
        capture = checkpoints.checkpointer.capture
        checkpoints.checkpointer.capture = lambda tensors: (order.extend(tensors), capture(tensors))[1]
        for step in range(3):
            x, y = batch(step)
            torch.nn.functional.mse_loss(module(x), y).backward()
            extra += 1
            for optimizer in reversed(optimizers):
                optimizer.step()
                optimizer.zero_grad()
        want = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert order.index("4.weight") < order.index("1.weight") < order.index("0.weight")
    again = network()
    optimizers = [torch.optim.Adam(layer.parameters(), lr=0.01) for layer in again if list(layer.parameters())]
    seen = np.zeros(3, np.float32)
    with Checkpoints("net", again, optimizers, extra={"seen": seen}, local=str(tmp_path)) as checkpoints:
        assert checkpoints.step == 3
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor, want[name]), name
        np.testing.assert_array_equal(seen, 3)


def test_an_optimizer_that_steps_twice_before_the_others_is_told(tmp_path):
    module = network()
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in module if list(layer.parameters())]
    with Checkpoints("net", module, optimizers, local=str(tmp_path)) as checkpoints:
        x, y = batch(3)
        torch.nn.functional.mse_loss(module(x), y).backward()
        optimizers[0].step()
        with pytest.raises(freshet.FailedPrecondition, match="twice"):
            optimizers[0].step()
        checkpoints.close()
        optimizers[0].step()  # Nobody captures any more.


def test_frozen_and_bfloat16_parameters_come_back(tmp_path):
    def make():
        module = network().to(torch.bfloat16)
        module[0].requires_grad_(False)
        return module, torch.optim.AdamW(module.parameters(), lr=0.01)

    module, optimizer = make()
    with Checkpoints("net", module, optimizer, local=str(tmp_path)):
        x, y = batch(1)
        torch.nn.functional.mse_loss(module(x.bfloat16()), y.bfloat16()).backward()
        optimizer.step()
    again, optimizer = make()
    with Checkpoints("net", again, optimizer, local=str(tmp_path)):
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, again.state_dict()[name]), name


def test_wrong_use_names_what_is_wrong(tmp_path):
    module = network()
    adam = torch.optim.Adam(module.parameters())
    with pytest.raises(freshet.InvalidArgument, match="every"):
        Checkpoints("net", module, adam, every=0, local=str(tmp_path))
    with pytest.raises(freshet.InvalidArgument, match="optimizer"):
        Checkpoints("net", module, "adam", local=str(tmp_path))
    with pytest.raises(freshet.Unsupported, match="LBFGS"):
        Checkpoints("net", module, torch.optim.LBFGS(module.parameters()), local=str(tmp_path))
    with pytest.raises(freshet.InvalidArgument, match="none of the module's"):
        Checkpoints("net", module, torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))]), local=str(tmp_path))
    with pytest.raises(freshet.InvalidArgument, match="0.weight"):
        Checkpoints("net", module, adam, extra={"0.weight": np.zeros(3)}, local=str(tmp_path))
    assert not adam.state, "what was tried left its mark"
    with Checkpoints("net", module, adam, local=str(tmp_path)):
        train(module, adam, 0)
    wider = torch.nn.Sequential(torch.nn.Linear(6, 17))
    with pytest.raises(freshet.FailedPrecondition, match="0.weight"):
        Checkpoints("net", wider, torch.optim.Adam(wider.parameters()), local=str(tmp_path))
