#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a PyTorch trainer on a GPU, and a server beside it, wait for.

usage: gpu_torch [--quick] [--json | --check]
  --quick   a model of 512 MiB instead of 4 GiB
  --json    the last line only
  --check   each row with tiny tensors, on the CPU where there is no GPU: shows that the server has the trainer's bytes, and
            prints no figure

Without PyTorch, its CUDA, a GPU or the package no row is measured, and each says so."""
import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "common"), os.path.join(HERE, "..", "common")]  # In a build folder, and in the tree.
from tables import machine, print_tables

RATIOS = ("update_vs_torch_ipc", "update_1pct_vs_torch_ipc", "update_vs_torch_save", "blocked_ms", "step_vs_none")
TENSOR_BYTES = 32 << 20
AT_MOST = 120.0  # Seconds, for one update.
STEP_MS = 300


def why_not(check):
    for module in ("torch", "freshet"):
        if importlib.util.find_spec(module) is None:
            return f"no package {module} here"
    import torch
    if not check and not torch.cuda.is_available():
        return "PyTorch sees no GPU"
    return None


def finish(device):
    import torch
    if device == "cuda":
        torch.cuda.synchronize()


def model_of(size, device, seed):
    import torch
    elements = min(TENSOR_BYTES, size) // 2
    module = torch.nn.Module()
    for index in range(max(1, size // (2 * elements))):
        torch.manual_seed(seed + index)
        bits = torch.randint(-2**15, 2**15, (elements,), dtype=torch.int16, device=device)
        parameter = torch.nn.Parameter(bits.view(torch.bfloat16), requires_grad=False)
        module.register_parameter(f"layer{index}", parameter)
    return module


def bits_of(module):
    import torch
    return [parameter.data.view(torch.int16) for parameter in module.parameters()]


def sum_of(module):
    """Of all bits, each with its place."""
    import torch
    total = 0
    for index, bits in enumerate(bits_of(module)):
        place = torch.arange(bits.numel(), device=bits.device) % 8191 + 1 + index
        total += int((bits.to(torch.int64) * place).sum())
    return total


class Change:
    """Flips a bit of every element, or of one in a hundred at random places."""

    def __init__(self, module, share):
        import torch
        self._bits = bits_of(module)
        self._places = None
        if share < 1:
            self._places = [torch.randperm(bits.numel(), device=bits.device)[:max(1, int(share * bits.numel()))]
                            for bits in self._bits]

    def __call__(self):
        for index, bits in enumerate(self._bits):
            if self._places is None:
                bits.bitwise_xor_(1)
            else:
                bits[self._places[index]] = bits[self._places[index]].bitwise_xor(1)


def serve(pipe, peer, size, device, directory):
    """A server's process: takes each version that the trainer names, and answers when its parameters have it."""
    import torch
    module = model_of(size, device, seed=1000)
    sum_of(module)
    if peer == "freshet":
        import freshet
        import freshet.torch
        subscriber = freshet.Subscriber("gpu_torch", directory=directory)
        attached = freshet.torch.attach(module, subscriber, mode="copy")
    pipe.send("ready")
    while (told := pipe.recv()) is not None:
        if told == "sum":
            pipe.send(sum_of(module))
            continue
        if peer == "freshet":
            subscriber.wait_for(told, AT_MOST)
            attached.refresh()
        else:
            came = told if peer == "torch_ipc" else list(torch.load(told, map_location=device).values())
            for parameter, tensor in zip(module.parameters(), came):
                parameter.data.copy_(tensor)
            del told, came
        finish(device)
        pipe.send("done")


class Server:
    def __init__(self, peer, size, device, directory):
        import torch.multiprocessing
        context = torch.multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, peer, size, device, directory), daemon=True)
        self._process.start()
        theirs.close()
        self._hear()

    def take(self, what):
        self._pipe.send(what)
        self._hear()

    def sum(self):
        self._pipe.send("sum")
        return self._hear()

    def _hear(self):
        if not self._pipe.poll(AT_MOST):
            raise TimeoutError("the server does not answer")
        return self._pipe.recv()

    def end(self):
        self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


