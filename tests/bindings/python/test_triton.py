# SPDX-License-Identifier: Apache-2.0
"""freshet.triton, in the server of the wheel nvidia-pytriton, asked over HTTP and gRPC. One server has all the models."""
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually

if importlib.util.find_spec("pytriton") is None:
    pytest.skip("without nvidia-pytriton, which has the Triton server", allow_module_level=True)
pytest.importorskip("tritonclient.http", reason="without tritonclient[http]", exc_type=ImportError)
pytest.importorskip("tritonclient.grpc", reason="without tritonclient[grpc]", exc_type=ImportError)

from tritonclient.utils import InferenceServerException

from triton_server import WIDTH, Client, Server, Trainer, run, weights_of, write_models

SEED = 20261127
BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])


@pytest.fixture(scope="module")
def place():
    """A folder for all of the module: its host directory, and its models."""
    path = tempfile.mkdtemp(prefix="freshet-triton-test-")
    os.mkdir(os.path.join(path, "run"), 0o700)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def server(place):
    before = os.environ.get("FRESHET_RUN_DIR")
    os.environ["FRESHET_RUN_DIR"] = os.path.join(place, "run")
    try:
        models = os.path.join(place, "models")
        write_models(models)
        started = Server(models)
        yield started
        started.process.terminate()
        started.process.communicate(timeout=PATIENCE)
    finally:
        if before is None:
            del os.environ["FRESHET_RUN_DIR"]
        else:
            os.environ["FRESHET_RUN_DIR"] = before


@pytest.fixture(autouse=True)
def same_directory(run_dir, place, monkeypatch):
    """The server and each test's publishers meet in the server's host directory; each test has models of its own."""
    monkeypatch.setenv("FRESHET_RUN_DIR", os.path.join(place, "run"))


def refused(client, *asked, **parameters):
    with pytest.raises(InferenceServerException) as caught:
        client.ask(*asked, **parameters)
    return str(caught.value)


def test_a_server_starts_before_the_trainer_and_outlives_it(server):
    clients = [Client(server, protocol) for protocol in ("http", "grpc")]
    asked = {"x": np.ones(3, np.float32)}
    for client, status in zip(clients, ("503", "UNAVAILABLE")):
        said = refused(client, "lone", asked)
        assert status in said and "lone" in said and "version" in said
    with freshet.Publisher("lone") as publisher:
        version = publisher.publish({"w": np.arange(3, dtype=np.float32)}, sync=True).version
        assert clients[0].ask("lone", asked, min_version=version, min_version_timeout_ms=PATIENCE * 1000)["weight_version"] == [version]
    for client in clients:
        answer = client.ask("lone", asked)
        assert answer["y"].tolist() == [0, 1, 2] and answer["weight_version"].tolist() == [version]


def ask_on(server, protocol, count, answers, failures, until=None):
    """A closed-loop client: `count` requests, and more until the event."""
    client = Client(server, protocol)
    random = np.random.default_rng([SEED, len(protocol), count])
    asked = 0
    while asked < count or (until is not None and not until.is_set()):
        asked += 1
        x = random.normal(size=(3, WIDTH)).astype(np.float32)
        try:
            answer = client.ask("digits", {"x": x})
        except InferenceServerException as error:
            failures.append(str(error))
            continue
        answers.append((x, answer["y"], int(answer["weight_version"][0]), int(answer["step"][0])))


def check(answers, steps):
    """Against NumPy, and what the trainers said of their versions. A version whose trainer died may have been told by nobody."""
    for x, y, version, step in answers:
        assert steps.get(version, step) == step
        weights = weights_of(step)
        np.testing.assert_allclose(y, x @ weights["w"] + weights["b"], rtol=1e-4, atol=1e-4)


def test_answers_are_of_the_version_that_they_name_while_trainers_publish_and_die(server, program):
    print("seed", SEED)
    trainer = Trainer(program, 1)
    trainer.wait_for(1)
    Client(server, "http").ask("digits", {"x": np.zeros((1, WIDTH), np.float32)}, min_version=1, min_version_timeout_ms=PATIENCE * 1000)
    # The other instance may not have a version yet, and would say so.
    assert eventually(lambda: all(mappings(pid, "digits") for pid in server.instances("digits")))
    answers, failures, ends = [], [], threading.Event()
    clients = [threading.Thread(target=ask_on, args=(server, protocol, 150, answers, failures, ends)) for protocol in ("http", "grpc", "http")]
    for one in clients:
        one.start()

    def versions_answered():
        return len({version for _, _, version, _ in list(answers)})

    assert eventually(lambda: versions_answered() > 20)
    trainer.kill()  # Amid updates.
    killed_at = len(answers)
    assert eventually(lambda: len(answers) > killed_at + 50)  # Answered without a trainer.
    following = Trainer(program, 10_000)
    following.wait_for(1)
    before = versions_answered()
    assert eventually(lambda: versions_answered() > before + 20)
    newest = max(following.steps)
    assert eventually(lambda: max(version for _, _, version, _ in answers[-20:]) >= newest)
    ends.set()
    for one in clients:
        one.join(PATIENCE)
    following.kill()
    assert failures == []
    check(answers, {**trainer.steps, **following.steps})


