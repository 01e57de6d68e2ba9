# SPDX-License-Identifier: Apache-2.0
"""freshet.torch.publish() with an optimizer, and resume(): a run that was published and stored goes on as if nothing had been."""
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.torch as ft
from conftest import PATIENCE, eventually
from torch_training import OPTIMIZERS, bits, network, seed, train, undisturbed


@pytest.mark.parametrize("kind", ["momentum", "plain", "amsgrad"])
def test_a_run_that_was_published_and_stored_goes_on_as_if_nothing_had_been(tmp_path, kind):
    want = undisturbed(kind)
    module = network()
    optimizer = OPTIMIZERS[kind](module.parameters())
    seen = np.zeros(2)
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        with freshet.Publisher("net") as publisher, repository.sink("net") as sink, freshet.Subscriber("net") as server:
            for step in range(5):
                before = bits(module, optimizer)
                ft.publish(publisher, module, optimizer=optimizer, extra={"seen": seen}, step=step, sync=True)
                assert bits(module, optimizer) == before, "what is published stays as it was"
                train(module, optimizer, step)
                seen += 1
            assert eventually(lambda: sink.status()["newest"] == 5)
            server.wait_for(5, PATIENCE)
            with server.snapshot() as snapshot:
                assert sorted(snapshot) == sorted(module.state_dict()), "no server takes the optimizer"
        resumed = repository.resume("net")
        assert sorted(resumed.weights) == sorted(module.state_dict())
        assert {"seen", "rng/torch", "rng/host", "optimizer/0/lr"} <= resumed.state.keys()

        seed(99)
        module = torch.nn.Sequential(*network())
        optimizer = OPTIMIZERS[kind](module.parameters())
        with freshet.Publisher("net", resume=(repository, "net")) as publisher, repository.sink("net") as sink:
            start = ft.resume(publisher.resumed, module, optimizer, extra={"seen": seen})
            assert start == 4 and seen.tolist() == [4, 4]
            for step in range(start, 9):
                train(module, optimizer, step)
            receipt = ft.publish(publisher, module, optimizer=optimizer, extra={"seen": seen}, step=9, sync=True)
            assert eventually(lambda: sink.status()["newest"] == receipt.version)
        assert bits(module, optimizer) == want
        assert repository.lineage(f"net@{receipt.version}")[1].version == "net@5"


def test_what_a_run_cannot_go_on_from_is_named_and_changes_nothing(tmp_path):
    module = network()
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        with freshet.Publisher("net", graph=ft.graph(module)) as publisher, repository.sink("net") as sink:
            with pytest.raises(freshet.InvalidArgument, match="extra"):
                ft.publish(publisher, module, extra={"seen": np.zeros(2)})
            ft.publish(publisher, module, sync=True)
            assert eventually(lambda: sink.status()["newest"] == 1)
        plain = repository.resume("net")
        before = bits(module, optimizer)
        with pytest.raises(freshet.FailedPrecondition, match="without its optimizer"):
            ft.resume(plain, module, optimizer)
        assert bits(module, optimizer) == before
        wider = torch.nn.Sequential(torch.nn.Linear(6, 17))
        with pytest.raises(freshet.FailedPrecondition, match="0.weight"):
            ft.resume(plain, wider)
        assert ft.resume(plain, module) == 0

        # With a graph the layers stay what they were: a later candidate finds them.
        with freshet.Publisher("graphed", graph=ft.graph(module)) as publisher, repository.sink("graphed") as sink:
            train(module, optimizer, 0)
            ft.publish(publisher, module, optimizer=optimizer, step=1, sync=True)
            assert eventually(lambda: sink.status()["newest"] == 1)
        assert repository.match(ft.graph(network())).lcp_layers == len(ft.graph(module)["layers"]) - 1, "inputs do not count"
        stored = repository.resume("graphed")
        for wrong in (OPTIMIZERS["plain"], OPTIMIZERS["amsgrad"]):
            other = network()
            with pytest.raises(freshet.FailedPrecondition, match="tensor |by AdamW, this loop has"):
                stored.state.pop("rng/host", None)
                ft.resume(stored, other, wrong(other.parameters()))


