# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/python that train with a framework, as a newcomer runs them: a server's accuracy follows the
trainer's."""
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import PATIENCE, free_port
from example_programs import EXAMPLES, needs, start
from pages import blocks_of


def accuracies(out):
    """What a trainer or a server printed, by version."""
    return {int(version): float(value) for version, value in re.findall(r"^version (\d+): accuracy ([\d.]+)", out, re.MULTILINE)}


def follow(trainer, server, least, differs=0.0):
    """Both to their ends: for each version that was served, the server measures what the trainer measured, or differs by
    so much."""
    out, err = server.communicate(timeout=5 * PATIENCE)
    assert server.returncode == 0, err
    told, complaints = trainer.communicate("\n", timeout=PATIENCE)
    assert trainer.returncode == 0, complaints
    trained, served = accuracies(told), accuracies(out)
    assert list(trained) == list(range(1, 21))
    assert max(served) == 20, "the last version was served"
    assert served[20] >= least, served
    for version, accuracy in served.items():
        assert abs(accuracy - trained[version]) <= differs, (version, trained, served)


def test_torch_trainer_and_server():
    needs("torch", "sklearn")
    server = start("torch_server.py", "--patience", str(PATIENCE), "--until", "20")
    follow(start("torch_trainer.py"), server, 0.93)


def test_rollouts_and_their_trainer():
    """With two rollouts, one of which is killed amid the training; then with one alone."""
    needs("torch")
    trainer = start("rlhf.py", "--max-staleness", "0", "--versions", "60")
    rollouts = [int(re.fullmatch(rf"rollout {number} is process (\d+)\n", trainer.stdout.readline())[1]) for number in (1, 2)]
    assert trainer.stdout.readline().startswith("step 10: reward ")
    os.kill(rollouts[0], signal.SIGKILL)
    out, err = trainer.communicate(timeout=2 * PATIENCE)
    assert trainer.returncode == 0, err
    assert "rollout 1 is gone; 1 left\n" in out
    told = re.fullmatch(r"reward (\S+) -> (\S+); versions (\d+); samples used (\d+), dropped (\d+); staleness (\S+) versions, at most (\d+); "
                        r"rollouts overtaken (\d+); processes left 1 of 2", out.splitlines()[-1])
    assert told, out
    before, after, versions, used, dropped, mean, most, overtaken = map(float, told.groups())
    assert before < 0.25 and after > 0.9, "an answer's token is right by chance one time in eight"
    assert (versions, used, mean, most) == (60, 4 * 60, 0, 0)
    assert dropped > 0 and overtaken > 0, "a rollout that was asked before a version came is not to be used after it"
    assert not any(os.path.exists(f"/proc/{pid}") for pid in rollouts)

    trainer = start("rlhf.py", "--rollouts", "1")
    rollout = int(trainer.stdout.readline().split()[-1])
    assert trainer.stdout.readline().startswith("step 10: ")
    os.kill(rollout, signal.SIGKILL)
    out, err = trainer.communicate(timeout=PATIENCE)
    assert trainer.returncode == 1 and "no rollout is left: training ended after " in err, out + err


def test_keras_trainer_and_server_on_another_backend():
    needs("keras", "jax", "torch", "sklearn")
    trainer = start("keras_trainer.py", KERAS_BACKEND="jax")
    follow(trainer, start("keras_server.py", "--patience", str(PATIENCE), "--until", "20", KERAS_BACKEND="torch"), 0.93,
           differs=0.004)  # Of 450 digits one may be told otherwise by another backend's rounding.


