# SPDX-License-Identifier: Apache-2.0
"""What was acknowledged, as those wrote it down who put it; and whether the repository has it, byte for byte."""
import glob
import hashlib
import json
import os
import struct


def read_tensors(path):
    """Those of a safetensors file: {name: bytes}."""
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    body = memoryview(data)[8 + length:]
    return {name: body[slice(*facts["data_offsets"])] for name, facts in header.items() if name != "__metadata__"}


def sum_of(tensors):
    """As examples/nas_evolution/ledger.h says it."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        digest.update(name.encode() + b"\0")
        digest.update(tensors[name])
    return digest.hexdigest()


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


class Ledger:
    """The ledgers of all searches, and that of the client."""

    def __init__(self, folder):
        self.folder = folder
        self.put = {}  # By the client: {version: sum}.

    def read(self):
        """What must be there, and what may be: {version: sum} each."""
        stored, retiring = dict(self.put), set()
        for path in glob.glob(os.path.join(self.folder, "*.ledger")):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    event = json.loads(line)
                    if "stored" in event:
                        stored[event["stored"]] = event["sha256"]
                    else:
                        retiring.add(event["retiring"])
        kept = {version: digest for version, digest in stored.items() if version not in retiring}
        return kept, stored

    def problems(self, files):
        """`files` is a folder with MODEL@V.safetensors of all versions. A line for each that is lost or wrong."""
        kept, stored = self.read()
        for version in sorted(kept):
            if not os.path.exists(os.path.join(files, version + ".safetensors")):
                yield f"{version} was acknowledged, and is lost"
        for path in sorted(glob.glob(os.path.join(files, "*.safetensors"))):
            version = os.path.basename(path)[:-len(".safetensors")]
            if version in stored and sum_of(read_tensors(path)) != stored[version]:
                yield f"{version} has other bytes than were put"