class Rows:
    def __init__(self, options, device):
        self.options, self.device = options, device
        self.rows, self.ratios, self.skipped = [], {}, []

    def size(self, full):
        return 1 << 16 if self.options.check else min(full, 512 << 20) if self.options.quick else full

    def row(self, case, subject, samples):
        self.rows.append({"case": case, "subject": subject, "unit": "ms", "median": statistics.median(samples),
                          "min": min(samples), "max": max(samples), "n": len(samples)})
        return statistics.median(samples)

    def update(self, ratio, peer, size, share, device_memory):
        """From the optimizer's end until the server's parameters have the new values: a peer and Freshet, in turns."""
        import freshet
        import freshet.torch
        repeats = 2 if self.options.check else 7
        module = model_of(size, self.device, seed=1)
        change = Change(module, share)
        took = {peer: [], "freshet": []}
        blocked = []
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            with freshet.Publisher("gpu_torch", directory=folder, device_memory=device_memory) as publisher:
                servers = {name: Server(name, size, self.device, folder) for name in took}
                for turn in range(-2, repeats):
                    for name, server in servers.items():
                        change()
                        finish(self.device)
                        begin = time.perf_counter()
                        if name == "freshet":
                            receipt = freshet.torch.publish(publisher, module)
                            handed = 1e3 * (time.perf_counter() - begin)
                            if receipt.version is None:
                                raise RuntimeError(f"the version was skipped: {receipt.skipped}")
                            server.take(receipt.version)
                        elif name == "torch_ipc":
                            server.take([parameter.data for parameter in module.parameters()])
                        else:
                            torch_save(module, f"{folder}/model.pt")
                            server.take(f"{folder}/model.pt")
                        ms = 1e3 * (time.perf_counter() - begin)
                        if server.sum() != sum_of(module):
                            raise RuntimeError(f"{name}: the server has other bytes than the trainer")
                        if turn >= 0:
                            took[name].append(ms)
                            blocked += [handed] if name == "freshet" else []
                for server in servers.values():
                    server.end()
        medians = {name: self.row(ratio, name, samples) for name, samples in took.items()}
        self.ratios[ratio] = medians[peer] / medians["freshet"]
        return blocked

    def steps(self, size):
        """A training step that publishes, and one that does not, in turns."""
        import freshet
        import freshet.torch
        import torch
        module = model_of(size, self.device, seed=1)
        change = Change(module, 0.01)
        step_ms = 1 if self.options.check else STEP_MS
        cycles = 0
        if self.device == "cuda":  # How many of the device's cycles a step has.
            torch.cuda._sleep(1000)
            finish(self.device)
            begin = time.perf_counter()
            torch.cuda._sleep(10**8)
            finish(self.device)
            cycles = int(10**8 * step_ms / (1e3 * (time.perf_counter() - begin)))
        steps = 2 if self.options.check else 5
        took = {"none": [], "freshet": []}
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            with freshet.Publisher("gpu_torch", directory=folder, device_memory=2.0) as publisher:
                for turn in range(-1, 3):
                    for name, samples in took.items():
                        version = None
                        begin = time.perf_counter()
                        for _ in range(steps):
                            if self.device == "cuda":
                                torch.cuda._sleep(cycles)
                            else:
                                time.sleep(1e-3 * step_ms)
                            change()
                            if name == "freshet":
                                version = freshet.torch.publish(publisher, module).version or version
                        finish(self.device)
                        ms = 1e3 * (time.perf_counter() - begin) / steps
                        if version is not None:
                            publisher.wait_committed(version, AT_MOST)
                        if turn >= 0:
                            samples.append(ms)
        medians = {name: self.row("step_vs_none", name, samples) for name, samples in took.items()}
        self.ratios["step_vs_none"] = medians["none"] / medians["freshet"]

    def updates_on_device(self):
        blocked = self.update("update_vs_torch_ipc", "torch_ipc", self.size(4 << 30), 1, 2.0)
        self.row("blocked_ms", "freshet", blocked)
        self.ratios["blocked_ms"] = statistics.median(blocked)

    def measure(self):
        for names, call in ((("update_vs_torch_ipc", "blocked_ms"), self.updates_on_device),
                            (("update_1pct_vs_torch_ipc",),
                             lambda: self.update("update_1pct_vs_torch_ipc", "torch_ipc", self.size(4 << 30), 0.01, 2.0)),
                            (("update_vs_torch_save",),
                             lambda: self.update("update_vs_torch_save", "torch_save", self.size(512 << 20), 1, None)),
                            (("step_vs_none",), lambda: self.steps(self.size(4 << 30)))):
            try:
                call()
            except Exception as error:  # The other rows are measured all the same.
                self.skipped += [(name, f"not measured: {error}") for name in names]
            for name in names:
                if name in self.ratios and not self.options.check:
                    print(f"{name} {self.ratios[name]:.2f}", file=sys.stderr, flush=True)


def torch_save(module, path):
    import torch
    torch.save({name: parameter.data for name, parameter in module.named_parameters()}, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    told = machine()
    why = why_not(options.check)
    if why is None:
        import torch
        rows = Rows(options, "cuda" if torch.cuda.is_available() else "cpu")
        rows.measure()
    else:
        rows = Rows(options, "cpu")
        rows.skipped = [(name, f"not measured: {why}") for name in RATIOS]
    if options.check:
        for name in RATIOS:
            print(f"{name}: {dict(rows.skipped).get(name, 'the bytes are right')}")
        return 1 if rows.skipped else 0
    if not options.json:
        print_tables(told, rows.rows, rows.ratios, rows.skipped)
        print()
    print(json.dumps({"benchmark": "gpu_torch", "machine": told, "ratios": rows.ratios, "rows": rows.rows,
                      "skipped": dict(rows.skipped)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