def test_triton_answers_while_keras_trains_and_either_is_killed(folder):
    needs("keras", "jax", "sklearn", "pytriton", "tritonclient")
    command = os.path.join(os.path.dirname(sys.executable), "freshet")
    if not os.path.exists(command):
        pytest.skip("without the command freshet beside Python")
    place = os.path.join(folder, "serving")
    ran = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(os.path.join(EXAMPLES, "triton_digits.py")), place], text=True,
                         capture_output=True, timeout=8 * PATIENCE, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    stages = re.findall(r"^(?:(a server|the trainer) was killed.*; )?(\d+) answers, the last one by version (\d+)$", ran.stdout, re.MULTILINE)
    assert [killed for killed, _, _ in stages] == ["", "a server", "the trainer"], ran.stdout
    (_, first, begun), (_, second, trained), (_, last, served) = [(killed, int(count), int(version)) for killed, count, version in stages]
    assert begun < trained <= served, "training went on when the server was killed, and the servers answer without the trainer"
    assert second - first >= 100 and last - second >= 100
    assert re.search(r"^0 requests lost, [1-9]\d* asked of the other server$", ran.stdout, re.MULTILINE), ran.stdout
    compared = int(re.search(r"^(\d+) answers compared with the version that they name: 0 differ$", ran.stdout, re.MULTILINE)[1])
    assert 0 < compared <= last
    with open(os.path.join(place, "answers.jsonl"), encoding="utf-8") as file:
        notes = [json.loads(line) for line in file]
    assert {f"request-{number}" for number in range(last)} <= {note["request"] for note in notes}
    assert max(note["version"] for note in notes) == served
    request = re.search(r"^freshet why (\S+) ", ran.stdout, re.MULTILINE)[1]
    [version] = {note["version"] for note in notes if note["request"] == request}
    assert f"request {request}: digits@{version} gave the answer" in ran.stdout
    told = subprocess.run([command, "why", request, "--journal", "answers.jsonl", "--repo", "runs", "--json"], text=True,
                          capture_output=True, cwd=place)
    answer = json.loads(told.stdout)
    assert answer["version"] == version and answer["metrics"]["val_accuracy"] > 0.5
    assert answer["lineage"][0]["version"] == f"digits@{version}" and len(answer["lineage"]) > 1


def test_deephyper_search(folder):
    needs("torch", "deephyper", "sklearn")
    search = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(os.path.join(EXAMPLES, "deephyper_search.py")),
                             "--repo", os.path.join(folder, "runs"), "--candidates", "12", "--population", "5", "--epochs", "2"],
                            text=True, capture_output=True, cwd=folder, timeout=5 * PATIENCE,
                            env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert search.returncode == 0, search.stderr
    assert "candidates" in search.stdout and "search@best" in search.stdout


def test_a_search_in_arms_to_one_budget(folder):
    needs("torch", "deephyper", "sklearn", "h5py", "redis", "matplotlib")
    if shutil.which("redis-server") is None:
        pytest.skip("without redis-server")
    out = os.path.join(folder, "arms")
    ran = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(os.path.join(EXAMPLES, "deephyper_arms.py")), "--out", out,
                          "--candidates", "8", "--population", "3", "--epochs", "1", "--seeds", "1"], text=True, capture_output=True, cwd=folder,
                         timeout=5 * PATIENCE, env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert ran.returncode == 0, ran.stderr
    with open(os.path.join(out, "arms.json"), encoding="utf-8") as file:
        arms = json.load(file)
    assert list(arms) == ["without transfer", "HDF5 and Redis", "Freshet"]
    for rows in arms.values():
        assert len(rows) == 8 and max(row["accuracy"] for row in rows) > 0.3
    assert arms["without transfer"][-1]["bytes"] == 0
    assert 0 < arms["Freshet"][-1]["bytes"] < arms["HDF5 and Redis"][-1]["bytes"]
    with open(os.path.join(out, "table.json"), encoding="utf-8") as file:
        table = json.load(file)
    assert list(table) == ["without transfer", "Freshet", "Freshet, freeze=none", "Freshet, freeze=all"]
    for name, by_seed in table.items():
        row = next(line for line in ran.stdout.splitlines() if line.startswith(f"| {name} |"))
        assert list(by_seed) == ["1"] and f"{by_seed['1']['accuracy']:.3f}, {by_seed['1']['bytes'] / 1e6:.2f}" in row
    with open(os.path.join(out, "arms.svg"), encoding="utf-8") as file:
        assert "<svg" in file.read()


