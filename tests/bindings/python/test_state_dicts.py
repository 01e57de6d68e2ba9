# SPDX-License-Identifier: Apache-2.0
"""Files of weights: there and back, by the libraries that others read them with, and damaged ones."""
import json
import os
import pickle
import zipfile

import numpy as np
import pytest

import freshet

TENSORS = {"layer/w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.array(2.5), "file": np.array([True, False]),
           "none": np.empty((0, 4), np.int64), "t": np.arange(6, dtype=np.int16).reshape(2, 3).T}
LIBRARY = {".safetensors": "safetensors", ".npz": "numpy", ".pt": "torch", ".h5": "h5py"}


def equal(a, b):
    assert list(sorted(a)) == list(sorted(b))
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("kind", LIBRARY)
def test_there_and_back(folder, kind):
    pytest.importorskip(LIBRARY[kind])
    path = os.path.join(folder, "weights" + kind)
    freshet.to_state_dict(path, {"before": np.zeros(1)})
    freshet.to_state_dict(path, TENSORS)
    equal(freshet.from_state_dict(path), TENSORS)
    assert os.listdir(folder) == ["weights" + kind]


def test_others_read_what_was_written_and_write_what_is_read(folder):
    path = os.path.join(folder, "w.npz")
    np.savez(path, **{"a": np.arange(3)})
    equal(freshet.from_state_dict(path), {"a": np.arange(3)})
    freshet.to_state_dict(path, TENSORS)
    equal(dict(np.load(path)), TENSORS)
    safetensors = pytest.importorskip("safetensors.numpy")
    path = os.path.join(folder, "w.safetensors")
    freshet.to_state_dict(path, TENSORS)
    equal(safetensors.load_file(path), TENSORS)
    safetensors.save_file({"a": np.arange(3)}, path)
    equal(freshet.from_state_dict(path), {"a": np.arange(3)})


@pytest.mark.parametrize("names, named", [(("fire2", "fire2/squeeze"), "fire2 stands beside fire2/squeeze"), (("a/b", "a//b"), "a/+b"),
                                          (("/",), "'/'"), (("",), "''")])
def test_names_that_hdf5_cannot_hold_are_told(folder, names, named):
    pytest.importorskip("h5py")
    path = os.path.join(folder, "x.h5")
    freshet.to_state_dict(path, {"before": np.zeros(1)})
    for order in (names, names[::-1]):
        with pytest.raises(freshet.InvalidArgument, match=f"x.h5.*{named}"):
            freshet.to_state_dict(path, {name: np.ones(2) for name in order})
    assert list(freshet.from_state_dict(path)) == ["before"] and os.listdir(folder) == ["x.h5"]


def test_torch_state_dicts(folder):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2)
    path = os.path.join(folder, "m.pt")
    torch.save(module.state_dict(), path)
    equal(freshet.from_state_dict(path), {name: one.detach().numpy() for name, one in module.state_dict().items()})
    torch.save({"state_dict": {"w": torch.ones(2, dtype=torch.bfloat16)}, "epoch": 3}, path)
    assert freshet.from_state_dict(path)["w"].dtype.name == "bfloat16"
    torch.save({"w": torch.ones(2), "epoch": 3}, path)
    with pytest.raises(freshet.InvalidArgument, match="epoch"):
        freshet.from_state_dict(path)


@pytest.mark.parametrize("kind", LIBRARY)
def test_a_model_in_parts_is_read_by_its_index_and_a_part_is_none(folder, kind):
    pytest.importorskip(LIBRARY[kind])
    parts = {f"m-0000{i}-of-00002{kind}": {f"w{i}": np.full(3, i, np.float32)} for i in (1, 2)}
    for name, tensors in parts.items():
        freshet.to_state_dict(os.path.join(folder, name), tensors)
    one = os.path.join(folder, "m-00001-of-00002" + kind)
    with pytest.raises(freshet.InvalidArgument, match="part of a"):
        freshet.from_state_dict(one)
    index = os.path.join(folder, f"m{kind}.index.json")
    where = {tensor: name for name, tensors in parts.items() for tensor in tensors}

    def write_index(where):
        with open(index, "w") as file:
            json.dump({"metadata": {}, "weight_map": where}, file)
    write_index(where)
    equal(freshet.from_state_dict(index), {name: array for tensors in parts.values() for name, array in tensors.items()})
    plain = os.path.join(folder, "plain" + kind)  # Its name says nothing, but the index does.
    os.rename(one, plain)
    with pytest.raises(freshet.NotFound, match="m-00001-of-00002"):
        freshet.from_state_dict(index)
    equal(freshet.from_state_dict(plain), parts[os.path.basename(one)])
    write_index({**where, "w1": os.path.basename(plain)})
    with pytest.raises(freshet.InvalidArgument, match="index"):
        freshet.from_state_dict(plain)
    for wrong in ({**where, "w1": "../x" + kind}, {**where, "w1": "m-00002-of-00002" + kind}, {}, []):
        write_index(wrong)
        with pytest.raises(freshet.Corrupt, match="index"):
            freshet.from_state_dict(index)
    with pytest.raises(freshet.InvalidArgument):
        freshet.to_state_dict(index, {"a": np.zeros(1)})


