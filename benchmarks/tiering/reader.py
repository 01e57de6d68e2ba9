# SPDX-License-Identifier: Apache-2.0
"""The trainer of benchmarks/tiering in Python: the words and lines are those of reader.h. Files are read with open().read()."""
import os
import random
import sys
import time


def read_share(folder, names, order, first, step, work_s, out):
    total = 0
    waited = 0.0
    for position in range(first, len(order), step):
        begin = time.monotonic()
        with open(os.path.join(folder, names[order[position]]), "rb") as file:
            total += len(file.read())
        waited += time.monotonic() - begin
        if work_s:
            time.sleep(work_s)
    os.write(out, f"{total} {waited}\n".encode())


def run_epoch(folder, names, readers, each, work_s, epoch):
    order = list(range(len(names)))
    random.Random(epoch).shuffle(order)
    if readers == 1:
        out = os.memfd_create("answer")
        read_share(folder, names, order, 0, 1, work_s, out)
        row = os.pread(out, 100, 0).split()
        os.close(out)
        return int(row[0]), float(row[1])
    ends = os.pipe()
    children = []
    for reader in range(readers):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                read_share(folder, names, order, 0 if each else reader, 1 if each else readers, work_s, ends[1])
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    os.close(ends[1])
    with os.fdopen(ends[0]) as answers:
        rows = [line.split() for line in answers]
    if any(os.waitpid(child, 0)[1] for child in children):
        return None
    return sum(int(row[0]) for row in rows), sum(float(row[1]) for row in rows)


def main():
    _, _, folder, listed, readers, _, each, work_us = sys.argv
    with open(listed) as file:
        names = file.read().split()
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        begin = time.monotonic()
        got = run_epoch(folder, names, int(readers), each == "1", int(work_us) / 1e6, int(line.split()[1]))
        if got is None:
            sys.exit("failed")
        # No sum: a trainer in Python would take longer for it than for the reads.
        print("read", got[0], 0, time.monotonic() - begin, got[1], flush=True)


main()
