#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs, beside what a user would call in its place.

usage: python [--quick] [--json] [--repeats N] [CASE…]
  --quick   smaller models, about a minute
  --json    the last line only

Needs the venv of scripts/python.sh --frameworks (FRESHET_VENV names another one). A framework that it lacks is a skip."""
import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.environ.get("FRESHET_VENV", os.path.join(HERE, "..", "..", "venv"))
if __name__ == "__main__" and importlib.util.find_spec("freshet") is None:
    python = os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        sys.exit("python: no venv with the package; scripts/python.sh --frameworks makes it")
    os.execv(python, [python, "-W", "ignore", os.path.abspath(__file__), *sys.argv[1:]])

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np

import freshet

sys.path[:0] = [os.path.join(HERE, "common"), os.path.join(HERE, "..", "common")]  # In a build folder, and in the tree.
from tables import machine, print_tables

MEMORY = "/dev/shm"
rows, ratios, skipped = [], {}, []
options = None


def ms_of(call):
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def row(case, subject, unit, samples):
    rows.append({"case": case, "subject": subject, "unit": unit, "median": statistics.median(samples), "min": min(samples),
                 "max": max(samples), "n": len(samples)})
    return statistics.median(samples)


def needs(case, *modules):
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    for module in missing:
        skipped.append((case, f"without {module}; scripts/python.sh --frameworks brings it"))
    return not missing


def in_turns(case, subjects, unit="ms"):
    """Medians of all subjects' calls, which take turns; the first round of each warms up and does not count."""
    samples = {name: [] for name in subjects}
    for round_ in range(options.repeats + 1):
        for name, call in subjects.items():
            took = call()
            if round_ > 0:
                samples[name].append(took)
    return {name: row(case, name, unit, one) for name, one in samples.items()}