def test_a_part_of_keras_is_no_model(folder):
    pytest.importorskip("h5py")
    part = os.path.join(folder, "m_00000.weights.h5")
    for name in (part, os.path.join(folder, "m_00001.weights.h5")):
        freshet.to_state_dict(name, {"a": np.zeros(1)})
    with open(os.path.join(folder, "m.weights.json"), "w") as file:
        json.dump({"weight_map": {"/a": ["m_00000.weights.h5", "m_00001.weights.h5"]}}, file)
    with pytest.raises(freshet.InvalidArgument, match="m.weights.json"):
        freshet.from_state_dict(part)


class Evil:
    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL"],)


@pytest.mark.parametrize("kind", LIBRARY)
def test_damaged_files_are_named_and_run_nothing(folder, kind, monkeypatch):
    pytest.importorskip(LIBRARY[kind])
    monkeypatch.setenv("EVIL", os.path.join(folder, "evil"))
    path = os.path.join(folder, "weights" + kind)
    with pytest.raises(freshet.NotFound, match="weights"):
        freshet.from_state_dict(path)
    freshet.to_state_dict(path, TENSORS)
    whole = open(path, "rb").read()
    for damaged in (b"", b"\0" * 64, whole[:len(whole) // 2], whole[:-1] if kind in (".safetensors",) else whole[:40],
                    pickle.dumps(Evil())):
        with open(path, "wb") as file:
            file.write(damaged)
        with pytest.raises((freshet.Corrupt, freshet.Unavailable), match="weights"):
            freshet.from_state_dict(path)
    if kind == ".npz":
        np.savez(path, a=np.array([Evil()], object))
        with pytest.raises(freshet.Corrupt, match="weights"):
            freshet.from_state_dict(path)
    assert not os.path.exists(os.environ["EVIL"])


def test_a_small_file_takes_little_memory(folder):
    huge = 1 << 33
    npz = os.path.join(folder, "w.npz")
    with zipfile.ZipFile(npz, "w") as archive:
        with archive.open("w.npy", "w") as entry:
            np.lib.format.write_array_header_1_0(entry, {"descr": "|u1", "fortran_order": False, "shape": (huge,)})
            entry.write(b"few")
    with pytest.raises(freshet.Corrupt, match="w.npy"):
        freshet.from_state_dict(npz)
    np.savez_compressed(npz, w=np.zeros(1 << 22))  # Well packed, and what the file holds.
    assert freshet.from_state_dict(npz)["w"].nbytes == 1 << 25

    h5py = pytest.importorskip("h5py")
    path = os.path.join(folder, "w.h5")
    for how in ({}, {"chunks": (1 << 20,)}, {"chunks": (1 << 20,), "compression": "gzip"}):
        with h5py.File(path, "w") as file:
            file.create_dataset("w", shape=(huge,), dtype="u1", **how)  # Never written: it reads as zeros.
        assert os.path.getsize(path) < 1 << 13
        with pytest.raises(freshet.Corrupt, match="'w'"):
            freshet.from_state_dict(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("w", shape=(1,), maxshape=(None,), chunks=(1 << 29,), dtype="f4", compression="gzip")
    with pytest.raises(freshet.Corrupt, match="'w'"):
        freshet.from_state_dict(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=np.zeros(1 << 22), compression="gzip", chunks=(1 << 20,))
        file.create_dataset("never", shape=(5,), dtype="f4")
        file.create_dataset("one", data=np.float32(2))
    assert freshet.from_state_dict(path)["w"].nbytes == 1 << 25
    with h5py.File(path, "w") as file:
        file.create_dataset("names", data=["a", "b"], dtype=h5py.string_dtype())
    with pytest.raises(freshet.InvalidArgument, match="names"):
        freshet.from_state_dict(path)

    torch = pytest.importorskip("torch")
    path = os.path.join(folder, "w.pt")
    torch.save({"w": torch.zeros(1).expand(huge)}, path)
    with pytest.raises(freshet.Corrupt, match="'w'"):
        freshet.from_state_dict(path)
    torch.save({"w": torch.zeros(1).expand(64), "tied": torch.ones(3)}, path)
    assert freshet.from_state_dict(path)["w"].shape == (64,)
    shared = torch.zeros(1 << 20)
    torch.save({f"w{i}": shared for i in range(8)}, path)
    assert len(freshet.from_state_dict(path)) == 8
    torch.save({"w": torch.zeros(1 << 23)}, path)
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(path + ".pt", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    with pytest.raises(freshet.Corrupt, match="bytes of memory"):
        freshet.from_state_dict(path + ".pt")


def test_what_cannot_be_written_leaves_what_was_there(folder):
    path = os.path.join(folder, "w.npz")
    freshet.to_state_dict(path, {"a": np.arange(3)})
    with pytest.raises(freshet.InvalidArgument, match="tensor bad"):
        freshet.to_state_dict(path, {"bad": np.array([object()])})
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(freshet.Unsupported, match="tensor bad"):
        freshet.to_state_dict(path, {"bad": np.zeros(2, ml_dtypes.bfloat16)})
    equal(freshet.from_state_dict(path), {"a": np.arange(3)})
    assert os.listdir(folder) == ["w.npz"]
    with pytest.raises(freshet.IoError, match="nowhere"):
        freshet.to_state_dict(os.path.join(folder, "nowhere", "w.npz"), TENSORS)
    with pytest.raises(freshet.InvalidArgument, match="safetensors"):
        freshet.to_state_dict(os.path.join(folder, "w.txt"), TENSORS)
