#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Learns scikit-learn's digits with NumPy alone, and publishes after each epoch."""
import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--model", default="digits")
arguments.add_argument("--epochs", type=int, default=20)
options = arguments.parse_args()

x, _, y, _ = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)
x, truth = x / 16, np.eye(10)[y]
weights = {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}

with freshet.Publisher(options.model) as publisher:                     # Freshet
    bound = publisher.bind(weights)                                     # Freshet
    for epoch in range(1, options.epochs + 1):
        for rows in np.array_split(np.random.default_rng(epoch).permutation(len(x)), 40):
            scores = np.exp(x[rows] @ weights["w"] + weights["b"])
            scores /= scores.sum(axis=1, keepdims=True)
            error = (scores - truth[rows]) / len(rows)
            weights["w"] -= 0.5 * x[rows].T @ error
            weights["b"] -= 0.5 * error.sum(axis=0)
        loss = -np.log((scores * truth[rows]).sum(axis=1)).mean()
        receipt = bound.publish(step=epoch, metrics={"loss": loss})     # Freshet
        print(f"epoch {epoch}: loss {loss:.3f}, version {receipt.version}", flush=True)
    input("trained; Enter ends the publisher ")  # Servers that come now still get the newest version.
