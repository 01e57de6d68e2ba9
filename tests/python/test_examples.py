# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/python, as a newcomer runs them: a server's accuracy follows the trainer's."""
import importlib.util
import os
import subprocess
import sys

import pytest

from conftest import PATIENCE

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python")


def start(name, *arguments, **environment):
    return subprocess.Popen([sys.executable, "-W", "ignore", os.path.join(EXAMPLES, name), *arguments], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env=dict(os.environ, OMP_NUM_THREADS="1", **environment))


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"without {module}")


def follow(trainer, server, least):
    """Both to their ends; the accuracies that the server printed, by version."""
    out, err = server.communicate(timeout=5 * PATIENCE)
    assert server.returncode == 0, err
    _, complaints = trainer.communicate("\n", timeout=PATIENCE)
    assert trainer.returncode == 0, complaints
    accuracy = {}
    for line in out.splitlines():
        if line.startswith("version "):
            version, _, value = line.removeprefix("version ").partition(": accuracy ")
            accuracy[int(version)] = float(value)
    assert max(accuracy) == 20, "the last version was served"
    assert accuracy[20] >= least, accuracy


def test_torch_trainer_and_server():
    needs("torch", "sklearn")
    server = start("torch_server.py", "--patience", str(PATIENCE), "--until", "20")
    follow(start("torch_trainer.py"), server, 0.93)


def test_keras_trainer_and_server_on_another_backend():
    needs("keras", "jax", "torch", "sklearn")
    trainer = start("keras_trainer.py", KERAS_BACKEND="jax")
    follow(trainer, start("keras_server.py", "--patience", str(PATIENCE), "--until", "20", KERAS_BACKEND="torch"), 0.93)


def test_deephyper_search(folder):
    needs("torch", "deephyper", "sklearn")
    search = subprocess.run([sys.executable, "-W", "ignore", os.path.abspath(os.path.join(EXAMPLES, "deephyper_search.py")),
                             "--repo", os.path.join(folder, "runs"), "--candidates", "12", "--population", "5", "--epochs", "2"],
                            text=True, capture_output=True, cwd=folder, timeout=5 * PATIENCE,
                            env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert search.returncode == 0, search.stderr
    assert "candidates" in search.stdout and "search@best" in search.stdout


def callback_of(name):
    spec = importlib.util.spec_from_file_location(name, os.path.join(EXAMPLES, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PublishCallback


def assert_served(name, module):
    import freshet
    import torch
    with freshet.Subscriber(name) as subscriber:
        subscriber.wait_for(timeout=PATIENCE)
        with subscriber.snapshot() as snapshot:
            assert (snapshot.step, snapshot.version) == (8, 3), "published at steps 3, 6 and 8"
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
    transformers.Trainer(model, transformers.TrainingArguments(folder, max_steps=8, per_device_train_batch_size=4, report_to=[],
                                                               use_cpu=True, logging_steps=1, save_strategy="no",
                                                               disable_tqdm=True),
                         train_dataset=data, callbacks=[callback]).train()
    assert_served("hf", model)
    callback.close()


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
    lightning.Trainer(max_epochs=1, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
                      enable_progress_bar=False, default_root_dir=folder).fit(model, torch.utils.data.DataLoader(data, 4))
    assert_served("li", model)
    callback.close()
