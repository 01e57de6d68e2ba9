# SPDX-License-Identifier: Apache-2.0
"""What `freshet triton` does around the server: folders that it makes and sweeps, starts that have an end. The server's program is a
small one of these tests, which answers as far as it is asked, and dies."""
import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, free_port
from freshet.triton import _server
from freshet.triton.__main__ import main
from freshet.triton._config import Config, settings_of
from freshet.triton.model import Model

DYING_SERVER = """#!{python}
import http.server, os, sys, threading
options = dict(word[2:].split("=", 1) for word in sys.argv[1:])
with open({starts!r}, "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = b"[]" if self.path.endswith("index") else b"{{}}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path.endswith("index"):     # The last that is asked before it counts as ready.
            self.wfile.flush()
            os._exit(7)
    do_GET = do_POST = answer
    def log_message(self, *_):
        pass

class Server(http.server.HTTPServer):
    allow_reuse_port = True

Server((options["http-address"], int(options["http-port"])), Handler).serve_forever()
"""


@pytest.fixture
def dying(folder, monkeypatch):
    """A server that is ready, and dies. Gives the file with a line for each of its starts."""
    program, starts = os.path.join(folder, "server"), os.path.join(folder, "starts")
    with open(program, "w", encoding="utf-8") as file:
        file.write(DYING_SERVER.format(python=sys.executable, starts=starts))
    os.chmod(program, stat.S_IRWXU)
    backend = os.path.join(folder, "backend")
    os.mkdir(backend)
    with open(os.path.join(folder, "stub"), "w", encoding="utf-8"):
        pass
    monkeypatch.setattr(_server, "find_wheel", lambda: _server.Wheel(program, backend, os.path.join(folder, "stub"), []))
    monkeypatch.setattr(tempfile, "tempdir", folder)
    return starts


def test_a_server_that_dies_again_and_again_is_given_up(dying, folder, capfd):
    assert main(["serve", folder, "--http-port", "0", "--grpc-port", "0", "--json"]) == 1
    with open(dying, encoding="utf-8") as file:
        starts = file.read().splitlines()
    assert len(starts) == 6, "once, and five times again"
    ports = {word for line in starts for word in line.split() if word.startswith(("--http-port", "--grpc-port"))}
    assert len(ports) == 2, "with the same ports"
    assert ["--exit-on-error=false" in line for line in starts] == [False] + [True] * 5
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 1 and json.loads(out)["models"] == []
    assert err.count("the Triton server ended by itself, with code 7; it is started again") == 5
    assert "ended by itself, with code 7, 6 times, and never ran for 60 s in between" in err
    assert not [name for name in os.listdir(folder) if name.startswith("freshet-triton-serve-")]


def test_what_killed_servers_left_is_swept_and_nobody_elses(folder, program, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", folder)

    def made(name, *more):
        os.makedirs(os.path.join(folder, name, *more))
        return os.path.join(folder, name)

    left = made("freshet-triton-serve-abcd_123", "python")
    stays = [made("freshet-triton-serve-abc"), made("freshet-triton-serve-abcd_1234"), made("freshet-triton-other-abcd_123")]
    os.symlink(stays[2], os.path.join(folder, "freshet-triton-serve-symlinkd"))
    with open(os.path.join(folder, "freshet-triton-serve-somefile"), "w", encoding="utf-8"):
        pass
    stays += [os.path.join(folder, "freshet-triton-serve-symlinkd"), os.path.join(folder, "freshet-triton-serve-somefile")]
    if os.getuid() == 0:
        stays.append(made("freshet-triton-serve-stranger"))
        os.chown(stays[-1], 4242, 4242)
    running = program("""
        import contextlib, sys, tempfile
        from freshet.triton import _server
        tempfile.tempdir = sys.argv[1]
        with contextlib.ExitStack() as clean:
            print(_server._own_folder(clean), flush=True)
            sys.stdin.readline()
    """, folder)
    of_another = running.line()
    assert not os.path.exists(left)
    with contextlib.ExitStack() as clean:
        own = _server._own_folder(clean)
        assert own != of_another and os.path.isdir(of_another), "its process lives"
        running.process.kill()
        running.process.wait()
        with contextlib.ExitStack() as third:
            _server._own_folder(third)
            assert not os.path.exists(of_another) and os.path.isdir(own)
    assert not os.path.exists(own)
    assert sorted(os.listdir(folder)) == sorted(os.path.basename(path) for path in stays)


def test_names_of_files_count_from_the_models_folder(folder, monkeypatch, capsys):
    """Also those of `triton new`, wherever it is called."""
    command = shutil.which("freshet", path=os.path.dirname(sys.executable))
    if command is None:
        pytest.skip("without the command freshet beside this Python")
    for name in ("trainer", "server"):
        subprocess.run([command, "keygen", os.path.join(folder, name)], check=True, capture_output=True)
    with open(os.path.join(folder, "server.pub"), encoding="utf-8") as file:
        key = file.read()
    with open(os.path.join(folder, "allow"), "w", encoding="utf-8") as file:
        file.write(key)
    at = f"tcp://127.0.0.1:{free_port()}"
    monkeypatch.chdir("/")
    words = ["--at", at, "--keys", "../../server", "--server-key", "../../trainer.pub", "--journal", "../../answers.jsonl"]
    with freshet.Publisher("m", listen=at, keys=os.path.join(folder, "trainer"), allow=os.path.join(folder, "allow")) as publisher:
        publisher.publish({"w": np.ones((4, 2), np.float32)}, sync=True)
        assert main(["new", os.path.join(folder, "models", "m"), "--timeout", str(PATIENCE), *words]) == 0
        assert main(["new", os.path.join(folder, "models", "n"), "--model", "m", "--timeout", "0", "--at", at, "--keys", "server",
                     "--server-key", "trainer.pub"]) != 0, "they are not in the model's folder"
        assert os.path.join(folder, "models", "n", "server") in capsys.readouterr().err
    with open(os.path.join(folder, "models", "m", "1", "model.py"), encoding="utf-8") as file:
        assert 'inputs["x"] @ weights["w"]' in file.read(), "the published version was looked at"
    with open(os.path.join(folder, "models", "m", "config.pbtxt"), encoding="utf-8") as file:
        text = file.read()
    for name, value in (("keys", "../../server"), ("server_key", "../../trainer.pub"), ("journal", "../../answers.jsonl")):
        assert f'key: "freshet.{name}" value {{ string_value: "{value}" }}' in text
    parameters = {f"freshet.{name}": {"string_value": value} for name, value in (("keys", "../../server"), ("journal", "answers.jsonl"))}
    settings = settings_of(Model(), Config({"parameters": parameters}), os.path.join(folder, "models", "m"))
    assert os.path.normpath(settings["keys"]) == os.path.join(folder, "server")
    assert settings["journal"] == os.path.join(folder, "models", "m", "answers.jsonl") and settings["server_key"] is None
