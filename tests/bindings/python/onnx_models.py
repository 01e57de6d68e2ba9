# SPDX-License-Identifier: Apache-2.0
"""Small ONNX models for tests, and what NumPy says they answer."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name, kind=FLOAT, shape=None):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, initializers=(), ir_version=8, sparse=()):
    tensors = [numpy_helper.from_array(array, name) if isinstance(array, np.ndarray) else array
               for name, array in dict(initializers).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, sparse_initializer=list(sparse))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=ir_version)


def saved(folder, made, name="m.onnx"):
    path = f"{folder}/{name}"
    with open(path, "wb") as file:
        file.write(made.SerializeToString())
    return path


def affine(w, b):
    """y = x @ w + b, and h = x @ w."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    return model(nodes, [value("x", shape=["N", w.shape[0]])], [value("y", shape=["N", w.shape[1]]),
                                                                value("h", shape=["N", w.shape[1]])], {"w": w, "b": b})


def published(pair, tensors, **how):
    """The version, once the subscriber has it."""
    receipt = pair[0].publish(tensors, sync=True, **how)
    return pair[1].wait_for(receipt.version, timeout=60)


def follows(session, version):
    assert session.wait_for(version, timeout=60) == version


def weights(seed, shape=(4, 3)):
    rng = np.random.default_rng(seed)
    return {"w": rng.standard_normal(shape, np.float32), "b": rng.standard_normal(shape[1:], np.float32)}


def architecture(tensors):
    """The graph of a model with other tensors than its publisher had before."""
    kinds = {"float32": "f32", "float64": "f64"}
    described = {name: {"key": name, "shape": list(array.shape), "dtype": kinds[array.dtype.name]} for name, array in tensors.items()}
    return {"freshet_graph": 1, "layers": [{"name": "layer", "class": "Layer", "config": {}, "tensors": described}]}
