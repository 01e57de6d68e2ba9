# SPDX-License-Identifier: Apache-2.0
"""Arrays of any type, shape and strides come back as they look; files that are damaged anywhere are an error, or arrays."""
import itertools
import os
import tempfile

import numpy as np
import pytest

# What hypothesis writes down is no file of the tree.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(tempfile.gettempdir(), "freshet-hypothesis"))
hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays_of

import freshet
from conftest import PATIENCE

# Examples come by chance; a failure prints how to run it again.
few = settings(max_examples=40, deadline=None, database=None, print_blob=True,
               suppress_health_check=list(hypothesis.HealthCheck))
many = settings(few, max_examples=200)

TYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]
try:
    import ml_dtypes
    OWN = [getattr(ml_dtypes, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]
except ImportError:
    OWN = []
numbers = itertools.count()


@st.composite
def strided(draw, types=(*TYPES, *OWN)):
    """An array of any bits, seen in another order, by steps, backwards, or as a part of another."""
    dtype = np.dtype(draw(st.sampled_from(types)))
    shape = draw(arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))
    size = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    if dtype == bool:
        array &= 1
    array = array.view(dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 2, -1, -2]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    return array


# What no name may have: core/base/text.h counts these as control characters, too.
CONTROLS = "\u061c\u200e\u200f" + "".join(map(chr, (*range(0x2028, 0x202F), *range(0x2066, 0x206A))))
names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=CONTROLS), min_size=1, max_size=12)
tensors = st.dictionaries(names, strided(), min_size=1, max_size=4)


def assert_equal(came, sent):
    assert set(came) == set(sent)
    for name, array in sent.items():
        assert came[name].dtype == array.dtype and came[name].shape == array.shape, name
        assert came[name].tobytes() == array.tobytes(), name


def has_bytes(sent):
    return any(array.size for array in sent.values())


@few
@given(sent=tensors.filter(has_bytes))
def test_what_is_published_is_what_is_served(sent):
    model = f"m{next(numbers)}"
    publisher = freshet.Publisher(model)
    with freshet.Subscriber(model) as subscriber:
        bound = publisher.bind(sent)
        for _ in range(2):
            subscriber.wait_for(bound.publish(changed="all").version, PATIENCE)
            with subscriber.snapshot() as snapshot:
                assert_equal(snapshot, sent)
    publisher.close()


@few
@given(sent=tensors.filter(has_bytes), data=st.data())
def test_what_is_put_is_what_is_got(folder, sent, data):
    with freshet.Repository(os.path.join(folder, "runs")) as repository:
        version = repository.put(f"m{next(numbers)}", sent)
        assert_equal(repository.get(version), sent)
        chosen = data.draw(st.lists(st.sampled_from(sorted(sent)), unique=True))
        assert_equal(repository.get(version, tensors={f"new {name}": name for name in chosen}),
                     {f"new {name}": sent[name] for name in chosen})


@many
@given(sent=tensors)
def test_a_safetensors_file_has_what_was_written(folder, sent):
    path = os.path.join(folder, "w.safetensors")
    freshet.to_state_dict(path, sent)
    assert_equal(freshet.from_state_dict(path), sent)


@many
@given(sent=st.dictionaries(st.from_regex(r"[a-z][a-z0-9_./]{0,9}", fullmatch=True), strided(TYPES), min_size=1, max_size=4))
def test_an_npz_file_has_what_was_written(folder, sent):
    path = os.path.join(folder, "w.npz")
    freshet.to_state_dict(path, sent)
    assert_equal(freshet.from_state_dict(path), sent)


@pytest.mark.parametrize("kind", [".safetensors", ".npz"])
@many
@given(data=st.data())
def test_a_damaged_file_is_an_error_or_arrays(folder, kind, data):
    path = os.path.join(folder, "w" + kind)
    freshet.to_state_dict(path, {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(5, np.int16)})
    with open(path, "rb") as file:
        content = bytearray(file.read())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        how = data.draw(st.sampled_from(["change", "cut", "insert", "drop"]))
        if how == "change" and at < len(content):
            content[at] = data.draw(st.integers(0, 255))
        elif how == "cut":
            del content[at:]
        elif how == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=16))
        else:
            del content[at:at + data.draw(st.integers(1, 16))]
    with open(path, "wb") as file:
        file.write(content)
    try:
        came = freshet.from_state_dict(path)
    except freshet.Error as error:
        assert "w" + kind in str(error)
    else:
        for array in came.values():
            array.sum()
