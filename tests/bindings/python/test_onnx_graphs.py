# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs of many kinds with published weights, and what callers of InferenceSession.run() expect of it."""
import os

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import freshet
import freshet.onnx
from onnx import TensorProto, helper, numpy_helper
from onnx_models import FLOAT, affine, follows, model, published, saved, value, weights

X = np.arange(8, dtype=np.float32).reshape(2, 4)
both = pytest.mark.parametrize("mode", ["inputs", "session"])
ways = pytest.mark.parametrize("how", [{}, {"mode": "session"}, {"mode": "session", "sess_options": ort.SessionOptions()}],
                               ids=["inputs", "session", "session-options"])


def in_file(path, arrays, external):
    """Moves initializers' values to a file beside the model."""
    made = onnx.load(path)
    with open(os.path.join(os.path.dirname(path), external), "wb") as file:
        for tensor in made.graph.initializer:
            if tensor.name in arrays:
                raw = numpy_helper.to_array(tensor).tobytes()
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, text in (("location", external), ("offset", str(file.tell())), ("length", str(len(raw)))):
                    tensor.external_data.add(key=key, value=text)
                file.write(raw)
    with open(path, "wb") as file:
        file.write(made.SerializeToString())


@ways
def test_external_data(pair, folder, how):
    file, now = weights(0), weights(1)
    path = saved(folder, affine(**file))
    in_file(path, "wb", "m.data")
    with freshet.onnx.Session(path, pair[1], **how) as session:
        assert [one.name for one in session.get_inputs()] == ["x"]
        follows(session, published(pair, {"w": now["w"]}))
        for _ in range(2):
            np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ now["w"] + file["b"], rtol=1e-5)
    in_file(path, "w", "gone.data")  # Published: nobody needs its values.
    os.remove(f"{folder}/gone.data")
    with freshet.onnx.Session(path, pair[1], **how) as session:
        follows(session, 1)
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ now["w"] + file["b"], rtol=1e-5)


@both
def test_external_data_that_cannot_be_read(pair, folder, mode):
    path = saved(folder, affine(**weights(0)))
    in_file(path, "b", "m.data")
    published(pair, {"w": weights(1)["w"]})
    with open(path, "rb") as file, freshet.onnx.Session(file.read(), pair[1], mode) as session:
        with pytest.raises(freshet.FailedPrecondition, match=r"external data \(b\).*path"):
            session.run(None, {"x": X})
    os.remove(f"{folder}/m.data")
    with freshet.onnx.Session(path, pair[1], mode) as session:
        with pytest.raises(freshet.FailedPrecondition, match="external data of its unpublished initializers cannot be read"):
            session.run(None, {"x": X})


@ways
def test_more_than_a_message_holds(pair, folder, monkeypatch, how):
    """As of a model over 2 GiB: what is published is not in the message, unless it has to be."""
    path = saved(folder, affine(**weights(0, (300, 3))))
    monkeypatch.setattr("freshet._onnx_graph.BYTES_MAX", 2000)
    tensors = weights(1, (300, 3))
    with freshet.onnx.Session(path, pair[1], **how) as session:
        published(pair, tensors)
        x = np.ones((1, 300), np.float32)
        if "sess_options" in how:
            with pytest.raises(freshet.FailedPrecondition, match="2 GiB.*function"):
                session.run(None, {"x": x})
        else:
            np.testing.assert_allclose(session.run(["h"], {"x": x})[0], x @ tensors["w"], rtol=1e-4)


@both
def test_a_file_cannot_name_a_file_elsewhere(pair, folder, mode):
    os.mkdir(f"{folder}/models")
    path = saved(f"{folder}/models", affine(**weights(0)))
    in_file(path, "b", "../secret.data")
    with freshet.onnx.Session(path, pair[1], mode) as session:
        published(pair, {"w": weights(1)["w"]})
        with pytest.raises(freshet.FailedPrecondition, match="external data"):
            session.run(None, {"x": X})


@ways
def test_initializers_that_are_inputs_too(pair, how):
    """As in files before IR version 4, or where the exporter lets callers give other weights."""
    now = weights(1)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    made = model(nodes, [value("x", shape=["N", 4]), value("w", shape=[4, 3]), value("b", shape=[3])],
                 [value("y", shape=["N", 3])], weights(0))
    with freshet.onnx.Session(made.SerializeToString(), pair[1], **how) as session:
        for version in (0, 1):
            if version:
                follows(session, published(pair, {"w": now["w"]}))
            assert [one.name for one in session.get_inputs()] == ["x"]
            assert sorted(one.name for one in session.get_overridable_initializers()) == ["b", "w"]
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ now["w"] + weights(0)["b"], rtol=1e-5)
        other = np.ones((4, 3), np.float32)
        np.testing.assert_allclose(session.run(None, {"x": X, "w": other})[0], X @ other + weights(0)["b"], rtol=1e-5)
        np.testing.assert_allclose(session.run(None, {"x": X, "b": other[0]})[0], X @ now["w"] + 1, rtol=1e-5)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ now["w"] + weights(0)["b"], rtol=1e-5)


