#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What servers lose by new weights, beside what a user would do instead.

usage: serving [--quick] [--json] [PART…]
  --quick   fewer requests and smaller models, about a minute
  --json    the last line only

A part is a module beside this program with `rows(quick)`, which returns a list of rows and a dict of ratios. Needs the venv of
scripts/python.sh --frameworks (FRESHET_VENV names another one). A part whose server or package is not there is a skip."""
import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
VENV = os.environ.get("FRESHET_VENV", os.path.join(HERE, "..", "..", "venv"))
if __name__ == "__main__" and importlib.util.find_spec("freshet") is None:
    python = os.path.join(VENV, "bin", "python")
    if not os.path.exists(python):
        sys.exit("serving: no venv with the package; scripts/python.sh --frameworks makes it")
    os.execv(python, [python, "-W", "ignore", os.path.abspath(__file__), *sys.argv[1:]])

# In the tree the parts lie beside this file, in a build folder in a folder of their own.
FOLDERS = (HERE, os.path.join(HERE, "serving.parts"))
PARTS = ("http_server", "onnx_session", "triton_server")


def part_named(name):
    """The part's module; ImportError says what it needs and has not."""
    for folder in FOLDERS:
        path = os.path.join(folder, name + ".py")
        if os.path.exists(path):
            spec = importlib.util.spec_from_file_location(f"serving_{name}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"there is no {name}.py")


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        names = [line.split(": ", 1)[1].strip() for line in file if line.startswith("model name")]
    return {"processor": names[0] if names else "unknown", "processors": os.cpu_count(), "kernel": os.uname().release,
            "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "load_average_before": os.getloadavg()[0],
            "architecture": os.uname().machine, "python": sys.version.split()[0]}


def print_tables(told, rows, ratios, skipped):
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


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    options = arguments.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        arguments.error(f"no part {unknown[0]}: {', '.join(PARTS)}")
    told = machine()
    rows, ratios, skipped = [], {}, []
    os.environ["FRESHET_RUN_DIR"] = run_dir = tempfile.mkdtemp(prefix="freshet-run-")
    try:
        for part in options.parts or PARTS:
            try:
                more, more_ratios = part_named(part).rows(options.quick)
            except ImportError as error:
                skipped.append((part, f"{error}; scripts/python.sh --frameworks brings what parts need"))
                continue
            rows += more
            ratios.update(more_ratios)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    if not options.json:
        print_tables(told, rows, ratios, skipped)
    print(json.dumps({"benchmark": "serving", "machine": told, "rows": rows, "ratios": ratios,
                      "skipped": [{"subject": part, "reason": why} for part, why in skipped]}))


if __name__ == "__main__":
    main()
