#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs the build into a new folder, builds the publisher and subscriber of docs/cpp.md, examples/small and package_program.cc
against it the way a user would, and runs them. So neither the package, that page nor the examples can rot. Together these
programs use each part that README and docs advertise; a header that none of them includes must not be installed.

usage: package.py ROOT BUILD CMAKE COMPILER
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

SNIPPET_LINES_MAX = 15
MARK = re.compile(r"<!-- snippet: (\w+) -->\n+```\w+\n(.*?)```", re.DOTALL)


def run(*command, **options):
    """Runs a command to its end; what it said is shown only when it fails."""
    ran = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {ran.returncode}\n{ran.stdout}")
    return ran.stdout


def snippets_of(page):
    with open(page, encoding="utf-8") as file:
        found = dict(MARK.findall(file.read()))
    for name in ("publisher", "subscriber", "package"):
        if name not in found:
            sys.exit(f"{page} has no block after <!-- snippet: {name} -->")
        lines = [line for line in found[name].split("\n") if line.strip()]
        if len(lines) > SNIPPET_LINES_MAX:
            sys.exit(f"{page}: {name} takes {len(lines)} lines, {SNIPPET_LINES_MAX} were promised")
    return found


def write_project(folder, snippets, headers, program):
    def write(name, text):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    write("publisher.cc", snippets["publisher"])
    write("subscriber.cc", snippets["subscriber"])
    write("headers.cc", "".join(f'#include "{header}"\n' for header in headers))
    shutil.copy(program, folder)
    build = ["cmake_minimum_required(VERSION 3.25)", "project(reader LANGUAGES CXX)"]
    for program in ("publisher", "subscriber", "package_program"):
        build += [f"add_executable({program} {program}.cc)", snippets["package"].replace("my_trainer", program)]
    build += ["add_library(headers OBJECT headers.cc)", "target_link_libraries(headers freshet::freshet)", ""]
    write("CMakeLists.txt", "\n".join(build))


def installed_headers(prefix):
    include = os.path.join(prefix, "include", "freshet")
    return sorted(os.path.relpath(os.path.join(folder, name), include)
                  for folder, _, names in os.walk(include) for name in names if name.endswith(".h"))


def included(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE)


def check_headers(prefix, headers, programs):
    """What travels on a wire is nobody's business outside, and a header that no program needs is a door to nowhere."""
    wire = [header for header in headers if re.search(r"/(protocol|wire)/|_generated|/messages|wire\.h$", header)]
    if wire:
        sys.exit(f"headers of the wire are installed: {' '.join(wire)}")
    waiting = [header for program in programs for header in included(program)]
    used = set()
    while waiting:
        header = waiting.pop()
        if header in used:
            continue
        used.add(header)
        path = os.path.join(prefix, "include", "freshet", header)
        if not os.path.exists(path):
            sys.exit(f"{header} is not installed, and a program or an installed header includes it")
        waiting += included(path)
    if set(headers) - used:
        sys.exit(f"headers are installed that no program includes: {' '.join(sorted(set(headers) - used))}")


