# SPDX-License-Identifier: Apache-2.0
"""Nine steps of training that the tests of freshet.torch break off, and what they come to, bit by bit."""
import functools
import random

import numpy as np
import torch

OPTIMIZERS = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "plain": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.9, centered=True),
}


def seed(number):
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def network():
    seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.ReLU(),
                               torch.nn.Linear(16, 2))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)


def train(module, optimizer, step):
    x, y = batch(step)
    x += float(np.random.normal()) / 100 + random.gauss(0, 0.01)  # As a program that makes more of its data.
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
    found["numpy"], found["python"] = np.random.get_state()[1].tobytes(), repr(random.getstate()).encode()
    return found


@functools.lru_cache(maxsize=None)
def undisturbed(kind):
    """What nine steps come to that nobody breaks off."""
    module = network()
    optimizer = OPTIMIZERS[kind](module.parameters())
    for step in range(9):
        train(module, optimizer, step)
    return bits(module, optimizer)