def mappings(pid, model):
    """(device, inode) of what the process has mapped of the model's memory, with bytes."""
    found = {}
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split(maxsplit=5)
                if len(words) == 6 and "freshet" in words[5] and model in words[5] and ".so" not in words[5]:
                    begin, end = (int(one, 16) for one in words[0].split("-"))
                    found[words[3], words[4]] = found.get((words[3], words[4]), 0) + end - begin
    except OSError:
        pass
    return found


@BOTH
def test_a_request_waits_for_its_version_and_stops_no_other(server, protocol):
    waiting, other = Client(server, protocol), Client(server, protocol)
    x = {"x": np.ones(3, np.float32)}
    with freshet.Publisher("lone") as publisher:
        first = publisher.publish({"w": np.full(3, 1, np.float32)}, sync=True).version
        assert other.ask("lone", x, min_version=first, min_version_timeout_ms=PATIENCE * 1000)["weight_version"] >= first
        came = []
        thread = threading.Thread(target=lambda: came.append(
            waiting.ask("lone", x, min_version=first + 1, min_version_timeout_ms=PATIENCE * 1000)))
        thread.start()
        # Would the instance wait, these would wait too, until the other's time is over, and it would be refused.
        for _ in range(50):
            assert other.ask("lone", x)["weight_version"].tolist() == [first]
        said = refused(other, "lone", x, min_version=first + 7, min_version_timeout_ms=50)
        assert f"version {first + 7}" in said and f"version {first} is served" in said and "lone" in said
        assert not came
        publisher.publish({"w": np.full(3, 2, np.float32)}, sync=True)
        thread.join(PATIENCE)
        assert came[0]["weight_version"].tolist() == [first + 1] and came[0]["y"].tolist() == [2, 2, 2]


def test_too_many_waits_are_refused_and_stop_no_other(server):
    """Also the second time: waits that had their answer take no places."""
    waiters, places = 70, 64  # Half of max_candidate_sequences.
    x = {"x": np.ones(3, np.float32)}
    with freshet.Publisher("lone") as publisher:
        served = publisher.publish({"w": np.full(3, 1, np.float32)}, sync=True).version
        assert Client(server, "http").ask("lone", x, min_version=served, min_version_timeout_ms=PATIENCE * 1000)["weight_version"] >= served
        for _ in range(2):
            refusals, answers, is_full = [], [], threading.Event()

            def wait(wanted):
                try:
                    answers.append(Client(server, "http").ask("lone", x, min_version=wanted, min_version_timeout_ms=PATIENCE * 1000))
                except Exception as error:
                    refusals.append(str(error))
                    if len(refusals) == waiters - places:
                        is_full.set()

            threads = [threading.Thread(target=wait, args=(served + 1,)) for _ in range(waiters)]
            for thread in threads:
                thread.start()
            assert is_full.wait(PATIENCE), refusals
            assert all("wait for a min_version already" in said for said in refusals) and not answers
            assert Client(server, "http").ask("lone", x)["weight_version"].tolist() == [served]
            served = publisher.publish({"w": np.full(3, served, np.float32)}, sync=True).version
            for thread in threads:
                thread.join(PATIENCE)
            assert len(answers) == places and len(refusals) == waiters - places, refusals
            assert {one["weight_version"].tolist()[0] for one in answers} == {served}


@pytest.mark.parametrize("given, named", [({"min_version": "soon"}, "soon"), ({"min_version": True}, "true"), ({"min_version": -1}, "-1"),
                                          ({"min_version": 1, "min_version_timeout_ms": "x"}, "milliseconds"),
                                          ({"min_version": 1, "min_version_timeout_ms": 10 ** 9}, "milliseconds")])
def test_a_parameter_that_is_no_number_is_named(server, given, named):
    said = refused(Client(server, "http"), "lone", {"x": np.ones(3, np.float32)}, **given)
    assert "400" in said and "min_version" in said and named in said


