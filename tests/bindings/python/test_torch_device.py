# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules whose parameters lie on a device, here the host device: its memory is plain memory, which PyTorch takes for its
own, so all of attach() runs but for the three calls of torch.cuda."""
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from freshet import _torch_device
from host_device import SEED, HostDevice, host  # noqa: F401
from torch_modules import Net, filled, published


def place(device, module):
    """Moves the module's tensors to the device."""
    for tensor in module.state_dict(keep_vars=True).values():
        tensor.data = torch.from_numpy(device.array(tensor.detach().numpy()))
    return module


class World:
    """What torch.cuda would tell."""

    def __init__(self, devices):
        self.devices, self.captures, self.opens = devices, False, []

    def device_of(self, tensor):
        return next((name for name, device in self.devices.items() if device.has(tensor.data_ptr())), None)

    def open(self, name):
        self.opens.append(name)
        return self.devices[name].core.device()

    def synchronize(self, name):
        self.devices[name].finish()


@pytest.fixture
def world(host, monkeypatch):
    world = World({"cuda:0": host, "cuda:1": HostDevice(SEED + 1000)})
    monkeypatch.setattr(_torch_device, "_device_of", world.device_of)
    monkeypatch.setattr(_torch_device, "_open", world.open)
    monkeypatch.setattr(_torch_device, "_stream_of", lambda name: world.devices[name].stream)
    monkeypatch.setattr(_torch_device, "_is_capturing", lambda: world.captures)
    monkeypatch.setattr(_torch_device, "_synchronize", world.synchronize)
    return world


def test_versions_are_copied_to_the_same_addresses(pair, host, world):
    served = place(host, filled(Net(), 7)).eval()
    addresses = [tensor.data_ptr() for tensor in served.state_dict().values()]
    trained = filled(Net(), 1)
    published(pair, trained)
    with ft.attach(served, pair[1], mode="copy") as attached:
        for value in (1, 2, 3):
            version = published(pair, filled(trained, value))
            assert attached.refresh() == version
            host.finish()
            assert all((tensor == value).all() for tensor in served.state_dict().values())
            served(torch.ones(2, 4))
            assert attached.answered == version
        assert [tensor.data_ptr() for tensor in served.state_dict().values()] == addresses and world.opens == ["cuda:0"]


def test_only_what_another_version_wrote_is_copied(pair, host, world):
    served, trained = place(host, Net()).eval(), filled(Net(), 1)
    attached = ft.attach(served, pair[1], mode="copy")
    published(pair, trained)
    attached.refresh()
    host.finish()
    served.first.bias.detach().numpy()[:] = 99  # PyTorch does not know of this write.
    with torch.no_grad():
        served.last.bias.fill_(98)              # Of this one it does.
        trained.first.weight.fill_(5)
    published(pair, trained)
    attached.refresh()
    host.finish()
    assert (served.first.weight == 5).all() and (served.first.bias == 99).all() and (served.last.bias == 1).all()


def test_what_the_program_wrote_unseen_is_copied_again(pair, host, world):
    served, trained = place(host, Net()).eval(), filled(Net(), 1)
    with torch.inference_mode():
        served.register_buffer("seen", torch.from_numpy(host.array(np.zeros(4, np.float32))))
        trained.register_buffer("seen", torch.ones(4))
    assert served.seen.is_inference()
    attached = ft.attach(served, pair[1], mode="copy")
    published(pair, trained)
    attached.refresh()
    host.finish()
    served.first.bias.data += 98
    served.seen.numpy()[:] = 99
    attached.forget()
    with torch.no_grad():
        trained.first.weight.fill_(5)
    published(pair, trained)
    attached.refresh()
    host.finish()
    assert (served.first.weight == 5).all() and (served.first.bias == 1).all() and (served.seen == 1).all()
    served.seen.numpy()[:] = 99  # Copied again without a word of the program's.
    with torch.no_grad():
        trained.first.weight.fill_(6)
    published(pair, trained)
    attached.refresh()
    host.finish()
    assert (served.first.weight == 6).all() and (served.seen == 1).all()


class Reads(torch.nn.Module):
    """Its forward is work of the device: a copy of its weight to where the answer goes."""

    def __init__(self, device, count):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(device.array(np.zeros(3000, np.float32))), requires_grad=False)
        self.device, self.answers = device, device.array(np.zeros((count, 3000), np.float32))

    def forward(self, answer):
        self.device.core.copy(self.device.stream, self.answers[answer].ctypes.data, self.weight.data_ptr(), self.weight.nbytes)


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3000))


