# SPDX-License-Identifier: Apache-2.0
"""How many requests the store of a run answers for 1,000 puts, as the store itself counts them."""
import json
import random
import threading
import time

from ledger import write_tensors

PUTS = 1000
IDLE_S = 30
# (what, tensors, bytes of each, clients at a time)
CASES = (("small tensors, 1 client", 10, 1000, 1), ("small tensors, 16 clients", 10, 1000, 16),
         ("10 tensors of 200 KB, 1 client", 10, 200_000, 1), ("10 tensors of 200 KB, 16 clients", 10, 200_000, 16))


def difference(before, after):
    return {kind: after[kind] - before.get(kind, 0) for kind in sorted(after) if after[kind] != before.get(kind, 0)}


def puts(run, name, tensors, size, clients):
    """Each client is one process, which puts one version after the other."""
    draw = random.Random(run.seed)
    weights = run.file("counted.safetensors")
    write_tensors(weights, {f"t{i}": draw.randbytes(size) for i in range(tensors)})
    problems = []

    def put(number):
        lines = run.file(f"counted-{number}.jsonl")
        with open(lines, "w", encoding="utf-8") as file:
            for _ in range(PUTS // clients):
                print(json.dumps({"model": f"{name}-{number}", "weights": weights}), file=file)
        code, _, errors = run.command(run.client_host, "put", "--batch", lines, "--json")
        if code != 0:
            problems.append(errors)

    threads = [threading.Thread(target=put, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


def count_requests(run):
    """Prints a line of JSON, and a table. The providers' looks at the log are counted apart, while nobody puts."""
    rows = []
    before = run.store.requests()
    time.sleep(IDLE_S)
    idle = difference(before, run.store.requests())
    rows.append(("owner and standby, a second without puts", {kind: count / IDLE_S for kind, count in idle.items()}, None))
    for case, (what, tensors, size, clients) in enumerate(CASES):
        before, began = run.store.requests(), time.monotonic()
        problems = puts(run, f"counted-{case}", tensors, size, clients)
        if problems:
            raise SystemExit(f"many_hosts: {problems[0]}")
        made = PUTS // clients * clients
        seconds = time.monotonic() - began
        counted = difference(before, run.store.requests())
        rows.append((f"{what}: 1,000 puts", {kind: count * PUTS / made for kind, count in counted.items()}, seconds))
    print(json.dumps([{"what": what, "requests": counts, "seconds": seconds} for what, counts, seconds in rows]), flush=True)
    kinds = sorted({kind for _, counts, _ in rows for kind in counts})
    table = [["requests", *kinds, "seconds"], ["---", *["---:" for _ in kinds], "---:"]]
    for what, counts, seconds in rows:
        table.append([what, *(f"{counts.get(kind, 0):.4g}" for kind in kinds), f"{seconds:.1f}" if seconds else ""])
    for row in table:
        run.print_row(row)
