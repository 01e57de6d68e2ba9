#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the licences of what a wheel brings along into it: those of the libraries in freshet.libs, and those of the libraries that
are compiled into Freshet's own. They are Debian's files /usr/share/doc/PACKAGE/copyright, and nanobind's own.

usage: wheel_licences.py WHEEL    the wheel is replaced
"""
import base64
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile

# Header libraries: no file in freshet.libs tells of them.
COMPILED_IN = ("nlohmann-json3-dev", "libexpected-dev", "cppzmq-dev", "libflatbuffers-dev", "libcli11-dev", "libtomlplusplus-dev",
               "libeigen3-dev")
FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib", "/usr/lib64")


def package_of(bundled):
    """auditwheel names a copy libzstd-37412b7a.so.1.5.4; Debian's file is libzstd.so.1.5.4."""
    name = re.sub(r"-[0-9a-f]{8}\.", ".", os.path.basename(bundled), count=1)
    for path in (os.path.join(folder, name) for folder in FOLDERS):
        found = subprocess.run(["dpkg-query", "-S", path], text=True, capture_output=True, check=False)
        if found.returncode == 0:
            return found.stdout.partition(":")[0]
    sys.exit(f"{name}: no Debian package has it, so its licence is not known")


def licences_of(names):
    packages = {package_of(name) for name in names if re.search(r"^freshet\.libs/.*\.so", name)}
    licences = {}
    for package in sorted(packages | set(COMPILED_IN)):
        with open(f"/usr/share/doc/{package}/copyright", "rb") as file:
            licences[package] = file.read()
    nanobind = importlib.metadata.distribution("nanobind")
    [text] = [file for file in nanobind.files if os.path.basename(file) == "LICENSE"]
    licences["nanobind"] = nanobind.locate_file(text).read_bytes()
    return licences


def main(wheel):
    with zipfile.ZipFile(wheel) as old:
        [record] = [name for name in old.namelist() if name.endswith(".dist-info/RECORD")]
        folder = record.rpartition("/")[0] + "/licenses/"
        licences = {f"{folder}{package}.txt": text for package, text in licences_of(old.namelist()).items()}
        lines = old.read(record).decode()
        for name, text in licences.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
            lines += f"{name},sha256={digest},{len(text)}\n"
        aside = wheel + ".tmp"
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as new:
            for entry in old.infolist():
                new.writestr(entry, lines if entry.filename == record else old.read(entry), zipfile.ZIP_DEFLATED)
            for name, text in licences.items():
                new.writestr(name, text)
    os.replace(aside, wheel)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