@pytest.mark.parametrize("seed", range(SEED, SEED + 8))
def test_forwards_of_all_streams_have_one_version(pair, world, seed):
    device = world.devices["cuda:0"] = HostDevice(seed)
    served, streams = Reads(device, 12), [device.stream, device.core.stream(), device.core.stream()]
    attached = ft.attach(served, pair[1], mode="copy")
    versions = []
    for answer in range(12):
        if answer % 3 == 0:
            published(pair, filled(Weight(), answer + 1))
        device.stream = streams[answer % 2 + (answer > 6)]
        if answer % 4 == 3:
            with attached.hold():
                device.stream = streams[answer % 3]
                served(answer)
        else:
            served(answer)
        versions.append(answer // 3 * 3 + 1)
    for device.stream in streams:
        device.finish()
    assert [set(one) for one in served.answers] == [{version} for version in versions]


def test_no_version_is_taken_while_a_graph_is_recorded(pair, host, world):
    served = place(host, filled(Net(), 7)).eval()
    attached = ft.attach(served, pair[1], mode="copy")
    published(pair, filled(Net(), 1))
    world.captures = True
    served(torch.ones(2, 4))
    assert attached.answered == 0 and attached.refresh() == 0
    world.captures = False
    assert attached.refresh() == 1


def test_a_module_on_two_devices_is_never_half_of_a_version(pair, host, world):
    served, other = place(host, filled(Net(), 7)).eval(), world.devices["cuda:1"]
    place(other, served.last)
    attached = ft.attach(served, pair[1], mode="copy")
    published(pair, filled(Net(), 1))
    assert attached.refresh() == 1
    host.finish()
    other.finish()
    assert all((tensor == 1).all() for tensor in served.state_dict().values())
    other.core.strike()
    with pytest.raises(freshet.FailedPrecondition):
        other.finish()
    published(pair, filled(Net(), 2))
    for _ in range(2):
        with pytest.raises(freshet.FailedPrecondition, match="lost to this process"):
            served(torch.ones(2, 4))
    assert attached.version == 1


def test_tensors_that_moved_are_copied_where_they_are(pair, host, world):
    served = place(host, filled(Net(), 7)).eval()
    attached = ft.attach(served, pair[1], mode="copy")
    published(pair, filled(Net(), 1))
    attached.refresh()
    before = served.first.weight.data
    place(host, served.first)
    published(pair, filled(Net(), 2))
    attached.refresh()
    host.finish()
    assert all((tensor == 2).all() for tensor in served.state_dict().values()) and (before == 1).all()


class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(30_000))

    def forward(self):
        return self.weight.sum()


def test_a_wrong_result_that_the_device_finds_after_a_refresh_is_mended_by_the_next_forward(host, world):
    served, trained = place(host, filled(Large(), 7)), filled(Large(), 1)
    with freshet.Publisher("m", channels="zmq", keep_versions=2) as publisher, freshet.Subscriber("m", channel="zmq") as subscriber:
        attached = ft.attach(served, subscriber, mode="copy")
        published((publisher, subscriber), trained)
        served()
        host.finish()
        served.weight.detach().numpy()[:] = 99  # PyTorch does not know of this write.
        with torch.no_grad():
            trained.weight[::100] = 5
        version = published((publisher, subscriber), trained)
        served()
        host.finish()
        assert (served.weight != trained.weight).any(), "the version came by a delta, upon what somebody else wrote"
        served()
        host.finish()
        assert (served.weight == trained.weight).all() and attached.answered == version


def test_without_a_driver_pytorch_copies_and_the_reason_is_said_once(pair, host, world, monkeypatch, caplog):
    def refused(device):
        raise freshet.Unavailable("the driver is older than release 580")

    monkeypatch.setattr(_torch_device, "_open", refused)
    served = place(host, filled(Net(), 7)).eval()
    attached = ft.attach(served, pair[1], mode="copy")
    for value in (1, 2):
        published(pair, filled(Net(), value))
        attached.refresh()
        assert all((tensor == value).all() for tensor in served.state_dict().values())
    assert sum("older than release 580" in record.getMessage() for record in caplog.records) == 1


def test_the_mode_follows_the_device():
    def on(*kinds):
        return {str(i): types.SimpleNamespace(device=types.SimpleNamespace(type=kind)) for i, kind in enumerate(kinds)}

    assert _torch_device.mode_for(on("cpu", "cpu")) == "swap" and _torch_device.mode_for(on("cpu", "meta")) == "swap"
    assert _torch_device.mode_for(on("cpu", "cuda")) == "copy" and _torch_device.mode_for(on("xpu")) == "copy"
    assert _torch_device.copies_for({"w": torch.zeros(3)}) is None
