# SPDX-License-Identifier: Apache-2.0
"""What the benchmark many_hosts takes from Python: the object store, and boto3's transfer of the same objects.

usage: many_hosts_peer.py server WEED FOLDER
       many_hosts_peer.py delay ENDPOINT MILLISECONDS
       many_hosts_peer.py transfer BUCKET PREFIX TENSORS BYTES

server: starts SeaweedFS in FOLDER, makes the bucket "freshet", prints the endpoint, and ends the store when its input ends.
Keys stand in the usual environment.

delay: prints an endpoint from which all goes on to ENDPOINT, and back. A round trip takes so much longer by it.

transfer: lines in, `store` or `load`; a line out with milliseconds by the clock and of processor time. Each tensor is one
object of one request, as Freshet's are; s3transfer sends as many at a time as boto3's default says (10). boto3 proves bytes as
it does by default: by their SHA-256 when it sends them over http, and by a CRC when they come.
"""

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time

import boto3
import botocore.config
from boto3.s3.transfer import TransferConfig, create_transfer_manager


def client():
    return boto3.client("s3", config=botocore.config.Config(s3={"addressing_style": "path"}, max_pool_connections=16))


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def serve(weed, folder):
    names = ["master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port"]
    names.append("s3.port.grpc")
    ports = dict(zip(names, free_ports(len(names))))
    key = {"accessKey": os.environ["AWS_ACCESS_KEY_ID"], "secretKey": os.environ["AWS_SECRET_ACCESS_KEY"]}
    with open(os.path.join(folder, "s3.json"), "w") as file:
        rights = ["Admin", "Read", "Write", "List"]
        json.dump({"identities": [{"name": "owner", "credentials": [key], "actions": rights}]}, file)
    words = [weed, "-logtostderr=true", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    words += [f"-s3.config={folder}/s3.json", "-volume.max=100", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    words += ["-master.volumeSizeLimitMB=1024"] + [f"-{name}={port}" for name, port in ports.items()]
    with open(os.path.join(folder, "log"), "w") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{ports['s3.port']}"
        deadline = time.monotonic() + 60
        while True:
            try:
                client().create_bucket(Bucket="freshet")
                for i in range(20):  # A new store takes seconds for the first ones.
                    client().put_object(Bucket="freshet", Key=f"first/{i}", Body=b"x")
                break
            except Exception as error:
                if time.monotonic() > deadline or process.poll() is not None:
                    sys.exit(f"weed does not come up: {error}")
                time.sleep(0.2)
        print(os.environ["AWS_ENDPOINT_URL"], flush=True)
        sys.stdin.read()
    finally:
        process.kill()
        process.wait()


async def carry(reader, writer, delay_s):
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 16):
        loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)


async def delay(endpoint, milliseconds):
    host, port = endpoint.removeprefix("http://").split(":")
    each_way_s = milliseconds / 2000

    async def join(reader, writer):
        back, there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(carry(reader, there, each_way_s), carry(back, writer, each_way_s))

    server = await asyncio.start_server(join, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Target:
    """Memory that a transfer writes into."""

    def __init__(self, memory):
        self.memory = memory
        self.at = 0

    def seekable(self):
        return True

    def seek(self, at, whence=0):
        assert whence == 0
        self.at = at

    def tell(self):
        return self.at

    def close(self):
        pass

    def write(self, data):
        self.memory[self.at : self.at + len(data)] = data
        self.at += len(data)


class Source(Target):
    """Memory that a transfer reads."""

    def seek(self, at, whence=0):
        self.at = {0: 0, 1: self.at, 2: len(self.memory)}[whence] + at

    def read(self, count=-1):
        end = len(self.memory) if count is None or count < 0 else self.at + count
        data = self.memory[self.at : end]
        self.at += len(data)
        return bytes(data)


def transfer(bucket, prefix, tensors, size):
    sources = [bytearray(os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size] for _ in range(tensors)]
    buffers = [bytearray(b"\1" * size) for _ in range(tensors)]
    s3 = client()
    config = TransferConfig(multipart_threshold=size + 1, multipart_chunksize=size + 1)
    s3.put_object(Bucket=bucket, Key=prefix + "/warm", Body=b"x")
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        is_store = line.strip() == "store"
        if is_store:
            for source in sources:
                source[:8] = number.to_bytes(8, "little")
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        with create_transfer_manager(s3, config) as manager:
            futures = []
            for i in range(tensors):
                key = f"{prefix}/{i}"
                if is_store:
                    futures.append(manager.upload(Source(memoryview(sources[i])), bucket, key))
                else:
                    futures.append(manager.download(bucket, key, Target(memoryview(buffers[i]))))
            for future in futures:
                future.result()
        end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        if not is_store:
            assert buffers == sources
            for buffer in buffers:
                buffer[:8] = bytes(8)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print((end - start) * 1000, processor * 1000, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(*sys.argv[2:])
    elif sys.argv[1] == "delay":
        asyncio.run(delay(sys.argv[2], float(sys.argv[3])))
    else:
        transfer(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