def branch(name, inner, tensors, output):
    return helper.make_graph([helper.make_node("Add", ["x", inner], [output])], name, [], [value(output, shape=[4])],
                             [numpy_helper.from_array(array, key) for key, array in tensors.items()])


@ways
def test_initializers_inside_subgraphs(pair, how):
    one = np.ones(4, np.float32)
    nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=branch("then", "a", {"a": one}, "p"),
                              else_branch=branch("else", "c", {"c": one}, "q"))]
    made = model(nodes, [value("yes", TensorProto.BOOL, []), value("x", shape=[4])], [value("y", shape=[4])])
    with freshet.onnx.Session(made.SerializeToString(), pair[1], **how) as session:
        follows(session, published(pair, {"a": 5 * one}))
        assert session.status()["kept"] == ["c"]
        assert (session.run(None, {"yes": np.array(True), "x": one})[0] == 6).all()
        assert (session.run(None, {"yes": np.array(False), "x": one})[0] == 2).all()


@both
def test_two_subgraphs_with_one_name(pair, mode):
    one = np.ones(4, np.float32)
    nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=branch("then", "a", {"a": one}, "p"),
                              else_branch=branch("else", "a", {"a": 2 * one}, "q"))]
    made = model(nodes, [value("yes", TensorProto.BOOL, []), value("x", shape=[4])], [value("y", shape=[4])])
    with freshet.onnx.Session(made.SerializeToString(), pair[1], mode) as session:
        published(pair, {"a": one})
        with pytest.raises(freshet.FailedPrecondition, match="tensor a .*several subgraphs"):
            session.run(None, {"yes": np.array(True), "x": one})


@both
def test_sparse_initializers_and_types_without_tensors_are_refused_by_name(pair, mode):
    sparse = helper.make_sparse_tensor(numpy_helper.from_array(np.array([5], np.float32), "s"),
                                       numpy_helper.from_array(np.array([1]), "at"), [4])
    nodes = [helper.make_node("Add", ["x", "s"], ["y"])]
    made = model(nodes, [value("x", shape=[4])], [value("y", shape=[4])], sparse=[sparse])
    with freshet.onnx.Session(made.SerializeToString(), pair[1], mode) as session:
        published(pair, {"s": np.ones(4, np.float32)})
        with pytest.raises(freshet.FailedPrecondition, match="tensor s .*sparse"):
            session.run(None, {"x": np.ones(4, np.float32)})
    with pytest.raises(freshet.InvalidArgument, match="initializer s: it is sparse"):
        freshet.onnx.Session(made.SerializeToString(), pair[1], mode, names={"s": "t"})
    nodes = [helper.make_node("Identity", ["s"], ["y"])]
    made = model(nodes, [], [value("y", TensorProto.STRING, [1])], {"s": helper.make_tensor("s", TensorProto.STRING, [1], [b"a"])})
    with freshet.onnx.Session(made.SerializeToString(), pair[1], mode) as session:
        with pytest.raises(freshet.FailedPrecondition, match="tensor s .*no tensor has its type"):
            session.run(None, {})


@ways
def test_scalars_empty_tensors_and_whole_numbers(pair, how):
    def made_with(scale, shift, none, flag):
        nodes = [helper.make_node("Mul", ["x", "scale"], ["h"]), helper.make_node("Concat", ["h", "none"], ["c"], axis=0),
                 helper.make_node("Gather", ["c", "shift"], ["g"]), helper.make_node("Where", ["flag", "g", "x"], ["y"])]
        return model(nodes, [value("x", shape=[4])], [value("y", shape=[4])],
                     {"scale": scale, "shift": shift, "none": none, "flag": flag})

    x = np.arange(4, dtype=np.float32)
    none = np.empty(0, np.float32)
    first = made_with(np.array(1, np.float32), np.arange(4), none, np.ones(4, bool))
    with freshet.onnx.Session(first.SerializeToString(), pair[1], **how) as session:
        for scale, shift, flag in ((2.5, [3, 2, 1, 0], [True, True, False, True]), (-1.0, [0, 0, 1, 1], [False, True, True, True])):
            follows(session, published(pair, {"scale": np.array(scale, np.float32), "shift": np.array(shift), "none": none,
                                              "flag": np.array(flag)}))
            assert session.status()["kept"] == []
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.where(flag, (scale * x)[shift], x))


