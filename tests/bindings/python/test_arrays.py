# SPDX-License-Identifier: Apache-2.0
"""Arrays in and out: types, strides, lifetimes, and what is refused."""
import array
import gc
import os
import threading

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually

TYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]


def served(pair, tensors):
    """The arrays as the subscriber has them."""
    publisher, subscriber = pair
    receipt = publisher.publish(tensors)
    subscriber.wait_for(receipt.version, PATIENCE)
    return dict(subscriber.snapshot())


@pytest.mark.parametrize("dtype", TYPES)
def test_type_comes_as_it_went(pair, dtype):
    sent = (np.arange(24) % 2 if dtype == "bool" else np.arange(24)).astype(dtype).reshape(2, 3, 4)
    came = served(pair, {"w": sent})["w"]
    assert came.dtype == sent.dtype and came.shape == sent.shape
    np.testing.assert_array_equal(came, sent)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes(pair, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    sent = np.arange(12, dtype=np.float32).reshape(3, 4).astype(getattr(ml_dtypes, dtype))
    came = served(pair, {"w": sent})["w"]
    assert came.dtype == sent.dtype
    np.testing.assert_array_equal(came.view(np.uint8), sent.view(np.uint8))


@pytest.mark.parametrize("name, sent", [
    ("transposed", np.arange(6, dtype=np.float32).reshape(2, 3).T),
    ("channels last", np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4).transpose(0, 3, 1, 2)),
    ("every other", np.arange(10, dtype=np.int64)[::2]),
    ("backwards", np.arange(10, dtype=np.int64)[::-1]),
    ("repeated", np.broadcast_to(np.float32(7), (3, 2))),
    ("scalar", np.array(3.5)),
    ("number", np.float32(2.5)),
    ("empty", np.empty((0, 5), np.float32)),
    ("read-only", np.frombuffer(b"\1\0\0\0", np.int32)),
    ("unaligned", np.frombuffer(b"\0" + np.arange(3, dtype=np.float64).tobytes(), np.float64, offset=1)),
])
def test_looks_as_it_did(pair, name, sent):
    came = served(pair, {"beside": np.ones(1, np.float32), name: sent})[name]
    assert came.shape == np.shape(sent)
    np.testing.assert_array_equal(came, sent)


def test_buffers_and_dlpack(pair):
    class OnlyDLPack:
        array = np.arange(4, dtype=np.float32)

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    came = served(pair, {"a": array.array("d", [1, 2]), "b": bytearray(b"xy"), "c": OnlyDLPack()})
    assert came["a"].tolist() == [1, 2] and came["b"].tolist() == [120, 121] and came["c"].tolist() == [0, 1, 2, 3]


