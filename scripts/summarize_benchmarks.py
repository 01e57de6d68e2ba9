#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills the tables between `<!-- summary -->` lines of docs/benchmarks.md and README.md, and the one between `<!-- python -->` lines of
docs/benchmarks.md, from the tables beside the benchmarks (benchmarks/NAME/README.md). scripts/benchmark_*.sh --docs calls it when it has put new tables there.

usage: summarize_benchmarks.py [--check]
  --check   changes nothing; exit code 1 when a page does not say what the tables say
"""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")

# What is done, the benchmark, then case and subject of ours and of the peer, what the peer is, and whether README has it.
ROWS = [
    ("an update of 600 MB until another process of the host serves it", "update_latency",
     ("600MB_all", "freshet"), ("600MB_all", "memcpy"), "one memcpy of these bytes", True),
    ("the same", "update_latency", ("600MB_all", "freshet"), ("600MB_all", "safetensors_shm"),
     "safetensors through `/dev/shm`", False),
    ("the same", "update_latency", ("600MB_all", "freshet"), ("600MB_all", "redis"), "Redis on a Unix socket", False),
    ("the same", "update_latency", ("600MB_all", "freshet"), ("600MB_all", "ucx_am"), "UCX active messages", False),
    ("the loop stands still, a quarter of 600 MB changed", "update_latency",
     ("600MB_told25", "freshet_blocked"), ("600MB_told25", "memcpy"), "one memcpy of these bytes", False),
    ("512 MiB to another host over TCP", "remote", ("namespaces_ucx", "freshet_fetch"), ("namespaces_ucx", "ucx_perftest"),
     "`ucx_perftest`", False),
    ("the same, encrypted", "remote", ("namespaces_zmq", "freshet_fetch"), ("namespaces_zmq", "zmq_curve"), "ZeroMQ with CURVE", False),
    ("1.6 % of the elements changed, a line of 1 Gb/s and 20 ms", "thin_link", ("delta_1.6", "freshet"),
     ("rsync_whole_file_1.6", "rsync"), "rsync", True),
    ("through 8 relays, one after the other", "fanout", ("chain_of_8_relays", "time_to_fresh"), ("direct_line", "time_to_fresh"),
     "straight from the trainer", False),
    ("back to an earlier version of 512 MiB", "rollback", ("zmq", "rollback"), ("zmq", "memcpy"), "one memcpy of it", False),
    ("from a commit until the callback runs, swap included (50th percentile)", "notify", ("zmq", "freshet_p50"), ("zmq", "raw_p50"), "a bare ZeroMQ message", False),
    ("41 MB in 10,000 tensors", "many_tensors", ("shm", "10000_tensors"), ("shm", "1_tensor"), "the same bytes in one tensor", False),
    ("600 MB stored durably", "repo_put", ("600MB", "freshet"), ("600MB", "rocksdb_blob_files"), "RocksDB's blob files", False),
    ("1 GB read from a repository in memory, every byte proved", "store_load", ("1000MB_100_even", "memory_load"),
     ("1000MB_100_even", "h5py_load"), "h5py from the page cache, nothing proved", False),
    ("a checkpoint of 600 MB: for how long a rank's loop stands still", "checkpoint", ("9_tensors_600MB", "freshet_blocked"),
     ("9_tensors_600MB", "memcpy"), "one memcpy of these bytes", False),
    ("the same", "checkpoint", ("9_tensors_600MB", "freshet_blocked"), ("9_tensors_600MB", "file_synced"),
     "a file, written and synced", False),
    ("the checkpoint is synced", "checkpoint", ("9_tensors_600MB", "freshet_local"), ("9_tensors_600MB", "file_synced"),
     "a file, written and synced", False),
    ("the checkpoint is back, from the disk, every byte proved", "checkpoint", ("9_tensors_600MB", "freshet_restore"),
     ("9_tensors_600MB", "read_cold"), "the file read, nothing proved", False),
    ("the best ancestor among 60,000 models", "match", ("dense_skip_evolved_60k", "freshet_p50"),
     ("dense_skip_evolved_60k", "algorithm1"), "EvoStore's Algorithm 1", True),
    ("the same", "match", ("dense_skip_evolved_60k", "freshet_p50"), ("dense_skip_evolved_60k", "redis_queries_packed"),
     "Redis-Queries, packed", False),
    ("100 generations of ancestors", "provenance", ("lineage_100", "freshet"), ("lineage_100", "sqlite"), "SQLite", False),
    ("a candidate's transfer in a search of 1,000", "nas", ("freshet", "transfer"), ("files", "transfer"),
     "HDF5 files and Redis", False),
    ("three epochs over 4,000 files in a slow folder, four readers, `validate = \"never\"`", "tiering",
     ("4000_small_4_readers", "freshet_never_three_epochs"), ("4000_small_4_readers", "none_three_epochs"), "no tiers", False),
    ("the same", "tiering", ("4000_small_4_readers", "freshet_never_three_epochs"), ("4000_small_4_readers", "rsync_three_epochs"),
     "rsync first", False),
    ("three epochs over 16 record files", "tiering", ("16_records_4_readers", "freshet_open_three_epochs"),
     ("16_records_4_readers", "none_three_epochs"), "no tiers", False),
    ("Python: 600 MB until another process has them in its module", "python", ("update_600MB", "freshet"),
     ("update_600MB", "torch_shm"), "`torch.save` and `torch.load` through `/dev/shm`", True),
    ("bytes kept after a search of 1,000 candidates", "nas", ("freshet", "kept"), ("files", "kept"), "HDF5 files", True),
]

SAVED = "a Keras model of 600 MB is saved: for how long `fit()` stands"
# The Python package: what is done; case and subject of ours and of the peer; what the peer is; and the goal, a ratio, or a part of
# what the peer takes beside a third subject, whose share differs from machine to machine. A row that was not measured yet is left out.
PYTHON_ROWS = [
    (SAVED, ("keras_600MB", "freshet"), ("keras_600MB", "memcpy"), "one memcpy of these bytes", 0.6),
    ("the same", ("keras_600MB", "freshet"), ("keras_600MB", "orbax_async"), "Orbax, asynchronous, which keeps JAX' arrays", 1),
    ("the same, and the next step", ("keras_fit_600MB", "freshet"), ("keras_fit_600MB", "orbax_async"),
     "Orbax, asynchronous: now the step copies", 1),
    ("the same", ("keras_600MB", "freshet"), ("keras_600MB", "dcp_async"), "`dcp.async_save` to `/dev/shm`", 1),
    ("the same", ("keras_600MB", "freshet"), ("keras_600MB", "save_weights"), "`save_weights` to `/dev/shm`",
     (0.6, ("keras_600MB", "memcpy"))),
    ("600 MB until another process has them in its module", ("update_600MB", "freshet"), ("update_600MB", "torch_shm"),
     "`torch.save` and `torch.load` through `/dev/shm`", 2),
    ("the same", ("update_600MB", "freshet"), ("update_600MB", "h5_disk"), "HDF5 on the disk", (0.8, ("update_600MB", "memcpy"))),
    ("the server's part: `attach` swaps them in", ("update_600MB", "attach_swap"), ("update_600MB", "load_state_dict_mmap"),
     "`load_state_dict(torch.load(mmap=True))`", 10),
    ("`publish()` of 10,000 bound tensors", ("10000_tensors", "python"), ("10000_tensors", "cpp"), "C++'s", 0.7),
    ("`snapshot()` and its end", ("snapshot", "python"), ("snapshot", "cpp"), "C++'s", 0.05),
    ("`dcp.save` into a repository, a tenth changed: bytes kept", ("dcp", "a_tenth_changed"), ("dcp", "full"), "a whole one", 8),
    ("a search by DeepHyper, candidates of 5 s", ("deephyper", "all"), ("deephyper", "training"), "its training alone", 0.98),
]


def table_of(name):
    """{(case, subject): (median, min, max, unit)} of one benchmark."""
    rows = {}
    with open(os.path.join(ROOT, "benchmarks", name, "README.md"), encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 7 and re.fullmatch(r"[\d.]+", cells[2]):
                rows[cells[0], cells[1]] = (*map(float, cells[2:5]), cells[6])
    return rows


def short(number):
    if number >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def measured(row):
    median, least, most, unit = row
    return f"{short(median)} {unit}" if least == most else f"{short(median)} {unit} ({short(least)} to {short(most)})"


def summary(for_readme):
    lines = ["| what | Freshet | beside it | takes | ratio |", "| --- | ---: | --- | ---: | ---: |"]
    for what, name, ours, theirs, peer, in_readme in ROWS:
        if for_readme and not in_readme:
            continue
        rows = table_of(name)
        for row in (ours, theirs):
            if row not in rows:
                sys.exit(f"benchmarks/{name}/README.md has no row {' '.join(row)}")
        ours, theirs = rows[ours], rows[theirs]
        link = what if for_readme else f"[{what}](../benchmarks/{name}/README.md)"
        lines.append(f"| {link} | {measured(ours)} | {peer} | {measured(theirs)} | {short(theirs[0] / ours[0])} |")
    return "\n".join(lines)


def goals():
    lines = ["| what | the package | beside it | takes | ratio | goal |", "| --- | ---: | --- | ---: | ---: | ---: |"]
    rows = table_of("python")
    for what, ours, theirs, peer, goal in PYTHON_ROWS:
        third = goal[1] if isinstance(goal, tuple) else ours
        if ours not in rows or theirs not in rows or third not in rows:
            continue
        if isinstance(goal, tuple):
            goal = goal[0] * rows[theirs][0] / rows[third][0]
        told = goal if isinstance(goal, int) else short(goal) if goal >= 1 else f"{goal:g}"
        lines.append(f"| {what} | {measured(rows[ours])} | {peer} | {measured(rows[theirs])} | "
                     f"{short(rows[theirs][0] / rows[ours][0])} | ≥ {told} |")
    return "\n".join(lines)


def filled(text, mark, table, path):
    line = f"<!-- {mark} -->\n"
    parts = text.split(line)
    if len(parts) != 3:
        sys.exit(f"{path}: two lines {line.strip()} are needed")
    return f"{parts[0]}{line}{table}\n{line}{parts[2]}"


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = False
    for page, for_readme in (("docs/benchmarks.md", False), ("README.md", True)):
        path = os.path.join(ROOT, page)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        wanted = filled(text, "summary", summary(for_readme), page)
        if not for_readme:
            wanted = filled(wanted, "python", goals(), page)
        if wanted != text and arguments:
            print(f"{page}: not what the tables say; run scripts/summarize_benchmarks.py", file=sys.stderr)
            stale = True
        elif wanted != text:
            with open(path, "w", encoding="utf-8") as file:
                file.write(wanted)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
