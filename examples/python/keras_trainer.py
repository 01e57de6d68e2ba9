#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits with Keras, and publishes it after each epoch. KERAS_BACKEND says on what:
tensorflow, jax or torch.

Beside it runs keras_server.py, in another terminal. With --repo a repository keeps each version. What is Freshet's is marked.
"""
import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet
import freshet.keras

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--model", default="digits")
arguments.add_argument("--epochs", type=int, default=20)
arguments.add_argument("--repo", help="the folder of a repository")
options = arguments.parse_args()

x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

repository = freshet.Repository(options.repo) if options.repo else None             # Freshet
sink = repository.sink(options.model) if repository else None                       # Freshet: stores what is published.
published = freshet.keras.PublishCallback(options.model)                            # Freshet
history = model.fit(x / 16, y, epochs=options.epochs, verbose=0, validation_data=(x_test / 16, y_test),
                    callbacks=[published])                                          # Freshet
for version, accuracy in zip(published.versions, history.history["val_accuracy"]):  # The server comes to the same.
    print(f"version {version}: accuracy {accuracy:.3f}")
print(f"training stood for {1e3 * published.blocked:.1f} ms", flush=True)
if sink:
    sink.wait_for(published.versions[-1])                                           # Freshet
input("trained; Enter ends the publisher ")  # Servers that come now still get the newest version.
published.close()
