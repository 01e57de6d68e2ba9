# SPDX-License-Identifier: Apache-2.0
"""A trainer that knows nothing of tiers: a linear model of what the files of a folder hold, whose loss depends on every byte.

usage: trainer.py FOLDER CHECKPOINT EPOCHS [--die-in EPOCH]
It reads with four threads, prints a line after each epoch and goes on when it is told to (a line on its standard input). It writes a
checkpoint after each epoch, and goes on from there. --die-in: it is killed in the middle of that epoch.
"""
import json
import os
import random
import signal
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

folder, checkpoint, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
die_in = int(sys.argv[5]) if len(sys.argv) > 5 else 0
names = sorted(os.listdir(folder))
state = {"epoch": 0, "weight": 0.5, "losses": []}
if os.path.exists(checkpoint):
    with open(checkpoint, encoding="utf-8") as file:
        state = json.load(file)


def read(name):
    with open(os.path.join(folder, name), "rb") as data:
        return zlib.crc32(data.read())


with ThreadPoolExecutor(4) as readers:
    for epoch in range(state["epoch"] + 1, epochs + 1):
        order = names[:]
        random.Random(epoch).shuffle(order)
        loss = 0.0
        for position, digest in enumerate(readers.map(read, order)):
            error = state["weight"] - digest / 2**32
            state["weight"] -= 0.01 * error
            loss += error * error
            if epoch == die_in and position == len(order) // 2:
                os.kill(os.getpid(), signal.SIGKILL)
        state["losses"].append((loss / len(order)).hex())
        state["epoch"] = epoch
        with open(checkpoint + ".new", "w", encoding="utf-8") as file:
            json.dump(state, file)
        os.replace(checkpoint + ".new", checkpoint)
        print("epoch", epoch, flush=True)
        if not sys.stdin.readline():
            break