def test_what_a_version_has_beyond_the_loop_is_named_and_changes_nothing(tmp_path):
    larger = torch.nn.Sequential(*network(), torch.nn.Linear(2, 2))
    adam = torch.optim.Adam(larger.parameters(), lr=0.001)
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        with freshet.Publisher("net") as publisher, repository.sink("net") as sink:
            publishing = dict(optimizer=adam, extra={"seen": np.ones(2)}, step=3, sync=True)
            sink.wait_for(ft.publish(publisher, larger, **publishing).version, PATIENCE)
        resumed = repository.resume("net")
        cut = network()
        last = f"{len(cut)}.weight"
        before = bits(cut, torch.optim.SGD(cut.parameters()))
        with pytest.raises(freshet.FailedPrecondition, match=last):
            ft.resume(resumed, cut)
        assert bits(cut, torch.optim.SGD(cut.parameters())) == before
        assert ft.resume(resumed, cut, strict=False) == 3 and torch.equal(cut[0].weight, larger[0].weight)

        for strict in (True, False):  # One layer has another name: nothing goes on with fresh values there.
            renamed = network()
            renamed.add_module("renamed", torch.nn.Linear(2, 2))
            before = bits(renamed, torch.optim.SGD(renamed.parameters()))
            with pytest.raises(freshet.FailedPrecondition, match="tensor renamed.weight: net@1 does not have it"):
                ft.resume(resumed, renamed, strict=strict)
            assert bits(renamed, torch.optim.SGD(renamed.parameters())) == before

        whole = torch.nn.Sequential(*network(), torch.nn.Linear(2, 2))
        for other in (torch.optim.SGD(whole.parameters(), lr=0.5), torch.optim.AdamW(whole.parameters(), lr=0.5)):
            with pytest.raises(freshet.FailedPrecondition, match=f"by Adam, this loop has {type(other).__name__}"):
                ft.resume(resumed, whole, other, extra={"seen": np.zeros(2)})
            assert other.param_groups[0]["lr"] == 0.5 and not other.state
        optimizer = torch.optim.Adam(whole.parameters(), lr=0.5)
        with pytest.raises(freshet.FailedPrecondition, match="seen"):
            ft.resume(resumed, whole, optimizer)
        assert optimizer.param_groups[0]["lr"] == 0.5 and not optimizer.state
        assert ft.resume(resumed, whole, optimizer, strict=False) == 3 and optimizer.param_groups[0]["lr"] == 0.001

        # Of a version that does not say who trained it, the state tells.
        untold = dataclasses.replace(resumed, _record=repository.resume(repository.put("net", resumed.weights))._record)
        sgd = torch.optim.SGD(whole.parameters(), lr=0.5)
        with pytest.raises(freshet.FailedPrecondition, match="optimizer"):
            ft.resume(untold, whole, sgd, extra={"seen": np.zeros(2)})
        assert sgd.param_groups[0]["lr"] == 0.5


LOOP = """
    import os, sys
    import numpy as np, torch
    import freshet, freshet.torch as ft

    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randn(40, 2))
    repository = freshet.Repository(sys.argv[1])
    begun = bool(repository.models())
    publisher = freshet.Publisher("net", resume=(repository, "net") if begun else None)
    epoch = ft.resume(publisher.resumed, module, optimizer) if begun else 0
    while epoch < 6:
        for x, y in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(module(x), y).backward()
            optimizer.step()
        epoch += 1
        ft.publish(publisher, module, optimizer=optimizer, step=epoch, sync=True)
        print(epoch, flush=True)
        if epoch == int(sys.argv[2]):
            sys.stdin.read()  # To be killed here.
    print(b"".join(one.numpy(force=True).tobytes() for one in module.state_dict().values()).hex(), flush=True)
"""


def test_a_killed_run_equals_an_undisturbed_one(program, folder):
    undisturbed = program(LOOP, folder + "/other", "0")
    for epoch in range(1, 7):
        assert undisturbed.line() == str(epoch)
    want = undisturbed.line()
    undisturbed.end()  # Or the sink stores what it still publishes.

    with freshet.Repository(folder + "/runs") as repository, repository.sink("net") as sink:
        first = program(LOOP, folder + "/runs", "3")
        for epoch in range(1, 4):
            assert first.line() == str(epoch)
        assert eventually(lambda: sink.status()["stored"] == 3)
        first.process.kill()
        first.end()
        second = program(LOOP, folder + "/runs", "0")
        for epoch in range(4, 7):
            assert second.line() == str(epoch)
        assert second.line() == want