def callback_of(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(EXAMPLES, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PublishCallback


def assert_served(name, module, version):
    import freshet
    import torch
    with freshet.Subscriber(name) as subscriber:
        subscriber.wait_for(version, timeout=PATIENCE)
        with subscriber.snapshot() as snapshot:
            assert (snapshot.step, snapshot.version) == (8, version), "published at steps 3, 6 and 8"
            for key, tensor in module.state_dict().items():
                assert torch.equal(torch.from_numpy(snapshot[key].copy()), tensor.cpu()), key


def test_hugging_face_callback(folder):
    needs("torch", "transformers", "accelerate")
    import torch
    import transformers

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": ((self.linear(x) - labels) ** 2).mean()}

    data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(40)]
    callback = callback_of("huggingface_callback")("hf", every=3)
    model = Net()
    for version in (3, 6, 9):
        if version == 9:
            callback.close()  # And on with a publisher of its own.
        transformers.Trainer(model, transformers.TrainingArguments(folder, max_steps=8, per_device_train_batch_size=4, report_to=[],
                                                                   use_cpu=True, logging_steps=1, save_strategy="no",
                                                                   disable_tqdm=True),
                             train_dataset=data, callbacks=[callback]).train()
        assert_served("hf", model, version)
    callback.close()


class Broken(Exception):
    pass


def same(module, other):
    return all(bool((mine == theirs).all()) for mine, theirs in zip(module.state_dict().values(), other.state_dict().values()))


def test_a_hugging_face_run_goes_on_as_if_nothing_had_been(folder):
    """Broken off in the middle of an epoch, and where the last published version is the last of its epoch."""
    needs("torch", "transformers", "accelerate")
    import freshet
    import torch
    import transformers

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

        def forward(self, x, labels):
            return {"loss": ((self.layers(x) - labels) ** 2).mean()}

    class Breaks(transformers.TrainerCallback):
        def __init__(self, at):
            self.at = at

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == self.at:
                raise Broken

    generator = torch.Generator().manual_seed(1)
    data = [{"x": torch.randn(4, generator=generator), "labels": torch.randn(1, generator=generator)} for _ in range(40)]

    def trained(*callbacks, at=None):
        torch.manual_seed(3)
        model = Net()
        trainer = transformers.Trainer(model, transformers.TrainingArguments(
            folder, num_train_epochs=2, per_device_train_batch_size=4, learning_rate=0.01, report_to=[], use_cpu=True, logging_steps=1,
            save_strategy="no", disable_tqdm=True), train_dataset=data, callbacks=[*callbacks, Breaks(at)])
        try:
            trainer.train(resume_from_checkpoint=callbacks[0].checkpoint(folder + "/resumed") if callbacks else None)
        except Broken:
            assert at is not None
        for one in callbacks:
            one.close()
        return model

    want = trained()
    with freshet.Repository(folder + "/runs") as repository:
        for name, every, at, last in (("in", 3, 8, 6), ("between", 5, 12, 10)):
            assert not same(trained(callback_of("huggingface_callback")(name, every, repository), at=at), want)
            assert repository.resume(name).step == last
            assert same(trained(callback_of("huggingface_callback")(name, every, repository)), want), name
            assert repository.resume(name).step == 20
            steps = [repository.resume(name, row.version.number).step for row in repository.versions(name)]
            assert steps == sorted(set(steps)), "no step was trained twice"


def test_a_lightning_run_goes_on_as_if_nothing_had_been(folder):
    needs("torch", "lightning")
    import freshet
    import lightning
    import torch

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))

        def training_step(self, batch, _):
            return ((self.layers(batch[0]) - batch[1]) ** 2).mean()

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

    class Breaks(lightning.Callback):
        def __init__(self, at):
            self.at = at

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == self.at:
                raise Broken

    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4, generator=generator), torch.randn(32, 1, generator=generator))

    def trained(*callbacks, at=None):
        torch.manual_seed(3)
        model = Net()
        trainer = lightning.Trainer(max_epochs=3, callbacks=[*callbacks, Breaks(at)], accelerator="cpu", logger=False,
                                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                    default_root_dir=folder)
        try:
            trainer.fit(model, torch.utils.data.DataLoader(data, 4, shuffle=True))
        except Broken:
            assert at is not None
        for one in callbacks:
            one.close()
        return model, trainer.global_step

    want, steps = trained()
    with freshet.Repository(folder + "/runs") as repository:
        assert not same(trained(callback_of("lightning_callback")("between", 8, repository), at=11)[0], want)
        assert repository.resume("between").step == 8
        model, came_to = trained(callback_of("lightning_callback")("between", 8, repository))
        assert came_to == steps == 24 and same(model, want)
        trained(callback_of("lightning_callback")("in", 3, repository), at=11)
        assert repository.resume("in").step == 9
        _, came_to = trained(callback_of("lightning_callback")("in", 3, repository))
        assert came_to == steps and repository.resume("in").step == 24


