# SPDX-License-Identifier: Apache-2.0
"""Modules that the tests of freshet.torch share, and how one is published."""
import torch

import freshet.torch as ft
from conftest import PATIENCE


class Net(torch.nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.first = torch.nn.Linear(4, hidden)
        self.norm = torch.nn.BatchNorm1d(hidden)
        self.last = torch.nn.Linear(hidden, 2)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def filled(module, value):
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.fill_(value)
    return module


def published(pair, module, **how):
    publisher, subscriber = pair
    version = ft.publish(publisher, module, **how).version
    subscriber.wait_for(version, PATIENCE)
    return version