def scheduled(kind, optimizer):
    of = torch.optim.lr_scheduler
    return {
        "milestones": lambda: of.MultiStepLR(optimizer, [2, 5, 7], 0.5),
        "one_cycle": lambda: of.OneCycleLR(optimizer, 0.2, total_steps=12),  # It moves the momentum, too.
        "in_turn": lambda: of.SequentialLR(optimizer, [of.LinearLR(optimizer), of.CosineAnnealingLR(optimizer, 5)], [3]),
        "plateau": lambda: of.ReduceLROnPlateau(optimizer, patience=1),
        "lambda": lambda: of.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    }[kind]()


def step_with(module, optimizer, scheduler, step):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    module(x).square().mean().backward()
    optimizer.step()
    scheduler.step(*([1.0 + step % 3] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else []))


@pytest.mark.parametrize("kind", ["milestones", "one_cycle", "in_turn", "plateau", "lambda"])
@pytest.mark.filterwarnings("ignore:.*epoch parameter:UserWarning")
def test_a_scheduler_of_learning_rates_goes_on_where_it_was(tmp_path, kind):
    """Against the same loop that nobody broke off."""
    def loop(steps, resumed=None, publisher=None):
        module = network()
        optimizer = OPTIMIZERS["momentum"](module.parameters())
        scheduler = scheduled(kind, optimizer)
        start = 0 if resumed is None else ft.resume(resumed, module, optimizer, scheduler=scheduler)
        for step in range(start, steps):
            step_with(module, optimizer, scheduler, step)
        if publisher is not None:
            ft.publish(publisher, module, optimizer=optimizer, scheduler=scheduler, step=steps, sync=True)
        return bits(module, optimizer), scheduler.state_dict(), optimizer.param_groups[0]["momentum"]

    want = loop(11)
    with freshet.Repository(str(tmp_path / "runs")) as repository, freshet.Publisher("net") as publisher:
        with repository.sink("net") as sink:
            loop(4, publisher=publisher)
            sink.wait_for(1, PATIENCE)
        assert loop(11, repository.resume("net")) == want


def test_a_scheduler_that_does_not_fit_is_named_and_changes_nothing(tmp_path):
    module = network()
    optimizer = OPTIMIZERS["momentum"](module.parameters())
    scheduler = scheduled("milestones", optimizer)
    with freshet.Repository(str(tmp_path / "runs")) as repository, freshet.Publisher("net") as publisher:
        with repository.sink("net") as sink:
            for wrong in ({"scheduler": scheduler}, {"scheduler": freshet.Scheduler(), "optimizer": optimizer}):
                with pytest.raises(freshet.InvalidArgument, match="scheduler"):
                    ft.publish(publisher, module, **wrong)
            stateful = scheduled("milestones", optimizer)
            stateful.kept = open
            with pytest.raises(freshet.Unsupported, match="MultiStepLR.kept is a builtin"):
                ft.publish(publisher, module, optimizer=optimizer, scheduler=stateful)
            for number, given in ((1, {"scheduler": scheduler}), (2, {}), (3, {"tags": {"freshet.schedulers": "[3]"}})):
                ft.publish(publisher, module, optimizer=optimizer, step=number, sync=True, **given)
            sink.wait_for(3, PATIENCE)
        for version, given, words in ((1, None, "this loop gives none"), (1, "plateau", "with MultiStepLR, this loop has Reduce"),
                                      (2, "milestones", "without one"), (3, "milestones", "malformed")):
            other = network()
            with torch.no_grad():
                other[0].bias.fill_(9)
            its = OPTIMIZERS["momentum"](other.parameters())
            its.param_groups[0]["lr"] = 0.5
            moved = None if given is None else scheduled(given, its)
            before = bits(other, its), None if moved is None else moved.state_dict()
            with pytest.raises(freshet.FailedPrecondition, match=words):
                ft.resume(repository.resume("net", version), other, its, scheduler=moved)
            assert (bits(other, its), None if moved is None else moved.state_dict()) == before
            assert ft.resume(repository.resume("net", version), other, its, scheduler=moved, strict=False) == version
            assert torch.equal(other[0].bias, module[0].bias)
