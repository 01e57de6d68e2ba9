# SPDX-License-Identifier: Apache-2.0
"""A SeaweedFS server on a host of its own, which can be killed and started again; and its count of requests."""
import glob
import json
import os
import random
import re
import signal
import sys
import time

from processes import Failure, Process, wait_until

OWNER_KEYS = {"AWS_ACCESS_KEY_ID": "owner", "AWS_SECRET_ACCESS_KEY": "owner-secret"}
READER_KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "reader-secret"}
BUCKET = "freshet"
PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port",
         "s3.port.grpc", "metricsPort")
# A process of a host asks: this one stands outside of all hosts.
ASK = """
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[2], method=sys.argv[1]), timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status)
sys.stdout.write(answer.read().decode(errors="replace"))
"""


class SeaweedFS:
    owner_keys, reader_keys = OWNER_KEYS, READER_KEYS

    def __init__(self, host, program, folder):
        self.host, self.folder = host, os.path.join(folder, "store")
        os.mkdir(self.folder)
        # The host has its ports for itself. But parts of weed find each other by sockets in /tmp whose names have the port,
        # and so would two runs on one machine.
        self.ports = dict(zip(PORTS, random.SystemRandom().sample(range(10000, 30000), len(PORTS))))
        self.endpoint = f"http://{host.address}:{self.ports['s3.port']}"
        self.place = self.reader_place = f"s3://{BUCKET}/nas?endpoint={self.endpoint}"
        identities = [{"name": "owner", "credentials": [key_of(OWNER_KEYS)], "actions": ["Admin", "Read", "Write", "List"]},
                      {"name": "reader", "credentials": [key_of(READER_KEYS)],
                       "actions": [f"Read:{BUCKET}", f"List:{BUCKET}"]}]
        rights = os.path.join(folder, "s3.json")
        with open(rights, "w", encoding="utf-8") as file:
            json.dump({"identities": identities}, file)
        self.words = [program, "-logtostderr=true", "server", f"-dir={self.folder}", f"-ip={host.address}",
                      f"-ip.bind={host.address}", "-filer", "-s3", f"-s3.config={rights}", "-volume.max=40",
                      "-master.volumeSizeLimitMB=256", "-s3.port.iceberg=0", "-s3.port.lance=0",
                      *(f"-{name}={port}" for name, port in self.ports.items())]
        self.log = os.path.join(folder, "store.log")
        self.process = None

    def start(self):
        """The seconds until it answers."""
        began = time.monotonic()
        self.process = Process(self.host, self.words, self.log)
        wait_until(self._is_up, "the store answers")
        return time.monotonic() - began

    def signal(self, number):
        self.process.signal(number)

    def kill(self):
        self.process.end(signal.SIGKILL)

    def close(self):
        if self.process:
            self.kill()
        for port in self.ports.values():
            for path in glob.glob(f"/tmp/seaweedfs-*-{port}.sock"):
                os.remove(path)

    def _ask(self, port, path, method="GET"):
        """The status and the body; None while nothing listens."""
        code, out, _ = self.host.run([sys.executable, "-c", ASK, method, f"http://{self.host.address}:{self.ports[port]}{path}"])
        status, _, body = out.partition("\n")
        return (int(status), body) if code == 0 else None

    def _is_up(self):
        if not self.process.lives:
            raise Failure(f"weed does not come up: {self.process.last_words()}")
        made = self._ask("filer.port", f"/buckets/{BUCKET}/", "POST")
        # Without a signature the store refuses, once it has read who may do what.
        refused = self._ask("s3.port", f"/{BUCKET}")
        return made is not None and made[0] in (200, 201, 409) and refused is not None and refused[0] == 403

    def requests(self):
        """How many requests the store has answered: {kind: count}."""
        counts = {}
        answer = self._ask("metricsPort", "/metrics")
        for line in (answer[1] if answer else "").splitlines():
            found = re.match(r'SeaweedFS_s3_request_total\{.*type="(\w+)".*\} (\S+)$', line)
            if found:
                counts[found[1]] = counts.get(found[1], 0) + int(float(found[2]))
        return counts


def key_of(keys):
    return {"accessKey": keys["AWS_ACCESS_KEY_ID"], "secretKey": keys["AWS_SECRET_ACCESS_KEY"]}
