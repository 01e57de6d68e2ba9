#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares schedules in real live runs: separate processes, a real model, measured losses.

usage: live.py LIVE_RUN [--seconds S] [--repeat N] [--json]
Each round runs `online` first, then `every:N` with N such that it publishes about as often, then `epoch`, each from the
same beginning with the same requests. Prints a table of medians, with the smallest and the largest.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile

# One text, so that an epoch is some thousand steps and a run has a few.
TEXT = "/usr/share/common-licenses/GPL-3"
CASES = [("8 MB, a step in 5 ms", ["--pace", "200"]), ("600 MB, as fast as it goes", ["--scale", "600MB", "--pace", "0"])]


def live_run(program, seconds, seed, schedule, extra):
    folder = tempfile.mkdtemp(prefix="freshet-live-")
    command = [program, "--json", "--seconds", str(seconds), "--seed", str(seed), "--text", TEXT, "--freeze", "0",
               "--report", folder + "/report", "--schedule", schedule, *extra]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 10 + 300)
        if done.returncode != 0:
            sys.exit(f"live: {' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def one_round(program, seconds, seed, extra):
    """(schedule, summary) of each run."""
    online = live_run(program, seconds, seed, "online", extra)
    # The first version is the model before any step.
    interval = max(1, round(online["steps"] / max(1, online["versions_published"] - 1)))
    yield "online", online
    yield "every:N, as often", live_run(program, seconds, seed, f"every:{interval}", extra)
    yield "epoch", live_run(program, seconds, seed, "epoch", extra)


def figures(summary):
    answered = summary["requests"] - summary["failed_requests"]
    return {
        "loss a request": summary["cumulative_inference_loss"] / max(1, answered),
        "requests": answered,
        "cumulative loss": summary["cumulative_inference_loss"],
        "publishes": summary["versions_published"],
        "steps": summary["steps"],
        "training blocked, ms": summary["blocked_ms_total"],
    }


def spread(values):
    middle = statistics.median(values)
    digits = 4 if middle < 10 and middle != round(middle) else 0
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description="Compares schedules in real live runs")
    parser.add_argument("program")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="each run's summary as a line of JSON, and no table")
    options = parser.parse_args()
    names = ["cumulative loss", "loss a request", "requests", "publishes", "steps", "training blocked, ms"]
    if not options.json:
        print(f"{options.repeat} rounds of {options.seconds:g} s.\n")
        print("| model | schedule | " + " | ".join(names) + " |")
        print("| --- | --- |" + " ---: |" * len(names))
    for case, extra in CASES:
        found = {}
        for seed in range(1, options.repeat + 1):
            for schedule, summary in one_round(options.program, options.seconds, seed, extra):
                if options.json:
                    print(json.dumps({"case": case, "schedule": schedule, "seed": seed, "summary": summary}), flush=True)
                found.setdefault(schedule, []).append(figures(summary))
        for schedule, runs in found.items() if not options.json else ():
            print(f"| {case} | {schedule} | " + " | ".join(spread([r[name] for r in runs]) for name in names) + " |")


if __name__ == "__main__":
    main()
