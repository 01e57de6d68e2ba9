# SPDX-License-Identifier: Apache-2.0
"""The wheel that scripts/python.sh leaves: nothing of the machine that built it is in it, and its tag is what the page says."""
import base64
import glob
import hashlib
import os
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
TOOLS = os.path.dirname(sys.executable)


@pytest.fixture(scope="module")
def wheel():
    found = glob.glob(os.path.join(sys.prefix, "..", "wheel", "freshet-*.whl"))
    if not found:
        pytest.skip("no wheel beside the venv: scripts/python.sh makes it")
    assert len(found) == 1
    return os.path.abspath(found[0])


def test_the_tag_says_which_c_library_it_needs(wheel):
    if not os.path.exists(os.path.join(TOOLS, "auditwheel")):
        pytest.skip("without auditwheel")
    said = subprocess.run([os.path.join(TOOLS, "auditwheel"), "show", wheel], text=True, capture_output=True, check=True,
                          env=dict(os.environ, PATH=TOOLS + os.pathsep + os.environ["PATH"]))
    words = " ".join(said.stdout.split())
    tag = re.search(r'consistent with the following platform tag: "(manylinux_2_\d+_\w+)"', words)
    assert tag, words
    assert wheel.endswith(f"-{tag[1]}.whl")
    with open("/etc/os-release", encoding="utf-8") as file, \
            open(os.path.join(ROOT, "docs", "python", "README.md"), encoding="utf-8") as page:
        if "VERSION_CODENAME=bookworm" in file.read():
            assert f"`{tag[1].removesuffix('_x86_64')}`" in page.read()
    # What is neither in the wheel nor of the C library and the compiler's own would be this machine's.
    needed = set(re.findall(r"([\w.+-]+\.so[\w.]*) with versions", words))
    with zipfile.ZipFile(wheel) as archive:
        brought = {os.path.basename(name) for name in archive.namelist()}
    assert needed - brought <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2",
                                "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "ld-linux-x86-64.so.2"}


def test_no_file_names_a_folder_of_this_machine(wheel):
    here = {ROOT, os.path.abspath(sys.prefix), os.path.expanduser("~") + os.sep}
    here = {folder.encode() for folder in here if folder.count(os.sep) > 1}
    # Frameworks of another folder are on the path where a venv borrows them.
    here |= {folder.encode() for folder in sys.path if folder.endswith("site-packages")}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            content = archive.read(name)
            for folder in here:
                assert folder not in content, f"{name} names {folder.decode()}"


def test_libraries_are_looked_for_in_the_wheel_alone(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    libraries = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    assert {"_core", "freshet"} <= {path.name.partition(".")[0] for path in libraries}
    for path in libraries:
        dynamic = subprocess.run(["readelf", "-d", path], text=True, capture_output=True, check=True).stdout
        for folders in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic):
            assert all(folder.startswith("$ORIGIN") for folder in folders.split(":")), f"{path}: {folders}"


def test_every_module_of_the_tree_is_in_the_wheel(wheel):
    package = os.path.join(ROOT, "bindings", "python", "freshet")
    here = {os.path.relpath(os.path.join(folder, name), os.path.dirname(package))
            for folder, _, names in os.walk(package) for name in names if name.endswith((".py", ".pyi", "py.typed"))}
    assert any(name.count(os.sep) > 1 for name in here), "there is no sub-package to look for"
    with zipfile.ZipFile(wheel) as archive:
        assert here <= set(archive.namelist())


def test_the_licence_of_each_library_in_it_is_in_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if re.match(r"freshet\.libs/.+\.so", name)]
        licences = [name for name in names if re.search(r"\.dist-info/licenses/.", name)]
        assert len(libraries) > 10 and len(licences) > len(libraries)
        assert all(len(archive.read(name)) > 500 for name in licences)
        # So that `pip check` and the like believe the files.
        record = archive.read(next(name for name in names if name.endswith(".dist-info/RECORD"))).decode().splitlines()
        digests = dict(line.rsplit(",", 2)[:2] for line in record)
        for name in licences:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            assert digests[name] == f"sha256={digest}"


def test_vllm_finds_its_engine(wheel):
    with zipfile.ZipFile(wheel) as archive:
        points = archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))).decode()
    assert re.search(r"\[vllm\.general_plugins\]\s+freshet ?= ?freshet\.vllm:_plugin\b", points)
