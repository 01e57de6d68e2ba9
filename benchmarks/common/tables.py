# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks in Python share: what machine it was, and the tables."""
import os
import sys


def machine():
    """Of this host, before a run."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        names = [line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")]
    return {"processor": names[0] if names else "unknown", "processors": os.cpu_count(), "kernel": os.uname().release,
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "load_average_before": os.getloadavg()[0],
            "architecture": os.uname().machine, "python": sys.version.split()[0]}


def print_tables(told, rows, ratios, skipped=()):
    """`told` as machine() told it; `skipped`: pairs of a part and the reason."""
    print(f"Machine: {told['processor']}, {told['processors']} processors, {told['memory_bytes'] / 1e9:.0f} GB of memory, "
          f"Linux {told['kernel']}, load average before the run {told['load_average_before']:.1f}.\n")
    print("| case | subject | median | min | max | n | unit |\n| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for one in rows:
        print("| {case} | {subject} | {median:.2f} | {min:.2f} | {max:.2f} | {n} | {unit} |".format(**one))
    print("\n| ratio | value |\n| --- | ---: |")
    for name, value in ratios.items():
        print(f"| {name} | {value:.2f} |")
    for part, why in skipped:
        print(f"\nskipped {part}: {why}")