@ways
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn"])
def test_short_floats(pair, kind, how):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, kind, None) or kind)
    of_onnx = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float8_e4m3fn": TensorProto.FLOAT8E4M3FN}[kind]
    nodes = [helper.make_node("Cast", ["w"], ["f"], to=FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]
    made = model(nodes, [value("x", shape=[4])], [value("y", shape=[4])],
                 {"w": helper.make_tensor("w", of_onnx, [4], [0.0] * 4)})
    with freshet.onnx.Session(made.SerializeToString(), pair[1], **how) as session:
        w = np.array([1.5, -2, 0.25, 3], dtype)
        follows(session, published(pair, {"w": w}))
        np.testing.assert_array_equal(session.run(None, {"x": np.ones(4, np.float32)})[0], 1 + w.astype(np.float32))


@ways
def test_a_quantised_layer(pair, how):
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["f"]), helper.make_node("MatMul", ["x", "f"], ["y"])]
    made = model(nodes, [value("x", shape=["N", 4])], [value("y", shape=["N", 3])],
                 {"w": np.zeros((4, 3), np.int8), "scale": np.array(0.5, np.float32), "zero": np.array(3, np.int8)})
    w = np.random.default_rng(4).integers(-128, 128, (4, 3)).astype(np.int8)
    with freshet.onnx.Session(made.SerializeToString(), pair[1], **how) as session:
        follows(session, published(pair, {"w": w, "scale": np.array(0.25, np.float32)}))
        # With a constant for w, onnxruntime rounds x to 8 bits.
        rounding = 0 if how == {} else 7 / 255 * 128 * 0.25 * 4 / 2
        np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ (0.25 * (w.astype(np.float32) - 3)), rtol=1e-5,
                                   atol=rounding)


def test_weights_that_are_outputs_are_copies(pair):
    """An answer does not lie in the memory of a version, which may go away."""
    nodes = [helper.make_node("Identity", ["w"], ["same"]), helper.make_node("Reshape", ["w", "shape"], ["flat"])]
    made = model(nodes, [], [value("same", shape=[4, 3]), value("flat", shape=[12]), value("w", shape=[4, 3])],
                 {"w": np.zeros((4, 3), np.float32), "shape": np.array([12])})
    with freshet.onnx.Session(made.SerializeToString(), pair[1]) as session:
        now = weights(1)["w"]
        follows(session, published(pair, {"w": now}))
        answers = session.run(None, {}) + session.run(["w", "same"], {}, ort.RunOptions())
        with pair[1].snapshot() as snapshot:
            for answer in answers:
                assert not np.shares_memory(answer, snapshot["w"])
                np.testing.assert_array_equal(answer.reshape(4, 3), now)


def outcome(call):
    """What it returned, or the class of what it raised."""
    try:
        return call()
    except Exception as error:
        return type(error)


@both
def test_run_is_what_run_of_an_inference_session_is(pair, folder, mode):
    now = weights(1)
    published(pair, now)
    plain = ort.InferenceSession(affine(**now).SerializeToString())
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        assert session.run(None, {"x": X}).weight_version == 1
        wrong = dict(dtype=X.astype(np.float64), rank=X[0], text=np.array(["a"]), number=3.0, none=None)
        for names in (None, [], ["y"], ["h"], ["h", "y"], ["y", "y"], ["q"], ("y",), [""]):
            for feeds in ({"x": X}, {"x": X[::-1]}, {"x": np.asfortranarray(X)}, {"x": X.tolist()}, {}, {"q": X}, {"x": X, "q": X},
                          {"x": ort.OrtValue.ortvalue_from_numpy(X)}, *({"x": each} for each in wrong.values())):
                for more in ((), (ort.RunOptions(),)):
                    want, got = (outcome(lambda: one.run(names, feeds, *more)) for one in (plain, session))
                    if isinstance(want, type):
                        assert got is want, (names, feeds)
                        continue
                    assert len(got) == len(want), (names, feeds)
                    for a, b in zip(want, got):
                        np.testing.assert_allclose(a, b, rtol=1e-5)
        with pytest.raises(ValueError, match="'x'"):  # Not the x of the request before.
            session.run(None, {})
        with pytest.raises(Exception, match="w"):
            session.run(None, {"x": X, "w": now["w"]})


@both
def test_what_a_session_tells_of_itself(pair, folder, mode):
    path = saved(folder, affine(**weights(0)))
    plain = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    with freshet.onnx.Session(path, pair[1], mode, sess_options=options, providers=["CPUExecutionProvider"]) as session:
        for version in (0, 1):
            if version:
                follows(session, published(pair, weights(1)))
            for call in ("get_inputs", "get_outputs"):
                assert [(one.name, one.type, one.shape) for one in getattr(session, call)()] == \
                    [(one.name, one.type, one.shape) for one in getattr(plain, call)()]
            assert session.get_providers() == plain.get_providers() == list(session.get_provider_options())
            assert session.get_session_options().intra_op_num_threads == 1
            assert session.get_modelmeta().graph_name == "g" and not session.get_overridable_initializers()
            assert f"m@{version}" in repr(session)


@both
def test_a_request_is_not_kept(pair, folder, mode):
    """Nor does an answer change with the next request."""
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        published(pair, weights(1))
        first = session.run(["h"], {"x": X})
        kept = first[0].copy()
        session.run(["h"], {"x": -X})
        np.testing.assert_array_equal(first[0], kept)
        if mode == "inputs":
            (binding,) = session._served._bindings
            assert binding._numpy_obj_references["x"].size == 0 and not binding.get_outputs()
