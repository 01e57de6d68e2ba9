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

sys.path[:0] = [os.path.join(HERE, "common"), os.path.join(HERE, "..", "common")]  # In a build folder, and in the tree.
from tables import machine, print_tables

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
