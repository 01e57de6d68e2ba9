#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits with several ranks, and goes on where it was, with as many or fewer or more.

    torchrun --nproc-per-node 3 torch_ranks.py /tmp/ck     # kill a rank meanwhile: all end
    torchrun --nproc-per-node 2 torch_ranks.py /tmp/ck     # goes on from the newest checkpoint, with two ranks

Each rank computes the gradient of its part of a batch, and all take the sum. What is Freshet's is marked.
"""
import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet.torch

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("folder", help="for the checkpoints; ranks may share it")
arguments.add_argument("--steps", type=int, default=400)
arguments.add_argument("--meet", default="", help="tcp://HOST:PORT of rank 0 (default: beside torchrun's port)")
options = arguments.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

images, tests, labels, answers = (torch.tensor(part) for part in train_test_split(
    *load_digits(return_X_y=True), test_size=0.25, random_state=1))
images, tests = images.float() / 16, tests.float() / 16

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def accuracy():
    model.eval()
    with torch.no_grad():
        right = (model(tests).argmax(1) == answers).float().mean().item()
    model.train()
    return right


with freshet.torch.Checkpoints("digits", model, optimizer, every=10, local=options.folder, meet=options.meet,  # Freshet
                               when_behind="wait") as checkpoints:                                            # Freshet
    print(f"rank {rank} of {ranks} begins at step {checkpoints.step}: accuracy {accuracy():.4f}", flush=True)
    for step in range(checkpoints.step, options.steps):                                                        # Freshet
        batch = torch.randperm(len(images), generator=torch.Generator().manual_seed(step))[:96]
        mine = batch[rank::ranks]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / len(batch)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()  # Here Freshet captures.
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1}: accuracy {accuracy():.4f}", flush=True)
print(f"rank {rank} ends: accuracy {accuracy():.4f}", flush=True)
dist.destroy_process_group()