def test_an_instance_that_is_killed_starts_again_and_its_pins_go(server):
    client = Client(server, "grpc")
    x = {"x": np.ones(3, np.float32)}
    with freshet.Publisher("lone") as publisher:
        version = publisher.publish({"w": np.ones(3, np.float32)}, sync=True).version
        assert client.ask("lone", x, min_version=version, min_version_timeout_ms=PATIENCE * 1000)["weight_version"] >= version
        [pid] = server.instances("lone")
        assert [one["pid"] for one in publisher.stat()["subscribers"]] == [pid]
        os.kill(pid, signal.SIGKILL)

        def answers():
            try:
                return client.ask("lone", x)["weight_version"] >= version
            except InferenceServerException as error:  # The request that found it dead.
                said.append(str(error))
                return False

        said = []
        assert eventually(answers), said[-1]
        [new] = server.instances("lone")
        assert new != pid
        assert eventually(lambda: [one["pid"] for one in publisher.stat()["subscribers"]] == [new])


def test_instances_share_one_mapping(server):
    """And the publisher's: the same pages, so a second instance takes no memory for weights."""
    with freshet.Publisher("digits") as publisher:
        publisher.publish(weights_of(1), step=1, sync=True)
        a, b = server.instances("digits")
        assert eventually(lambda: mappings(a, "digits") and mappings(b, "digits"))
        here = mappings(os.getpid(), "digits").keys()
        assert here & mappings(a, "digits").keys() & mappings(b, "digits").keys()


@BOTH
def test_what_a_model_does_wrong_fails_its_own_request(server, protocol):
    client = Client(server, protocol)
    with freshet.Publisher("odd") as publisher:
        publisher.publish({"w": np.zeros(5, np.float32)}, sync=True)
        right = {"what": np.array([0], np.int32)}
        assert client.ask("odd", right, min_version=1, min_version_timeout_ms=PATIENCE * 1000)["y"].tolist() == [0, 0]
        [pid] = server.instances("odd")
        for what, words in {1: "RuntimeError: the model's own words", 2: "SystemExit: 3", 3: "has no tensor absent", 4: "ValueError: matmul",
                            5: "returned float64, but config.pbtxt says TYPE_FP32", 6: "shape [3], but config.pbtxt says [2]",
                            7: "returned no 'y'", 8: "returned 'z'", 9: "returned ndarray", 10: "leave it out"}.items():
            said = refused(client, "odd", {"what": np.array([what], np.int32)})
            assert words in said and "odd: version " in said, said
            assert client.ask("odd", right)["y"].tolist() == [0, 0]
        assert server.instances("odd") == [pid]
    assert server.errors().count("the model's own words\n") == 1  # A traceback, once for both protocols.


@BOTH
def test_every_type_comes_and_goes_unchanged(server, protocol):
    client = Client(server, protocol)
    random = np.random.default_rng(SEED)
    with freshet.Publisher("types") as publisher:
        publisher.publish({"w": np.array([1, 2, 3], np.float32)}, sync=True)
        for rows in (3, 0):
            asked = {}
            for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp16", "fp32", "fp64"):
                dtype = np.dtype(name.replace("fp", "float"))
                asked[name] = random.integers(0, 2 if name == "bool" else 100, size=(rows, 2)).astype(dtype)
            answer = client.ask("types", asked, min_version=1, min_version_timeout_ms=PATIENCE * 1000)
            for name in asked:
                assert answer[name].dtype == asked[name].dtype and answer[name].shape == (2, rows)
                assert (answer[name] == asked[name].T).all()
            assert answer["served"].tolist() == [1, 2, 3]
        assert client.ask("types", asked, ["served"]).keys() == {"served"}  # Only what was asked for.


def test_a_batch_has_its_version_in_each_row_and_waits_in_its_instance(server):
    """Triton puts no batch back into its queue."""
    client = Client(server, "http")
    x = {"x": np.ones((2, 3), np.float32)}
    with freshet.Publisher("batched") as publisher:
        version = publisher.publish({"w": np.array([1, 2, 3], np.float32)}, sync=True).version
        answer = client.ask("batched", x, min_version=version, min_version_timeout_ms=PATIENCE * 1000)
        assert answer["y"].tolist() == [[1, 2, 3]] * 2 and answer["weight_version"].tolist() == [[version]] * 2
        said = refused(client, "batched", x, min_version=version + 1, min_version_timeout_ms=20)
        assert f"version {version + 1}" in said and f"version {version} is served" in said
    assert "batched: a request that waits for its min_version stops its instance" in server.errors()