def test_lightning_callback(folder):
    needs("torch", "lightning")
    import lightning
    import torch

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            loss = ((self.linear(batch[0]) - batch[1]) ** 2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    callback = callback_of("lightning_callback")("li", every=3)
    model = Net()
    for version in (3, 6, 9):
        if version == 9:
            callback.close()  # And on with a publisher of its own.
        lightning.Trainer(max_epochs=1, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
                          enable_progress_bar=False, default_root_dir=folder).fit(model, torch.utils.data.DataLoader(data, 4))
        assert_served("li", model, version)
    callback.close()


def test_six_lines_on_several_ranks(folder):
    """The program of docs/python/pytorch.md, with two ranks, twice."""
    needs("torch")
    import freshet
    import torch.distributed
    if not torch.distributed.is_gloo_available():
        pytest.skip("PyTorch without gloo")
    [program] = [text for _, name, text in blocks_of("pytorch.md") if name == "ranks.py"]

    def ran():
        port = str(free_port())
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], cwd=folder, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                                                   MASTER_PORT=port, OMP_NUM_THREADS="1")) for rank in range(2)]
        try:
            told = [rank.communicate(timeout=2 * PATIENCE) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert [rank.returncode for rank in ranks] == [0, 0], told
        both = [re.search(r"^rank \d begins at step (\d+)\nrank \d ends at step (\d+): weight (\S+)$", out, re.MULTILINE).groups()
                for out, _ in told]
        assert both[0] == both[1], told
        return int(both[0][0]), int(both[0][1]), float(both[0][2])

    assert ran()[:2] == (0, 20)
    begin, end, weight = ran()
    assert (begin, end) == (20, 40)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(1, 41):  # One process, both ranks' batches, and nobody breaks it off.
        x = torch.cat([torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + rank)) for rank in range(2)])
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    assert weight == pytest.approx(model.weight[0, 0].item(), abs=1e-5)
    with freshet.Repository(folder + "/runs") as repository:
        assert [row.version.number for row in repository.versions("net") if not row.retired] == list(range(31, 41))
        assert repository.resume("net").step == 40 and len(repository.lineage("net")) == 40


def test_data_parallel_ranks_go_on_with_fewer(folder):
    """Three ranks train; one is killed, and the job goes on with two from a checkpoint of the three."""
    needs("torch", "sklearn")
    import torch.distributed
    if not torch.distributed.is_gloo_available():
        pytest.skip("PyTorch without gloo")

    def ranks(count, steps):
        port, meet = free_port(), f"tcp://127.0.0.1:{free_port()}"
        return [start("torch_ranks.py", folder, "--steps", str(steps), "--meet", meet, RANK=str(rank),
                      WORLD_SIZE=str(count), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)) for rank in range(count)]

    def begun(job, at):
        line = job[at].stdout.readline()
        assert line.startswith(f"rank {at} of {len(job)} begins at step "), line + job[at].stderr.read()
        step, _, accuracy = line.removeprefix(f"rank {at} of {len(job)} begins at step ").partition(": accuracy ")
        return int(step), float(accuracy)

    three = ranks(3, 100_000)
    two = []
    try:
        assert [begun(three, at)[0] for at in range(3)] == [0, 0, 0]
        assert three[0].stdout.readline().startswith("step 50: ")
        three[2].kill()
        for at in (0, 1):
            three[at].communicate(timeout=PATIENCE)
            assert three[at].returncode != 0, "its peer is gone"
        two = ranks(2, 400)
        first, other = begun(two, 0), begun(two, 1)
        assert first == other, "both have the weights and the moving statistics of one rank"
        assert first[0] >= 40 and first[1] > 0.5, first
        for at in (0, 1):
            out, err = two[at].communicate(timeout=PATIENCE)
            assert two[at].returncode == 0, err
            assert float(out.split()[-1]) > 0.95, out
    finally:
        for rank in three + two:
            rank.kill()
            rank.wait()
