# SPDX-License-Identifier: Apache-2.0
"""Files with what Freshet carries and computes nothing with: the reference library says what is valid, and what came out."""
import copy
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest

import freshet
from conftest import PATIENCE

safetensors = pytest.importorskip("safetensors")

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64, "F8_E4M3": 8, "BF16": 16,
        "U64": 64}
COMMAND = os.environ.get("FRESHET_COMMAND") or os.path.join(os.path.dirname(sys.executable), "freshet")


def written(path, header, data):
    """A file whose header is this text."""
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)
    return path


def of_all_types(path, metadata='{"a":"b"}'):
    names = {**{f"t.{dtype}": (dtype, [3, 8]) for dtype in BITS}, "": ("U8", [2]), "n" * 4096: ("F4", [2])}
    entries, data = {}, b""
    for at, (name, (dtype, shape)) in enumerate(names.items()):
        size = int(np.prod(shape)) * BITS.get(dtype, 8) // 8
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes((17 * at + 7 * i) % 256 for i in range(size))
    header = f'{{"__metadata__":{metadata},' + json.dumps(entries)[1:]
    return written(path, header.encode(), data)


def told(path):
    """What the reference library reads; it raises for what is no file."""
    with open(path, "rb") as file:
        read = safetensors.deserialize(file.read())
    return {name: (one["dtype"], list(one["shape"]), bytes(one["data"])) for name, one in read}


def repo(folder, *arguments):
    return subprocess.run([COMMAND, "repo", *arguments, "--repo", os.path.join(folder, "repo")], capture_output=True, text=True,
                          timeout=PATIENCE)