def test_new_writes_infer_for_what_is_published(place, folder):
    with freshet.Publisher("linear") as publisher:
        publisher.publish({"w": np.ones((4, 2), np.float32), "b": np.ones(2, np.float32)}, sync=True)
        made = json.loads(run("new", os.path.join(folder, "linear"), "--timeout", str(PATIENCE), "--json"))
        assert made["infer"] == "written" and made["model"] == "linear"
        with open(os.path.join(made["folder"], "1", "model.py"), encoding="utf-8") as file:
            assert 'return {"y": inputs["x"] @ weights["w"] + weights["b"]}' in file.read()
        said = run("new", os.path.join(folder, "linear"), code=1)
        assert "there already" in said
    with freshet.Publisher("deep") as publisher:
        publisher.publish({"a": np.ones((4, 2)), "c": np.ones((2, 2))}, sync=True)
        said = run("new", os.path.join(folder, "deep"), "--timeout", str(PATIENCE), code=1)
        assert "a float64 [4, 2], c float64 [2, 2]" in said and "--input" in said
        made = json.loads(run("new", os.path.join(folder, "deep"), "--timeout", str(PATIENCE), "--input", "x:FP64:4", "--output", "y:FP64:2", "--json"))
        assert made["infer"] == "to be written"
        with open(os.path.join(made["folder"], "1", "model.py"), encoding="utf-8") as file:
            text = file.read()
        compile(text, made["folder"], "exec")
        assert '"a": float64 [4, 2]' in text and '"c": float64 [2, 2]' in text
    assert run("new", os.path.join(folder, "none"), "--timeout", "0", code=1)
    assert "x:FP32" in run("new", os.path.join(folder, "none"), "--input", "x:FLOAT:3", code=2)
    assert not os.path.exists(os.path.join(folder, "none")) and sorted(os.listdir(folder)) == ["deep", "linear"]


def test_the_command_hands_its_line_over(folder):
    command = shutil.which("freshet", path=os.path.dirname(sys.executable))
    if command is None:
        pytest.skip("without the command freshet beside this Python")
    ran = subprocess.run([command, "triton", "new", os.path.join(folder, "m"), "--timeout", "0", "--input", "x:FP32:-1,4", "--output=y:FP32:-1",
                          "--json"], text=True, capture_output=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["folder"] == os.path.join(folder, "m")
    with open(os.path.join(folder, "m", "config.pbtxt"), encoding="utf-8") as file:
        assert "TYPE_FP32 dims: [-1, 4]" in file.read()


def test_what_keeps_a_server_from_starting_is_named(folder, monkeypatch, capsys):
    from freshet.triton.__main__ import main
    assert "triton new" in run("serve", os.path.join(folder, "absent"), code=3)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port}" in run("serve", folder, "--http-port", port, code=5)
    os.mkdir(os.path.join(folder, "bad"))
    with open(os.path.join(folder, "bad", "config.pbtxt"), "w", encoding="utf-8") as file:
        file.write('backend: "python"\n')
    assert "ended with code" in run("serve", folder, "--http-port", "0", "--grpc-port", "0", code=5)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["serve", folder]) == 3
    assert f"{sys.executable} -m pip install nvidia-pytriton" in capsys.readouterr().err


def test_a_model_that_does_not_load_any_more_stops_no_other(server, place):
    """When the server is started again, since it died."""
    client = Client(server, "http")
    x = {"x": np.ones(3, np.float32)}
    with freshet.Publisher("lone") as publisher:
        version = publisher.publish({"w": np.ones(3, np.float32)}, sync=True).version
        with open(os.path.join(place, "models", "batched", "config.pbtxt"), "a", encoding="utf-8") as file:
            file.write("no such member: 3\n")
        [old] = server.instances("lone")
        with open(f"/proc/{old}/stat", encoding="utf-8", errors="replace") as file:  # It may have been started again by now.
            os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)

        def answers():
            try:
                return client.ask("lone", x)["weight_version"] >= version
            except Exception as error:  # The server's, and the socket's while nobody listens.
                said.append(str(error))
                return False

        said = []
        assert eventually(answers), said[-1]
    assert old not in server.instances("lone") and server.instances("batched") == []
    assert eventually(lambda: "answers again" in server.errors() and "batched did not load again: " in server.errors()), server.errors()
    assert "batched" in refused(client, "batched", {"x": np.ones((2, 3), np.float32)})


def is_alive(pid):
    """A zombie is not: whose child it became collects it, or does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_sigterm_ends_all_of_it(server):
    """The last test: nothing of the module's server stays."""
    instances = [pid for name in ("digits", "lone", "odd") for pid in server.instances(name)]
    memory = [name for name in os.listdir("/dev/shm") if name.startswith(f"freshet_triton_{server.process.pid}_")]
    assert len(instances) == 4 and memory
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0
    assert not any(is_alive(pid) for pid in instances)
    assert not set(memory) & set(os.listdir("/dev/shm"))
