#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves the network that torch_trainer.py trains: each forward answers with the newest version. Prints how well each one
does on digits that the trainer never saw, and ends when no new one has come for --patience seconds."""
import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet
import freshet.torch

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--model", default="digits")
arguments.add_argument("--patience", type=float, default=10, help="seconds")
arguments.add_argument("--until", type=int, help="ends with this version")
options = arguments.parse_args()

_, x, _, y = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)
x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).eval()

with freshet.Subscriber(options.model) as subscriber:                   # Freshet
    served = freshet.torch.attach(model, subscriber)                    # Freshet
    subscriber.wait_for(timeout=60)
    while True:
        with torch.no_grad():
            accuracy = (model(x).argmax(1) == y).float().mean().item()  # All of one forward is of one version.
        print(f"version {served.answered}: accuracy {accuracy:.3f}", flush=True)
        if served.answered == options.until:
            break
        try:
            subscriber.wait_for(served.answered + 1, timeout=options.patience)
        except freshet.TimedOut:
            break
