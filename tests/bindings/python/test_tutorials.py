# SPDX-License-Identifier: Apache-2.0
"""The tutorials of docs/tutorials: their programs are written as files, and their commands run in order in one shell, as a reader
does it. What they print is what the pages say."""
import contextlib
import os
import re
import signal
import subprocess

import numpy as np
import pytest

from conftest import PATIENCE, free_port
from example_programs import needs
from pages import TOOLS, blocks_of, files_of


def followed(page, folder):
    """All of a page: what each of its shell blocks printed, in order."""
    if not os.path.exists(os.path.join(TOOLS, "freshet")):
        pytest.skip("without the command freshet beside Python")
    port = str(free_port())
    page = f"../tutorials/{page}"
    files_of(page, folder)
    for name in os.listdir(folder):
        with open(f"{folder}/{name}", encoding="utf-8") as file:
            text = file.read()
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text.replace("7400", port))
    blocks = [text for language, _, text in blocks_of(page) if language == "sh"]
    mark = "=== the next block ==="
    # What a job that was killed ends with is no failure.
    script = ("set -u; trap 'case $BASH_COMMAND in wait*) ;; *) echo \"failed: $BASH_COMMAND\"; exit 1 ;; esac' ERR\n" +
              f"echo '{mark}'\n".join(blocks))
    shell = subprocess.Popen(["bash", "-c", script], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             start_new_session=True, env=dict(os.environ, PATH=TOOLS + os.pathsep + os.environ["PATH"],
                                                              OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"))
    try:
        told, complaints = shell.communicate(timeout=5 * PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # What it left running.
        shell.wait()
    assert shell.returncode == 0, told + complaints
    return told.split(mark + "\n")


def log(folder, name):
    with open(f"{folder}/{name}", encoding="utf-8") as file:
        return file.read()


def test_a_run_is_served_and_archived(folder):
    needs("torch")
    first, listed, second, best, last = followed("serve-and-archive.md", folder)
    told = r"version (\d+): step (\d+), loss \S+"
    assert [tuple(map(int, row)) for row in re.findall(told, first)] == [(number, 50 * number) for number in range(1, 7)]
    begin = re.match(r"goes on at step (\d+), of version product@(\d+)\n", second)
    assert begin and int(begin[1]) == 50 * int(begin[2]), second
    rows = [tuple(map(int, row)) for row in re.findall(told, second)]
    assert [step for _, step in rows] == list(range(int(begin[1]) + 50, 601, 50)), "it goes on where it was"
    stored = re.findall(r"^product@(\d+) +(\S+)", last, re.MULTILINE)
    assert stored[-1][0] == str(rows[-1][0]), "the last version is stored"
    assert (stored[0][1], stored[-1][1]) == ("-", f"product@{stored[-2][0]}"), "one lineage"
    assert "product@1 " in listed
    number, answer = re.fullmatch(r"product@(\d+) has the smallest loss: 0.6 \* 0.5 = (\S+)\n", best).groups()
    assert number in dict(stored) and abs(float(answer) - 0.3) < 0.1
    served = [int(number) for number in re.findall(r"^version (\d+): 0.6 \* 0.5 = ", log(folder, "served.log"), re.MULTILINE)]
    assert served and served == sorted(served) and served[-1] <= rows[-1][0]


def test_a_search_with_deephyper(folder):
    needs("torch", "deephyper")
    searched, listed, best = followed("search.md", folder)
    candidates, began = map(int, re.match(r"(\d+) candidates, (\d+) began with layers of another one\n", searched).groups())
    assert candidates == 18 and began > 0
    objective, version = searched.splitlines()[-1].split()[:2]
    best_of_all = max(float(row) for row in re.findall(r"^search@\d+ .*B +([\d.]+) +0 +- ", listed, re.MULTILINE))
    assert float(objective) == pytest.approx(best_of_all, abs=1e-4) and re.search(rf"^{version} ", listed, re.MULTILINE)
    assert f"the best one has an accuracy of {float(objective):.3f}:\nSequential(" in best


def test_four_ranks_survive_a_lost_host(folder):
    lost, left, on = followed("lost-host.md", folder)
    assert "freshet._errors.Unavailable: rank 2 " in lost, lost
    assert re.search(r"^net@\d+ +\d+ +4 +incomplete +rebuildable +incomplete +yes$", left, re.MULTILINE), left
    begun = set(re.findall(r"^rank \d begins at step (\d+)$", on, re.MULTILINE))
    assert len(begun) == 1, on
    begin = int(begun.pop())
    assert begin > 10 and begin % 10 == 1, "after a checkpoint"
    end = begin + 99
    w = sum((np.sin(np.float32(step)) for step in range(1, end + 1)), np.float32(0))
    assert re.findall(rf"^rank (\d) ends at step {end}: w\[0\] = (\S+), {end} steps seen$", on, re.MULTILINE) == \
        [(str(rank), f"{w:.6f}") for rank in range(4)]
