# SPDX-License-Identifier: Apache-2.0
"""A Ceph cluster on a host of its own, one monitor and one object store, which can be killed and started again."""
import glob
import json
import os
import shutil
import signal
import time

from processes import Failure, Process, wait_until

POOL = "freshet"
STORE_ID = "6f2b0a51-3c47-4f0e-9d0b-5a1c8e7d2f30"
CONF = """[global]
fsid = 2d9b6f0e-8a55-4a6c-b6d1-7c3e90a4f1b8
mon host = {monitor}
public addr = {address}
cluster addr = {address}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
osd pool default pg autoscale mode = off
mon allow pool size one = true
osd objectstore = bluestore
bluestore block size = 21474836480
osd memory target = 1073741824
keyring = {folder}/keyring
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}/run
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
admin socket = {folder}/run/$name.asok
"""
RIGHTS = {"mon.": ["mon", "allow *"], "osd.0": ["mon", "allow profile osd", "osd", "allow *"],
          "client.admin": ["mon", "allow *", "osd", "allow *"],
          "client.reader": ["mon", "allow r", "osd", f"allow r pool={POOL}"]}
PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "rados")


def missing_program():
    return next((name for name in PROGRAMS if not shutil.which(name)), None)


class Ceph:
    owner_keys, reader_keys = {}, {}  # Keys are in the cluster's keyring.

    def __init__(self, host, folder):
        self.host, self.folder = host, os.path.join(folder, "store")
        self.conf = os.path.join(self.folder, "ceph.conf")
        self.place = f"rados://{POOL}/nas?conf={self.conf}"
        self.reader_place = f"rados://reader@{POOL}/nas?conf={self.conf}"
        self.monitor, self.store = None, None

    def start(self):
        """The seconds until it answers."""
        began = time.monotonic()
        is_new = not os.path.exists(self.folder)
        if is_new:
            self._make_monitor()
        self.monitor = self._daemon("ceph-mon", "a")
        if is_new:
            self._run("ceph", "-c", self.conf, "--connect-timeout", "60", "osd", "new", STORE_ID)
            self._run("ceph-osd", "-c", self.conf, "-i", "0", "--mkfs", "--osd-uuid", STORE_ID)
        self.store = self._daemon("ceph-osd", "0")
        if is_new:
            self._run("ceph", "-c", self.conf, "--connect-timeout", "60", "osd", "pool", "create", POOL, "16")
        wait_until(self._is_up, "the cluster answers")
        return time.monotonic() - began

    def signal(self, number):
        for one in (self.store, self.monitor):
            one.signal(number)

    def kill(self):
        for one in (self.store, self.monitor):
            one.end(signal.SIGKILL)

    def close(self):
        for one in (self.store, self.monitor):
            if one:
                one.end(signal.SIGKILL)

    def requests(self):
        """How many operations the object store has done: {kind: count}."""
        counts = json.loads(self._run("ceph", "--admin-daemon", f"{self.folder}/run/osd.0.asok", "perf", "dump", "osd"))["osd"]
        return {"write": counts["op_w"], "read": counts["op_r"]}

    def _make_monitor(self):
        for part in ("mon", "osd", "run"):
            os.makedirs(os.path.join(self.folder, part))
        # The host has its ports for itself.
        monitor = f"v2:{self.host.address}:3300"
        with open(self.conf, "w", encoding="utf-8") as file:
            file.write(CONF.format(monitor=monitor, address=self.host.address, folder=self.folder))
        keyring, names = os.path.join(self.folder, "keyring"), os.path.join(self.folder, "monmap")
        self._run("ceph-authtool", "-C", keyring)
        for user, rights in RIGHTS.items():
            caps = [word for service, right in zip(rights[::2], rights[1::2]) for word in ("--cap", service, right)]
            self._run("ceph-authtool", keyring, "--gen-key", "-n", user, *caps)
        self._run("monmaptool", "--create", "--addv", "a", f"[{monitor}]", "--fsid", CONF.split("fsid = ")[1].split("\n")[0],
                  names)
        self._run("ceph-mon", "-c", self.conf, "--mkfs", "-i", "a", "--monmap", names, "--keyring", keyring)

    def _daemon(self, program, name):
        for socket in glob.glob(f"{self.folder}/run/*{name}.asok"):
            os.remove(socket)
        return Process(self.host, [program, "-c", self.conf, "-f", "-i", name], os.path.join(self.folder, program + ".out"))

    def _run(self, *words):
        code, out, errors = self.host.run(["timeout", "120", *words])
        if code != 0:
            raise Failure(f"{' '.join(words[:4])}: exit code {code}: {errors}")
        return out

    def _is_up(self):
        for one in (self.store, self.monitor):
            if not one.lives:
                raise Failure(f"a daemon of Ceph does not come up: {one.last_words()}")
        code, _, _ = self.host.run(["timeout", "20", "rados", "-c", self.conf, "-p", POOL, "put", "up", "/dev/null"])
        return code == 0