class OnlyArray:
    """What a library's own array has, of a type or a device that DLPack does not carry."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.array(self.array, dtype)


class RefusesDLPack(OnlyArray):
    def __dlpack__(self, **how):
        raise BufferError("this type does not travel")

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize("kind", [OnlyArray, RefusesDLPack])
def test_what_only_becomes_an_array_is_copied_and_read_anew(pair, kind):
    publisher, subscriber = pair
    value = kind(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    bound = publisher.bind({"w": value})
    for added in (0, 1):
        value.array += added
        subscriber.wait_for(bound.publish().version, PATIENCE)
        np.testing.assert_array_equal(subscriber.snapshot()["w"], value.array)


def test_scipys_sparse_matrices_are_refused_by_name(pair):
    sparse = pytest.importorskip("scipy.sparse")
    for made in (sparse.csr_matrix(np.eye(3)), sparse.coo_array(np.eye(3))):
        with pytest.raises(freshet.InvalidArgument, match="tensor sparse:"):
            pair[0].publish({"good": np.ones(2), "sparse": made})


def masked():
    return np.ma.masked_array([1.0, 2.0], [0, 1])


@pytest.mark.parametrize("name, value", [
    ("objects", np.array([{}, None])), ("complex", np.ones(2, complex)), ("masked", masked()),
    ("swapped", np.ones(2, ">f4")), ("text", np.array(["a"])), ("dates", np.array(["2020-01-01"], "M8[D]")),
    ("record", np.zeros(2, [("a", "f4")])), ("long", np.ones(2, np.longdouble)), ("list", [1.0, 2.0]), ("none", None),
])
def test_what_is_no_tensor_is_refused_by_name(pair, name, value):
    publisher, _ = pair
    with pytest.raises(freshet.InvalidArgument, match=f"tensor {name}:") as raised:
        publisher.publish({"good": np.ones(2, np.float32), name: value})
    assert raised.value.code == "invalid_argument" and isinstance(raised.value, ValueError)
    assert publisher.publish({"good": np.ones(2, np.float32)}).version == 1


@pytest.mark.parametrize("name", [3, None, b"w", ("w",), "\ud800", "a\nb"])
def test_a_name_is_text(pair, name):
    with pytest.raises(freshet.InvalidArgument):
        pair[0].publish({name: np.ones(2, np.float32)})


def test_a_model_that_grew_is_refused_by_name(pair):
    publisher, _ = pair
    one = np.ones(2, np.float32)
    publisher.publish({"a": one})
    with pytest.raises(freshet.FailedPrecondition, match="b"):
        publisher.publish({"a": one, "b": one})
    with pytest.raises(freshet.FailedPrecondition, match=r"a.*f32\[3\]|a.*f32\[2\]"):
        publisher.publish({"a": np.ones(3, np.float32)})
    assert publisher.publish({"a": one}).version == 2


def test_another_architecture_comes_as_the_refusal_advises():
    publisher = freshet.Publisher("grown")
    publisher.publish({"w": np.zeros((2, 3), np.float32)})
    wider = {"w": np.zeros((2, 4), np.float32)}
    with pytest.raises(freshet.FailedPrecondition,
                       match="give this publish another graph, or close the publisher and open it again"):
        publisher.publish(wider)
    tensors = {"w": {"dtype": "f32", "shape": [2, 4], "key": "w"}}
    layers = [{"name": "x", "class": "Input", "config": {"dtype": "f32", "shape": [None, 2]}, "inputs": []},
              {"name": "a", "class": "Dense", "config": {}, "inputs": ["x"], "tensors": tensors}]
    graph = {"freshet_graph": 1, "name": "wider", "layers": layers, "outputs": ["a"]}
    assert publisher.publish(wider, graph=graph).version == 2
    publisher.close()
    with freshet.Publisher("grown") as again:
        assert again.publish({"w": np.zeros(5, np.float64), "b": np.zeros(1, np.float32)}).version == 3


def test_order_does_not_matter(pair):
    publisher, subscriber = pair
    first, second = np.zeros(2, np.float32), np.ones(3, np.float32)
    publisher.publish({"a": first, "b": second})
    subscriber.wait_for(publisher.publish({"b": second, "a": first + 5}).version, PATIENCE)
    assert subscriber.snapshot()["a"].tolist() == [5, 5]


def test_bound_arrays_are_read_anew(pair):
    publisher, subscriber = pair
    whole, strided = np.zeros(4, np.float32), np.zeros((2, 3), np.float32).T
    bound = publisher.bind({"whole": whole, "strided": strided})
    bound.publish()
    whole[:], strided[:] = 1, 2
    receipt = bound.publish(step=7, tags={"k": "v"})
    subscriber.wait_for(receipt.version, PATIENCE)
    snapshot = subscriber.snapshot()
    assert snapshot["whole"].tolist() == [1] * 4 and (snapshot["strided"] == 2).all()
    assert snapshot.step == 7 and snapshot.tags == {"k": "v"}


def test_the_first_publish_of_bound_arrays_has_the_values_of_then(pair):
    publisher, subscriber = pair
    strided, own = np.zeros((2, 3), np.float32).T, OnlyArray(np.zeros(4, np.float32))
    bound = publisher.bind({"strided": strided, "own": own})
    strided[:], own.array[:] = 1, 2
    subscriber.wait_for(bound.publish().version, PATIENCE)
    with subscriber.snapshot() as snapshot:
        assert (snapshot["strided"] == 1).all() and snapshot["own"].tolist() == [2] * 4


def test_changed_says_what_is_looked_at(pair):
    publisher, subscriber = pair
    a, b = np.zeros(2, np.float32), np.zeros(2, np.float32)
    publisher.publish({"a": a, "b": b})
    a[:], b[:] = 1, 2
    subscriber.wait_for(publisher.publish({"a": a, "b": b}, changed=["b"]).version, PATIENCE)
    assert subscriber.snapshot()["a"].tolist() == [0, 0] and subscriber.snapshot()["b"].tolist() == [2, 2]
    subscriber.wait_for(publisher.publish({"a": a, "b": b}, changed="all").version, PATIENCE)
    assert subscriber.snapshot()["a"].tolist() == [1, 1]
    with pytest.raises(freshet.InvalidArgument, match="tensor z"):
        publisher.publish({"a": a, "b": b}, changed=["z"])
    with pytest.raises(freshet.InvalidArgument, match="neither"):
        publisher.publish({"a": a, "b": b}, changed="some")


def test_views_are_read_only(pair):
    view = served(pair, {"w": np.zeros(4, np.float32)})["w"]
    with pytest.raises(ValueError):
        view[0] = 1
    with pytest.raises(ValueError):
        view.flags.writeable = True
    with pytest.raises(ValueError):
        view.reshape(2, 2).flags.writeable = True


def held_of(publisher):
    return {version for one in publisher.stat()["subscribers"] for version in one["held"]}


def test_a_view_keeps_its_version_whatever_was_closed():
    publisher, subscriber = freshet.Publisher("m"), freshet.Subscriber("m")
    views = []
    for number in range(1, 4):
        publisher.publish({"w": np.full(1000, number, np.float32), "b": np.zeros(3, np.float32)}, sync=True)
        subscriber.wait_for(number, PATIENCE)
        with subscriber.snapshot() as snapshot:
            views.append(snapshot["w"][10:20])
    assert eventually(lambda: held_of(publisher) == {1, 2, 3})  # Told with the next heartbeat.
    subscriber.close()
    del snapshot, subscriber
    gc.collect()
    for number in range(4, 9):
        publisher.publish({"w": np.full(1000, number, np.float32), "b": np.zeros(3, np.float32)}, sync=True)
    assert [view[0] for view in views] == [1, 2, 3]
    publisher.close()
    assert [view.tolist() for view in views] == [[number] * 10 for number in (1, 2, 3)]


def test_thousands_of_views_share_a_pin(pair):
    publisher, subscriber = pair
    subscriber.wait_for(publisher.publish({"w": np.arange(8, dtype=np.float32)}).version, PATIENCE)
    snapshots = [subscriber.snapshot() for _ in range(3000)]
    views = [snapshot["w"] for snapshot in snapshots]
    assert all(view[7] == 7 for view in views)


def test_the_last_view_lets_go(pair):
    publisher, subscriber = pair
    subscriber.wait_for(publisher.publish({"w": np.zeros(8, np.float32)}).version, PATIENCE)
    view = subscriber.snapshot()["w"]
    subscriber.wait_for(publisher.publish({"w": np.ones(8, np.float32)}).version, PATIENCE)
    assert view[0] == 0
    del view
    assert eventually(lambda: held_of(publisher) == {2})


def test_a_thread_may_die_holding_a_view(pair):
    publisher, subscriber = pair
    subscriber.wait_for(publisher.publish({"w": np.zeros(8, np.float32)}).version, PATIENCE)
    kept = threading.local()

    def hold():
        kept.view = subscriber.snapshot()["w"]

    thread = threading.Thread(target=hold)
    thread.start()
    thread.join()
    assert subscriber.wait_for(publisher.publish({"w": np.ones(8, np.float32)}).version, PATIENCE) == 2


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", None, True, 2**64])
def test_numbers_that_are_none_are_named(pair, folder, wrong):
    publisher, subscriber = pair
    w = {"w": np.zeros(2)}
    with freshet.Repository(folder + "/runs") as repository:
        for call in (lambda: publisher.publish(w, step=wrong), lambda: repository.put("m", w, step=wrong),
                     lambda: freshet.Scheduler("every:2").observe(wrong, 1.0)):
            with pytest.raises(freshet.InvalidArgument, match="step"):
                call()
        assert repository.models() == []
    for call in (subscriber.wait_for, publisher.rollback, publisher.wait_committed):
        with pytest.raises(freshet.InvalidArgument, match="version"):
            call(wrong)
    assert publisher.publish(w, step=np.int64(3)).version == 1


def filled(value):
    return {"a": np.full(2 << 20, value, np.float32), "b": np.full(2 << 20, value, np.float32)}  # 16 MiB.


def in_parts(publisher, arrays):
    bound = publisher.bind(arrays)
    bound.begin()
    for name in arrays:
        bound.capture([name])
    return bound.end()


@pytest.mark.parametrize("publish", [freshet.Publisher.publish, in_parts])
def test_a_reader_that_keeps_its_arrays_costs_versions_and_ends_no_loop(caplog, publish):
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m", label="hoarder") as reader:
        kept, receipts = {}, []
        for value in range(1, 30):
            receipts.append(publish(publisher, filled(value)))
            if receipts[-1].version is not None:
                reader.wait_for(receipts[-1].version, PATIENCE)
                kept[value] = reader.snapshot()["a"]
            elif sum(receipt.version is None for receipt in receipts) == 3:
                break
        assert receipts[0].skipped is None and len(kept) >= 2
        assert f"hoarder (pid {os.getpid()}) holds" in receipts[-1].skipped and f"@{min(kept)}" in receipts[-1].skipped
        assert receipts[-1].blocked >= 0 and "None" in repr(receipts[-1])
        assert sum("hoarder" in record.getMessage() for record in caplog.records) == 1
        assert all(array[0] == value for value, array in kept.items())

        # With a new architecture, too: what was skipped comes with the next publish, which need not name it again.
        wider = {**filled(99), "c": np.ones(3, np.float32)}
        graph = {"freshet_graph": 1, "layers": [{"name": name, "class": "L", "tensors": {
            "w": {"dtype": "f32", "shape": list(array.shape), "key": name}}} for name, array in wider.items()]}
        assert publisher.publish(wider, graph=graph).version is None
        kept.clear()
        version = None
        while version is None:  # The reader tells with its next heartbeat that it let go.
            version = publisher.publish(wider).version
        reader.wait_for(version, PATIENCE)
        assert reader.snapshot()["a"][0] == 99 and reader.snapshot()["c"][0] == 1
