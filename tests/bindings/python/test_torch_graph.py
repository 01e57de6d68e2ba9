# SPDX-License-Identifier: Apache-2.0
"""Graphs of PyTorch modules: traced, exported, or the module tree."""
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from torch_modules import Net, Tied


def test_graphs_of_equal_prefixes_match(folder):
    shallow = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    graph = ft.graph(shallow, torch.zeros(1, 4))
    assert graph["traced_by"] == "torch.fx" and [layer["class"] for layer in graph["layers"]] == [
        "Input", "torch.nn.Linear", "torch.nn.ReLU", "torch.nn.Linear"]
    with freshet.Repository(folder + "/runs") as repository:
        version = repository.put("a", ft.tensors(shallow), graph=graph)
        match = repository.match(ft.graph(other, torch.zeros(1, 4)))
        assert match.version == version and match.tensors == {"0.weight": "0.weight", "0.bias": "0.bias"}
        taken = repository.get(match.version, tensors=match.tensors)
        other.load_state_dict({name: torch.from_numpy(array) for name, array in taken.items()}, strict=False)
        assert torch.equal(other[0].weight, shallow[0].weight)
        wider = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU())
        assert repository.match(ft.graph(wider, torch.zeros(1, 5))) is None


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.ones(4))
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, x, y):
        return self.shared(x) + self.shared(y) * self.scale


class Decides(Net):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


@pytest.mark.parametrize("module, traced_by", [(Branches(), "torch.fx"), (Tied(), "torch.fx"), (Net(), "torch.fx"),
                                               (Decides(), "module tree"), (torch.nn.Linear(2, 2), "torch.fx")])
def test_a_graph_has_every_tensor_once(folder, module, traced_by):
    graph = ft.graph(module)
    assert graph["traced_by"] == traced_by
    keys = [tensor["key"] for layer in graph["layers"] for tensor in layer.get("tensors", {}).values()]
    assert sorted(keys) == sorted(ft.tensors(module))
    with freshet.Repository(folder + "/runs") as repository:
        version = repository.put("m", ft.tensors(module), graph=graph)
        stored = repository.get(version)
        for name, array in ft.tensors(module).items():
            np.testing.assert_array_equal(stored[name], array)


class AsksForShapes(Tied):
    """torch.fx cannot follow it: whether there is a second row decides."""

    def __init__(self, hidden=6):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.first = torch.nn.Linear(3, hidden)
        self.last = torch.nn.Linear(hidden, 3)
        self.drop = torch.nn.Dropout()

    def forward(self, x):
        if x.shape[0] > 1:
            x = x + 1
        return self.head.weight @ self.drop(self.last(torch.relu(self.first(self.norm(x))))).T


def test_what_fx_cannot_trace_is_exported(folder):
    example = torch.zeros(2, 3)
    module = AsksForShapes()
    assert ft.graph(module)["traced_by"] == "module tree"
    graph = ft.graph(module, example)
    assert graph["traced_by"] == "torch.export" and module.training and module.drop.training
    keys = [tensor["key"] for layer in graph["layers"] for tensor in layer.get("tensors", {}).values()]
    assert sorted(keys) == sorted(ft.tensors(module))
    linear = next(layer for layer in graph["layers"] if "first.weight" in str(layer))
    assert set(linear["tensors"]) == {"weight", "bias"} and "linear" in linear["class"]
    with freshet.Repository(folder) as repository:
        repository.put("m", ft.tensors(module), graph=graph, quality=1.0)
        other = AsksForShapes(hidden=7)
        moved = ft.transfer(other, repository, example)
        assert torch.equal(other.norm.weight, module.norm.weight) and "first.weight" not in moved.match.tensors
        same = ft.transfer(AsksForShapes(), repository, example)
        assert set(same.match.tensors) == set(keys)
    assert ft.graph(Decides(), (torch.zeros(2, 4),))["traced_by"] == "module tree"