def run_against_each_other(folder, directory):
    environment = dict(os.environ, FRESHET_RUN_DIR=directory, XDG_STATE_HOME=directory)
    with subprocess.Popen([os.path.join(folder, "publisher")], env=environment, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as publisher:
        try:
            served = run(os.path.join(folder, "subscriber"), env=environment, timeout=120)
            published, _ = publisher.communicate("\n", timeout=120)
        finally:
            publisher.kill()
    print(f"the publisher said: {published!r}; the subscriber said: {served!r}")
    if publisher.returncode != 0 or published:
        sys.exit(f"the publisher's exit code is {publisher.returncode}; wanted 0 and no complaint")
    said = re.fullmatch(r"serving version (\d+), first weight ([\d.]+)\n", served)
    # The page's loop adds 0.01 to every weight and publishes, so version V holds V hundredths.
    if not said or abs(float(said[2]) - 0.01 * int(said[1])) > 1e-3:
        sys.exit("the subscriber did not serve what the publisher published")


def run_package_program(folder, place):
    """Looks after the board of its tier, too: shared memory outlives the program."""
    boards = f"/dev/shm/freshet-tier-{os.geteuid()}"
    said = run(os.path.join(folder, "package_program"), place, timeout=300)
    if said != "all parts answered\n":
        sys.exit(f"package_program said {said!r}")
    with open(os.path.join(place, "tiers.toml"), "rb") as file:
        name = 0xcbf29ce484222325
        for byte in file.read():
            name = (name ^ byte) * 0x100000001b3 % 2**64
    for board in glob.glob(os.path.join(boards, f"{name:016x}*")):
        os.remove(board)


def check_file_blocks(root):
    """A page's block after <!-- file: PATH --> is that file, without its first line (the licence)."""
    blocks = 0
    for page in glob.glob(os.path.join(root, "docs", "*.md")):
        with open(page, encoding="utf-8") as file:
            for name, block in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", file.read(), re.DOTALL):
                with open(os.path.join(root, name), encoding="utf-8") as source:
                    if source.read().split("\n", 1)[1] != block:
                        sys.exit(f"{page} shows {name}, and the file is another")
                blocks += 1
    if blocks == 0:
        sys.exit("no page of docs/ shows a file")


def run_training_loop(program, store, environment):
    """The loop of docs/training-loop.md: killed in the middle, it goes on from its newest stored version."""
    with subprocess.Popen([program, store, "1000000"], env=environment, text=True, stdout=subprocess.PIPE) as first:
        begun = first.stdout.readline()
        published = [first.stdout.readline() for _ in range(3)]
        first.kill()
    if begun != "begins after step 0\n":
        sys.exit(f"scheduled_training said {begun!r}")
    numbers = [re.fullmatch(r"version (\d+) at step (\d+)\n", line) for line in published]
    if not all(numbers):
        sys.exit(f"scheduled_training said {published!r}")
    # It may have gone far on before it was killed: a run of no step tells what it stored last.
    idle = re.match(r"begins after step (\d+)\n", run(program, store, "0", env=environment, timeout=120))
    if not idle:
        sys.exit("scheduled_training did not say where it begins")
    last = int(idle[1]) + 200
    again = run(program, store, str(last), env=environment, timeout=120)
    begun = re.match(r"begins after step (\d+)\n", again)
    versions = re.findall(r"^version (\d+) at step (\d+)$", again, re.MULTILINE)
    said = re.search(r"^(\d+) versions stored, the newest is (\d+)$", again, re.MULTILINE)
    if not begun or not versions or not said:
        sys.exit(f"scheduled_training said {again!r}")
    # The last ones may have been captured and not announced yet, so that nobody knew of them.
    if int(versions[0][0]) <= int(numbers[0][1]):
        sys.exit(f"scheduled_training gave a number twice: {published!r}, then {again!r}")
    if versions[-1][1] != str(last) or said[2] != versions[-1][0]:
        sys.exit(f"scheduled_training did not store its last step: {again!r}")
    done = run(program, store, str(last), env=environment, timeout=120)
    if not done.startswith(f"begins after step {last}\n"):
        sys.exit(f"scheduled_training did not go on from its last step: {done!r}")


def run_examples(folder, place, directory):
    environment = dict(os.environ, FRESHET_RUN_DIR=directory, XDG_STATE_HOME=directory)
    with subprocess.Popen([os.path.join(folder, "publisher"), "5"], env=environment, text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as publisher:
        try:
            served = run(os.path.join(folder, "subscriber"), "5", env=environment, timeout=120)
            published, _ = publisher.communicate("\n", timeout=120)
        finally:
            publisher.kill()
    if publisher.returncode != 0 or published:
        sys.exit(f"examples/small/publisher: exit code {publisher.returncode}, said {published!r}")
    if not re.search(r"^version \d+, step 5, first weight 0\.05\d*$", served, re.MULTILINE):
        sys.exit(f"examples/small/subscriber did not serve step 5: {served!r}")
    for store in (os.path.join(place, "store"), "memory:"):
        stored = run(os.path.join(folder, "repository"), store, env=environment, timeout=120)
        if stored != ("net@2: 64 bytes of its own, 4096 inherited\nnet@1: 4160 bytes of its own, 0 inherited\n"
                      "the first version's head begins with 2\n"):
            sys.exit(f"examples/small/repository {store} said {stored!r}")
    run_training_loop(os.path.join(folder, "scheduled_training"), os.path.join(place, "runs"), environment)
    print(f"the examples: {served.count('version')} versions served")


def main(root, build, cmake, compiler):
    snippets = snippets_of(os.path.join(root, "docs", "cpp.md"))
    check_file_blocks(root)
    with tempfile.TemporaryDirectory(prefix="freshet-package-") as folder:
        prefix, project, out, directory = (os.path.join(folder, name) for name in ("prefix", "project", "out", "run"))
        os.makedirs(project)
        os.makedirs(directory, mode=0o700)
        run(cmake, "--install", build, "--prefix", prefix, "--component", "development")
        headers = installed_headers(prefix)
        write_project(project, snippets, headers, os.path.join(os.path.dirname(os.path.abspath(__file__)), "package_program.cc"))
        small = os.path.join(root, "examples", "small")
        programs = [os.path.join(of, name) for of in (project, small) for name in os.listdir(of)
                    if name.endswith(".cc") and name != "headers.cc"]
        check_headers(prefix, headers, programs)
        run(cmake, "-S", project, "-B", out, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler}")
        run(cmake, "--build", out, "--parallel", "2")
        run_against_each_other(out, directory)
        place = os.path.join(folder, "place")
        os.makedirs(place)
        run_package_program(out, place)
        examples = os.path.join(folder, "examples")
        run(cmake, "-S", small, "-B", examples, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={compiler}")
        run(cmake, "--build", examples, "--parallel", "2")
        run_examples(examples, folder, directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
