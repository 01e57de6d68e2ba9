# SPDX-License-Identifier: Apache-2.0
"""The programs and commands of docs/python's pages about servers, in a folder of their own as a reader starts them."""
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import PATIENCE, eventually, free_port
from pages import TOOLS, files_of, in_shell

pytestmark = pytest.mark.skipif(not os.path.exists(TOOLS + "/freshet"), reason="without the command freshet beside Python")


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"without {module}")


class Running:
    """A page's program; its stderr is kept."""

    def __init__(self, folder, *words):
        self.log = f"{folder}/{os.path.basename(words[-1])}.log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, *words], cwd=folder, stdout=log, stderr=log)

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answers(line, folder, address, running):
    """What the line prints when the server is there and has a version."""
    said = []

    def came():
        assert all(one.process.poll() is None for one in running), [one.said() for one in running]
        try:
            said.append(in_shell(line, folder, address))
        except AssertionError as error:
            said.append(str(error))
            return False
        return True

    assert eventually(came), (said[-1], [one.said() for one in running])
    return said[-1]


@pytest.mark.parametrize("page, model, modules", [("servers.md", "digits", ("uvicorn",)),
                                                  ("onnx.md", "digits-onnx", ("uvicorn", "fastapi", "torch", "onnx", "onnxruntime"))])
def test_an_answer_is_explained(folder, page, model, modules):
    needs(*modules)
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    commands = files_of(page, folder)
    assert {"python trainer.py", "uvicorn server:app --port 8000"} <= set(commands)
    [ask] = [line for line in commands if line.startswith("curl") and "mine-1" in line]
    [why] = [line for line in commands if line.startswith("freshet why")]
    with Running(folder, "trainer.py") as trainer:
        assert eventually(lambda: trainer.process.poll() is not None or page != "onnx.md" or os.path.exists(folder + "/digits.onnx"))
        with Running(folder, "-m", "uvicorn", "--port", str(port), "server:app") as server:
            told = answers(ask, folder, address, [trainer, server])
            version = int(re.search(r"x-weight-version: (\d+)", told)[1])
            assert re.search(r'\{"digits": ?\[\d\]\}', told), told
            again = int(re.search(r"x-weight-version: (\d+)", answers(ask, folder, address, [trainer, server]))[1])
            assert again >= version >= 1
            for line in commands:
                if "/freshet/ready" in line:
                    assert json.loads(in_shell(line, folder, address))["model"] == model
    told = in_shell(why, folder, address)
    assert f"request mine-1: {model}@{again} gave the answer" in told
    assert re.search(rf"^{model}@\d+ ", told, re.MULTILINE), told  # Its lineage.


def test_the_page_about_shadows(folder):
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    commands = files_of("shadow.md", folder, port)
    loop, state = [line for line in commands if "curl" in line]
    [lineage] = [line for line in commands if line.startswith("freshet repo")]
    with open(f"{folder}/trainer.py", encoding="utf-8") as file:
        text = file.read()
    with open(f"{folder}/trainer.py", "w", encoding="utf-8") as file:
        file.write(text.replace("time.sleep(5)", "input()"))  # The next step is this test's to begin.
    fast = loop.replace("sleep 0.5", "true").replace("seq 40", "seq 12")
    assert fast != loop and "python server.py" in commands and "python trainer.py" in commands
    with subprocess.Popen([sys.executable, "trainer.py"], cwd=folder, stdin=subprocess.PIPE, text=True) as trainer, \
            Running(folder, "server.py") as server:
        try:
            ask = f"curl -sf {address}/ -d \"[[$(seq -s, 64)]]\""
            assert json.loads(answers(ask, folder, address, [server]))["version"] == 1

            def until(version, what):
                trainer.stdin.write("\n")
                trainer.stdin.flush()

                def decided():
                    in_shell(fast, folder, address)
                    return json.loads(in_shell(state, folder, address))["decisions"].get(str(version)) == what

                assert eventually(decided), (in_shell(state, folder, address), server.said())

            for version in range(2, 10):
                until(version, "committed")
            until(10, "dropped")  # The bad one.
            assert json.loads(in_shell(ask, folder, address))["version"] == 9
            until(11, "committed")
            assert json.loads(in_shell(ask, folder, address))["version"] == 11
        finally:
            trainer.kill()
    assert "digits@10" in in_shell(lineage, folder, address)


def test_the_page_for_vllm_compiles(folder):
    """Its programs need a GPU."""
    commands = files_of("vllm.md", folder)
    with open(f"{folder}/trainer.py", encoding="utf-8") as file:
        compile(file.read(), "trainer.py", "exec")
    assert "python trainer.py                                              # another terminal, when the server is ready" in commands
