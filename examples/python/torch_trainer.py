#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits with PyTorch, and publishes it after each epoch.

Beside it runs torch_server.py, in another terminal. What is Freshet's is marked.
"""
import argparse

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet
import freshet.torch

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--model", default="digits")
arguments.add_argument("--epochs", type=int, default=20)
options = arguments.parse_args()

x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)
x, x_test = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(x_test / 16, dtype=torch.float32)
y, y_test = torch.tensor(y), torch.tensor(y_test)

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

with freshet.Publisher(options.model) as publisher:                                            # Freshet
    for epoch in range(1, options.epochs + 1):
        for batch in torch.randperm(len(x)).split(32):
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        receipt = freshet.torch.publish(publisher, model, step=epoch, metrics={"loss": loss.item()})  # Freshet
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()  # The server comes to the same.
        print(f"version {receipt.version}: accuracy {accuracy:.3f}, loss {loss.item():.3f}, training stood for "
              f"{1e3 * receipt.blocked:.2f} ms", flush=True)
    input("trained; Enter ends the publisher ")  # Servers that come now still get the newest version.