def test_the_command_stores_and_exports_each_type_unchanged(folder):
    if not shutil.which(COMMAND):
        pytest.skip("the command freshet is not installed beside the package")
    path = of_all_types(os.path.join(folder, "all.safetensors"), json.dumps({"long": "m" * (3 << 20)}))
    ended = repo(folder, "put", "m", "--weights", path)
    assert ended.returncode == 0, ended.stderr
    assert repo(folder, "verify").returncode == 0
    out = os.path.join(folder, "out.safetensors")
    assert repo(folder, "get", "m", "-o", out).returncode == 0
    assert told(out) == told(path)
    with open(out, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        assert json.loads(file.read(length))["__metadata__"] == {"long": "m" * (3 << 20)}
    null = of_all_types(os.path.join(folder, "null.safetensors"), "null")
    assert told(null) == told(path)
    ended = repo(folder, "put", "null", "--weights", null)
    assert ended.returncode == 0, ended.stderr


def test_arrays_come_and_go_with_their_types(folder, pair):
    ml_dtypes = pytest.importorskip("ml_dtypes", "0.5")
    path = of_all_types(os.path.join(folder, "all.safetensors"), "null")
    read = freshet.from_state_dict(path)
    assert read["t.C64"].dtype == np.complex64 and read["t.C64"].shape == (3, 8)
    assert read["t.F8_E8M0"].dtype == ml_dtypes.float8_e8m0fnu
    assert read["t.F8_E4M3FNUZ"].dtype == ml_dtypes.float8_e4m3fnuz
    assert read["t.F8_E5M2FNUZ"].dtype == ml_dtypes.float8_e5m2fnuz
    packed = read["t.F6_E2M3"]
    assert (packed.packed_dtype, packed.packed_shape, packed.shape, packed.dtype) == ("f6_e2m3", (3, 8), (18,), np.uint8)
    publisher, subscriber = pair
    subscriber.wait_for(publisher.publish(read).version, PATIENCE)
    repository = freshet.Repository(os.path.join(folder, "repository"))
    repository.put("m", dict(subscriber.snapshot()))
    for arrays in (read, subscriber.snapshot(), repository.get("m")):
        out = os.path.join(folder, "out.safetensors")
        freshet.to_state_dict(out, arrays)
        assert told(out) == told(path)
    changed = packed.copy()
    changed[-1] ^= 1
    receipt = publisher.publish({**read, "t.F6_E2M3": changed})
    subscriber.wait_for(receipt.version, PATIENCE)
    assert bytes(subscriber.snapshot()["t.F6_E2M3"]) == bytes(changed)


def test_a_packed_array_is_that_tensor_and_nothing_made_of_it_is():
    raw = np.arange(9, dtype=np.uint8)
    packed = freshet.PackedArray(raw, "f6_e3m2", (3, 4))
    assert np.shares_memory(packed, raw)
    for same in (packed.copy(), copy.copy(packed), copy.deepcopy(packed), pickle.loads(pickle.dumps(packed))):
        assert (same.packed_dtype, same.packed_shape) == ("f6_e3m2", (3, 4)) and bytes(same) == bytes(raw)
    for other in (packed[:3], packed + 1, packed[::-1], packed.reshape(3, 3)):
        assert other.packed_dtype is None
    for wrong in ((raw, "f6_e3m2", (3, 5)), (raw, "u8", (9,)), (raw, "f4", (17,)), (raw, "f4", (-2, -9))):
        with pytest.raises(freshet.InvalidArgument, match="packed array"):
            freshet.PackedArray(*wrong)


def test_files_without_such_types_say_so(folder):
    packed = freshet.PackedArray(np.zeros(2, np.uint8), "f4", (4,))
    for kind, library in ((".npz", "numpy"), (".h5", "h5py")):
        pytest.importorskip(library)
        with pytest.raises(freshet.Unsupported, match="f4"):
            freshet.to_state_dict(os.path.join(folder, "w" + kind), {"w": packed})


def test_a_file_of_pytorch_keeps_packed_pairs_and_refuses_the_rest(folder):
    torch = pytest.importorskip("torch")
    path = os.path.join(folder, "w.pt")
    for dtype, shape in (("f6_e2m3", (4, 4)), ("f6_e3m2", (4, 4)), ("f4", (8, 3))):
        with pytest.raises(freshet.Unsupported, match=f"tensor w: PyTorch has no {dtype}.*safetensors has"):
            freshet.to_state_dict(path, {"w": freshet.PackedArray(np.zeros(12, np.uint8), dtype, shape)})
    assert os.listdir(folder) == []
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this PyTorch has no float4_e2m1fn_x2")
    raw = np.arange(12, dtype=np.uint8)
    freshet.to_state_dict(path, {"w": freshet.PackedArray(raw, "f4", (4, 6))})
    there = torch.load(path)["w"]
    assert there.dtype is torch.float4_e2m1fn_x2 and there.shape == (4, 3)
    assert there.view(torch.uint8).flatten().tolist() == raw.tolist()
    came = freshet.from_state_dict(path)["w"]
    assert (came.packed_dtype, came.packed_shape) == ("f4", (4, 6)) and bytes(came) == bytes(raw)


@pytest.mark.parametrize("header, data", [
    (b'{"w":{"dtype":"F5","shape":[8],"data_offsets":[0,5]}}', b"12345"),
    (b'{"' + b"n" * 4097 + b'":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
    (b'{"a\\nb":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
])
def test_what_cannot_be_carried_is_unsupported_and_not_corrupt(folder, header, data):
    with pytest.raises(freshet.Unsupported, match="w.safetensors"):
        freshet.from_state_dict(written(os.path.join(folder, "w.safetensors"), header, data))


@pytest.mark.parametrize("header, data", [
    (b'{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', b"12"),
    (b'{"w":{"dtype":"F4","shape":[4],"data_offsets":[0,4]}}', b"1234"),
    (b'{"w":null}', b""),
    (b'{"__metadata__":{"a":null}}', b""),
])
def test_what_the_reference_library_refuses_is_corrupt(folder, header, data):
    path = written(os.path.join(folder, "w.safetensors"), header, data)
    with pytest.raises(safetensors.SafetensorError):
        told(path)
    with pytest.raises(freshet.Corrupt, match="w.safetensors"):
        freshet.from_state_dict(path)
