# SPDX-License-Identifier: Apache-2.0
"""Machines that are not as most are: folders that are not there, networks of their own, file systems without links."""
import os
import shutil
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, free_port

COMMAND = os.environ.get("FRESHET_COMMAND") or os.path.join(os.path.dirname(sys.executable), "freshet")


def python(text, *arguments, prefix=(), **environment):
    """A program to its end: exit code, what it printed, what it complained of."""
    told = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    ended = subprocess.run([*prefix, sys.executable, "-c", textwrap.dedent(text), *arguments], capture_output=True, text=True,
                           timeout=PATIENCE, env=told)
    return ended.returncode, ended.stdout.strip(), ended.stderr


def own_network():
    """What puts a program into a network of its own; as root, or as a user where the kernel lets users have namespaces."""
    for prefix in (["unshare", "--net"], ["unshare", "--user", "--map-current-user", "--net"]):
        if shutil.which("unshare") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
            return prefix
    pytest.skip("no program may have a network of its own here")


OPEN = """
    import freshet
    try:
        freshet.Publisher("m")
    except freshet.Error as error:
        print(type(error).__name__, error)
"""


def test_a_run_folder_that_is_not_there_is_told_with_the_variable_that_names_another(folder):
    code, out, _ = python(OPEN, FRESHET_RUN_DIR=None, XDG_RUNTIME_DIR=os.path.join(folder, "none"))
    assert code == 0 and "none/freshet" in out and "XDG_RUNTIME_DIR" in out and "set FRESHET_RUN_DIR" in out
    os.mkdir(os.path.join(folder, "freshet"), 0o755)
    os.chmod(os.path.join(folder, "freshet"), 0o755)  # As another user's, to whom it may not be open.
    code, out, _ = python(OPEN, FRESHET_RUN_DIR=None, XDG_RUNTIME_DIR=folder)
    assert code == 0 and "open to other users" in out and "set FRESHET_RUN_DIR" in out


def test_another_user_s_run_folder_is_told_with_the_variable_that_names_another(folder):
    os.mkdir(os.path.join(folder, "freshet"), 0o700)
    try:
        os.chown(os.path.join(folder, "freshet"), 65534, 65534)
    except PermissionError:
        pytest.skip("only root can give a folder to another user")
    code, out, _ = python(OPEN, FRESHET_RUN_DIR=None, XDG_RUNTIME_DIR=folder)
    assert code == 0 and "belongs to another user" in out and "set FRESHET_RUN_DIR" in out


SERVER = """
    import sys, freshet
    with freshet.Subscriber("m", at=sys.argv[1] if len(sys.argv) > 1 else None) as subscriber:
        subscriber.wait_for(timeout=30)
        print(subscriber.snapshot()["w"].tolist(), subscriber.status()["channel"] if "channel" in subscriber.status() else "")
"""


def test_a_container_with_a_network_of_its_own_maps_what_is_published_in_the_shared_run_folder(folder):
    prefix = own_network()
    with freshet.Publisher("m") as publisher:
        publisher.publish({"w": np.arange(3.0)}, sync=True)
        for at in ((), (publisher.address,)):
            code, out, complaint = python(SERVER, *at, prefix=prefix)
            assert code == 0 and out.startswith("[0.0, 1.0, 2.0]"), complaint


def test_without_inotify_instances_news_come_all_the_same_and_it_is_said_why(folder):
    prefix = ["unshare", "--user", "--map-root-user", "sh", "-c",
              'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("the kernel lets nobody have a namespace of users here")
    with freshet.Publisher("m") as publisher:
        publisher.publish({"w": np.arange(3.0)}, sync=True)
        code, out, complaint = python("import logging; logging.basicConfig()" + SERVER.replace("\n    ", "\n"), prefix=prefix)
    assert code == 0 and out.startswith("[0.0, 1.0, 2.0]"), complaint
    assert "no inotify instance left" in complaint and "fs.inotify.max_user_instances" in complaint
    assert "Too many open files" not in complaint


def test_every_interface_is_ipv6_s_too(folder):
    if not shutil.which(COMMAND):
        pytest.skip("the command freshet is not installed beside the package")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    names = {}
    for who in ("trainer", "server"):
        names[who] = os.path.join(folder, who)
        subprocess.run([COMMAND, "keygen", names[who]], check=True, capture_output=True)
    allow = os.path.join(folder, "allow")
    shutil.copy(names["server"] + ".pub", allow)
    port = free_port()
    with freshet.Publisher("m", listen=f"tcp://*:{port}", keys=names["trainer"], allow=allow, channels="zmq") as publisher:
        publisher.publish({"w": np.arange(3.0)}, sync=True)
        for host in ("127.0.0.1", "[::1]"):
            with freshet.Subscriber("m", at=f"tcp://{host}:{port}", keys=names["server"],
                                    server_key=names["trainer"] + ".pub") as subscriber:
                subscriber.wait_for(timeout=PATIENCE)
                assert subscriber.snapshot()["w"].tolist() == [0, 1, 2]


SHIM = """
    #include <errno.h>
    int symlink(const char* target, const char* path) { (void)target; (void)path; errno = EPERM; return -1; }
"""


def test_a_folder_without_symbolic_links_gets_a_file_in_the_place_of_latest(folder):
    compiler = shutil.which("cc")
    if not compiler or not shutil.which(COMMAND):
        pytest.skip("no compiler, or no command freshet beside the package")
    source, shim, out = (os.path.join(folder, name) for name in ("shim.c", "shim.so", "out"))
    with open(source, "w") as file:
        file.write(textwrap.dedent(SHIM))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source], check=True)
    with freshet.Publisher("m") as publisher:
        for number in (1, 2, 3):
            publisher.publish({"w": np.full(3, number)}, sync=True)
            ended = subprocess.run([COMMAND, "subscribe", "m", "--out", out, "--count", "1", "--keep", "1"], capture_output=True,
                                   text=True, timeout=PATIENCE, env={**os.environ, "LD_PRELOAD": shim})
            assert ended.returncode == 0, ended.stderr
    latest = os.path.join(out, "latest")
    assert not os.path.islink(latest) and open(latest).read() == "m@3.safetensors\n"
    assert sorted(os.listdir(out)) == ["latest", "m@3.safetensors"]
