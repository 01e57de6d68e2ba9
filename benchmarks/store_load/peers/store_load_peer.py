# SPDX-License-Identifier: Apache-2.0
"""What a user of h5py or safetensors does with a model: one file for each version.

usage: store_load_peer.py h5py|safetensors FILE SIZES

Started once; the interpreter, the imports and the tensors' memory are ready before a clock starts. Lines in: `store`,
`sync` (store, then wait for the disk) or `load`, each with the tensors' indices; a line out with the milliseconds.
"""

import os
import sys
import time

import numpy as np


def store(kind, path, tensors):
    if kind == "h5py":
        import h5py

        with h5py.File(path, "w") as file:
            for name, values in tensors.items():
                file.create_dataset(name, data=values)
    else:
        from safetensors.numpy import save_file

        save_file(tensors, path)


def load(kind, path, buffers):
    """h5py reads into buffers that were touched before; safetensors offers new arrays only."""
    if kind == "h5py":
        import h5py

        with h5py.File(path, "r") as file:
            for name, buffer in buffers.items():
                file[name].read_direct(buffer)
        return buffers
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        return {name: file.get_tensor(name) for name in buffers}


def main():
    kind, path = sys.argv[1:3]
    sizes = [int(size) for size in sys.argv[3].split(",")]
    random = np.random.default_rng(1)
    tensors = {str(i): random.integers(0, 256, size, dtype=np.uint8) for i, size in enumerate(sizes)}
    buffers = {name: np.ones_like(values) for name, values in tensors.items()} if kind == "h5py" else tensors
    store(kind, path, {"0": np.zeros(8, dtype=np.uint8)})  # Imports.
    print("ready", flush=True)
    try:
        for line in sys.stdin:
            what, *names = line.split()
            chosen = {name: (buffers if what == "load" else tensors)[name] for name in names}
            start = time.perf_counter()
            if what == "load":
                loaded = load(kind, path, chosen)
                end = time.perf_counter()
                assert all(np.array_equal(loaded[name][:64], tensors[name][:64]) for name in names)
                del loaded
            else:
                store(kind, path, chosen)
                if what == "sync":
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
                end = time.perf_counter()
            print((end - start) * 1000, flush=True)
    finally:
        if os.path.exists(path):
            os.remove(path)


if __name__ == "__main__":
    main()
