#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves the network that keras_trainer.py trains. It needs no code of the model: its config came with the weights. Prints how
well each version does on digits that the trainer never saw, and ends when no new one has come for --patience seconds.
KERAS_BACKEND may be another one than the trainer's."""
import argparse

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet
import freshet.keras

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--model", default="digits")
arguments.add_argument("--patience", type=float, default=10, help="seconds")
arguments.add_argument("--until", type=int, help="ends with this version")
options = arguments.parse_args()

_, x, _, y = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)

model = freshet.keras.load_model(options.model, timeout=60)                     # Freshet
with freshet.Subscriber(options.model) as subscriber:                           # Freshet
    served = freshet.keras.attach(model, subscriber)                            # Freshet
    subscriber.wait_for(timeout=60)
    while True:
        accuracy = (served.predict(x / 16, verbose=0).argmax(1) == y).mean()    # All of one prediction is of one version.
        print(f"version {served.answered}: accuracy {accuracy:.3f}", flush=True)
        if served.answered == options.until:
            break
        try:
            subscriber.wait_for(served.answered + 1, timeout=options.patience)
        except freshet.TimedOut:
            break