def layers_of(megabytes):
    """Some large matrices, and a small one for each."""
    width = 2048
    count = max(1, megabytes * 10**6 // (width * width * 4))
    rng = np.random.default_rng(1)
    return {f"layer{i}/{kind}": rng.random(shape, np.float32) for i in range(count)
            for kind, shape in (("kernel", (width, width)), ("bias", (width,)))}


def copier(arrays):
    into = {name: np.empty_like(array) for name, array in arrays.items()}

    def copy():
        for name, array in arrays.items():
            np.copyto(into[name], array)
    return lambda: ms_of(copy)


def change(arrays):
    for array in arrays.values():
        array += 1


def keras_model():
    import keras
    width = 2048
    return keras.Sequential([keras.Input((width,)), *(keras.layers.Dense(width) for _ in range(
        max(1, options.megabytes * 10**6 // (width * width * 4))))])


def keras_callback(folder):
    """How long training stands while a model is saved."""
    case = f"keras_{options.megabytes}MB"
    if not needs(case, "keras", os.environ["KERAS_BACKEND"]):
        return
    import keras
    import freshet.keras
    model = keras_model()
    arrays = {variable.path: np.array(variable) for variable in model.weights}
    callback = freshet.keras.PublishCallback("benchmark", every=1)
    callback.set_model(model)

    def step():
        for variable in model.weights:
            variable.assign(keras.ops.convert_to_tensor(variable) + 1.0)
        for variable in model.weights:  # JAX computes it when it is asked for.
            keras.ops.convert_to_numpy(variable)

    def publish():
        step()
        blocked = callback.blocked
        callback.on_train_batch_end(0, {"loss": 1.0})
        return 1e3 * (callback.blocked - blocked)

    subjects = {"freshet": publish, "memcpy": copier(arrays),
                "save_weights": lambda: ms_of(lambda: model.save_weights(f"{folder}/k.weights.h5"))}
    if needs(case, "orbax"):
        import orbax.checkpoint as ocp
        checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())

        def orbax():
            step()
            path = f"{folder}/orbax"
            shutil.rmtree(path, ignore_errors=True)
            state = {variable.path.replace("/", "."): variable.value for variable in model.weights}
            took = ms_of(lambda: checkpointer.save(path, args=ocp.args.StandardSave(state)))
            checkpointer.wait_until_finished()
            return took
        if os.environ["KERAS_BACKEND"] == "jax":
            subjects["orbax_async"] = orbax
    if needs(case, "torch"):
        import torch
        import torch.distributed.checkpoint as dcp
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}

        def async_save():
            futures = []
            took = ms_of(lambda: futures.append(dcp.async_save(state, checkpoint_id=f"{folder}/dcp", no_dist=True)))
            futures[0].result()
            return took
        subjects["dcp_async"] = async_save
    took = in_turns(case, subjects)
    callback.close()
    ratios["keras_blocked_vs_memcpy"] = took["memcpy"] / took["freshet"]
    ratios["keras_blocked_vs_save_weights"] = took["save_weights"] / took["freshet"]
    ratios["save_weights_in_memcpys"] = took["save_weights"] / took["memcpy"]
    for peer in ("orbax_async", "dcp_async"):
        if peer in took:
            ratios[f"keras_blocked_vs_{peer}"] = took[peer] / took["freshet"]


def keras_fit(folder):
    """In a fit(): from the end of a batch, after which the model is saved, until the next batch is trained on. JAX computes a step
    in the memory of the one before, unless somebody still reads that; then it copies."""
    case = f"keras_fit_{options.megabytes}MB"
    if os.environ["KERAS_BACKEND"] != "jax" or not needs(case, "keras", "jax", "orbax"):
        return
    import keras
    import orbax.checkpoint as ocp
    import freshet.keras
    model, path, kept = keras_model(), f"{folder}/orbax", []
    model.compile("sgd", "mse")
    callback = freshet.keras.PublishCallback("fit", every=1)
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    save = {"freshet": lambda _: callback.on_train_batch_end(0, {"loss": 1.0}), "no_save": lambda _: None,
            "arrays_kept": lambda weights: kept.extend(np.asarray(variable.value) for variable in weights),
            "orbax_async": lambda weights: checkpointer.save(path, args=ocp.args.StandardSave(
                {variable.path.replace("/", "."): variable.value for variable in weights}))}
    names = list(save)
    samples = {name: [] for name in names}

    class Turns(keras.callbacks.Callback):
        """After every other batch one of them saves, and it is measured until the next batch ends."""
        turn, begun = -len(names), None  # The first round warms up.

        def on_train_batch_end(self, batch, logs=None):
            float(logs["loss"])  # Waits for the step.
            name = names[self.turn % len(names)]
            if self.begun is None:
                self.begun = time.perf_counter()
                save[name](self.model.weights)
                return
            if self.turn >= 0:
                samples[name].append(1e3 * (time.perf_counter() - self.begun))
            self.begun, self.turn = None, self.turn + 1
            checkpointer.wait_until_finished()  # What follows behind the loop is over before the next one's turn.
            callback._publisher.wait_committed(callback.versions[-1])
            kept.clear()
            shutil.rmtree(path, ignore_errors=True)

    callback.set_model(model)
    x = np.random.default_rng(1).random((16 * len(names) * (options.repeats + 1), 2048), np.float32)
    model.fit(x, x, batch_size=8, verbose=0, callbacks=[Turns()])
    callback.close()
    took = {name: row(case, name, "ms", one) for name, one in samples.items()}
    ratios["keras_fit_vs_orbax_async"] = took["orbax_async"] / took["freshet"]
    ratios["keras_fit_vs_no_save"] = took["no_save"] / took["freshet"]


class Server:
    """Another process that answers a line with times: of seconds that all processes share, when it had what was saved and how
    long taking it took; or, of C++'s side (python_peer), how long a call took there."""

    def __init__(self, *command):
        self.process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"python: {' '.join(command)} did not begin")

    @classmethod
    def of_python(cls, how, *arguments):
        return cls(sys.executable, "-W", "ignore", os.path.abspath(__file__), "--serve", how, *arguments)

    @classmethod
    def of_cpp(cls, case, *arguments):
        """None, and a skip, where the program is not built."""
        program = os.path.join(HERE, "python_peer")
        if os.access(program, os.X_OK):
            return cls(program, *arguments)
        skipped.append((case, "without the program python_peer; scripts/benchmark_python.sh builds it"))
        return None

    def take(self, what=""):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        told = self.process.stdout.readline().split()
        if not told:
            sys.exit(f"python: {' '.join(map(str, self.process.args))} ended too early")
        return [float(one) for one in told]

    def end(self):
        self.process.communicate()


def serve(how, *arguments):
    """The other side of Server."""
    if how == "h5":
        import h5py
    else:
        import torch
        import freshet.torch

        class Holder(torch.nn.Module):
            def __init__(self, megabytes):
                super().__init__()
                for name, array in layers_of(megabytes).items():
                    self.register_parameter(name.replace("/", "_"), torch.nn.Parameter(torch.from_numpy(array)))

            def forward(self):
                pass
        module = Holder(int(arguments[-1]))
    if how == "torch_attach":
        subscriber = freshet.Subscriber("benchmark")
        served = freshet.torch.attach(module, subscriber)
    print("ready", flush=True)
    for line in sys.stdin:
        what = line.strip()
        begin = time.monotonic()
        if how == "torch_attach":
            subscriber.wait_for(int(what))
            begin = time.monotonic()
            served.refresh()
        elif how == "torch_load":
            module.load_state_dict(torch.load(what, mmap=True))
        else:
            with h5py.File(what, "r") as file:
                for name in file:
                    file[name][()]
        end = time.monotonic()
        print(end, end - begin, flush=True)


def update(folder):
    """From the trainer's call until a server in another process has the new weights."""
    case = f"update_{options.megabytes}MB"
    if not needs(case, "torch", "h5py"):
        return
    import h5py
    import torch
    arrays = {name.replace("/", "_"): array for name, array in layers_of(options.megabytes).items()}
    publisher = freshet.Publisher("benchmark")
    bound = publisher.bind(arrays)
    attached, loading, h5 = (Server.of_python(how, str(options.megabytes)) for how in ("torch_attach", "torch_load", "h5"))
    swap, load = [], []

    def ours():
        change(arrays)
        begin = time.monotonic()
        version = bound.publish(changed="all").version
        end, took = attached.take(version)
        swap.append(1e3 * took)
        return 1e3 * (end - begin)

    def torch_shm():
        begin = time.monotonic()
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, f"{folder}/t.pt")
        end, took = loading.take(f"{folder}/t.pt")
        load.append(1e3 * took)
        return 1e3 * (end - begin)

    disk = tempfile.mkdtemp(prefix="freshet-benchmark-", dir=os.environ.get("TMPDIR", "/var/tmp"))

    def h5_disk():
        begin = time.monotonic()
        with h5py.File(f"{disk}/w.h5", "w") as file:
            for name, array in arrays.items():
                file.create_dataset(name, data=array)
        return 1e3 * (h5.take(f"{disk}/w.h5")[0] - begin)

    took = in_turns(case, {"freshet": ours, "memcpy": copier(arrays), "torch_shm": torch_shm, "h5_disk": h5_disk})
    swapped, loaded = row(case, "attach_swap", "ms", swap[1:]), row(case, "load_state_dict_mmap", "ms", load[1:])
    for server in (attached, loading, h5):
        server.end()
    publisher.close()
    shutil.rmtree(disk)
    ratios["update_vs_memcpy"] = took["memcpy"] / took["freshet"]
    ratios["update_vs_torch_shm"] = took["torch_shm"] / took["freshet"]
    ratios["update_vs_h5_disk"] = took["h5_disk"] / took["freshet"]
    ratios["h5_disk_in_memcpys"] = took["h5_disk"] / took["memcpy"]
    ratios["attach_swap_vs_load_state_dict"] = loaded / swapped


def many_tensors(_folder):
    """publish() of many small tensors that were bound, here and in C++."""
    peer = Server.of_cpp("10000_tensors", "publish", "10000", "1000")
    if peer is None:
        return
    arrays = {f"t{i}": np.zeros(1000, np.float32) for i in range(10_000)}
    with freshet.Publisher("many") as publisher:
        bound = publisher.bind(arrays)

        def ours():
            change(arrays)
            begin = time.perf_counter()
            receipt = bound.publish()
            took = 1e3 * (time.perf_counter() - begin)
            publisher.wait_committed(receipt.version)  # What follows behind the loop is over before the other side's turn.
            return took
        took = in_turns("10000_tensors", {"cpp": lambda: peer.take()[0], "python": ours})
    peer.end()
    ratios["publish_many_cpp_vs_python"] = took["cpp"] / took["python"]


def snapshot(_folder):
    """snapshot() and its end, here and in C++; and with one array of it."""
    calls = 2000
    with freshet.Publisher("one") as publisher, freshet.Subscriber("one") as subscriber:
        publisher.publish({"w": np.zeros(1000, np.float32)})
        subscriber.wait_for(timeout=60)
        peer = Server.of_cpp("snapshot", "snapshot", "one", str(calls))
        if peer is None:
            return

        def alone():
            for _ in range(calls):
                with subscriber.snapshot():
                    pass

        def and_array():
            for _ in range(calls):
                with subscriber.snapshot() as one:
                    one["w"]
        took = in_turns("snapshot", {"cpp": lambda: peer.take()[0], "python": lambda: 1e6 * ms_of(alone) / calls,
                                     "python_and_array": lambda: 1e6 * ms_of(and_array) / calls}, "ns")
        peer.end()
    ratios["snapshot_cpp_vs_python"] = took["cpp"] / took["python"]


def checkpoints(folder):
    """Bytes of a PyTorch checkpoint of which a tenth changed."""
    if not needs("dcp", "torch"):
        return
    import torch
    import torch.distributed.checkpoint as dcp
    import freshet.torch
    state = {f"layer{i}": torch.randn(512, 1024) for i in range(50)}
    with freshet.Repository(f"{folder}/runs") as repository:
        sizes = []
        for save in range(2):
            for i in range(0, 50, 10 if save else 51):
                state[f"layer{i}"] += 1
            before = repository.stat()["live_bytes"]
            dcp.save(state, storage_writer=freshet.torch.StorageWriter(repository, "net"), no_dist=True)
            sizes.append((repository.stat()["live_bytes"] - before) / 1e6)
    row("dcp", "full", "MB", sizes[:1])
    row("dcp", "a_tenth_changed", "MB", sizes[1:])
    ratios["dcp_full_vs_tenth_changed"] = sizes[0] / sizes[1]


def search(folder):
    """A search whose candidates train for five seconds and more: what of its time is training."""
    if not needs("deephyper", "torch", "deephyper"):
        return
    import torch
    from deephyper.evaluator import Evaluator
    from deephyper.hpo import HpProblem, RegularizedEvolution
    import freshet.deephyper
    problem = HpProblem()
    for i in range(4):
        problem.add_hyperparameter([256, 512, 1024], f"width{i}")
    x, y = torch.randn(256, 64), torch.randint(0, 256, (256,))
    training = []

    def run(job):
        widths = [64, *(job.parameters[f"width{i}"] for i in range(4))]
        model = torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in zip(widths, widths[1:])))
        with freshet.deephyper.evaluate(job, model, repository) as e:
            begin = time.perf_counter()
            trainable = [one for one in model.parameters() if one.requires_grad]  # The others came from the ancestor.
            while time.perf_counter() - begin < 5:
                loss = torch.nn.functional.cross_entropy(model(x), y)
                slopes = torch.autograd.grad(loss, trainable) if trainable else ()
                for one, slope in zip(trainable, slopes):  # torch.optim brings a compiler, which JAX' would not bear.
                    one.data -= 0.01 * slope
            e.objective = -loss.item()
            training.append(time.perf_counter() - begin)
        return e.result

    with freshet.Repository(f"{folder}/search") as repository:
        one = RegularizedEvolution(problem, random_state=1, log_dir=f"{folder}/log", population_size=8, sample_size=3)
        one = freshet.deephyper.retire_on_eviction(one, repository)
        evaluator = Evaluator.create(run, method="thread")
        begin = time.perf_counter()
        results = one.search(evaluator, max_evals=5 if options.quick else 24)
        took = time.perf_counter() - begin
    if results["m:model"].isna().any() or len(training) != len(results):
        sys.exit("python: a candidate of the search was not stored")
    row("deephyper", "transfer", "ms", list(1e3 * results["m:transfer_s"]))
    row("deephyper", "store", "ms", list(1e3 * results["m:store_s"]))
    row("deephyper", "candidate_training", "s", training)
    row("deephyper", "training", "s", [sum(training)])
    row("deephyper", "all", "s", [took])
    ratios["deephyper_training_of_5s"] = sum(training) / took


CASES = {"keras": keras_callback, "keras_fit": keras_fit, "update": update, "many_tensors": many_tensors, "snapshot": snapshot,
         "dcp": checkpoints, "deephyper": search}


def main():
    global options
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    options = arguments.parse_args()
    options.megabytes = 60 if options.quick else 600
    unknown = [case for case in options.cases if case not in CASES]
    if unknown:
        arguments.error(f"no case {unknown[0]}: {', '.join(CASES)}")
    told = machine()
    os.environ["FRESHET_RUN_DIR"] = run_dir = tempfile.mkdtemp(prefix="freshet-run-")
    try:
        for name, case in CASES.items():
            if not options.cases or name in options.cases:
                folder = tempfile.mkdtemp(prefix="freshet-benchmark-", dir=MEMORY)
                try:
                    case(folder)
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    if not options.json:
        print_tables(told, rows, ratios, skipped)
    print(json.dumps({"benchmark": "python", "machine": told, "rows": rows, "ratios": ratios,
                      "skipped": [{"subject": case, "reason": why} for case, why in skipped]}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
