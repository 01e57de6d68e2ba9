# SPDX-License-Identifier: Apache-2.0
"""Keras' backends beside each other, each in a process of its own."""
import importlib.util
import os

import pytest

import freshet

pytest.importorskip("keras", minversion="3")

TRAINED = """
    import json, os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.path.insert(0, sys.argv[2])
    import keras, numpy as np, freshet, freshet.keras as fk, keras_models
    graph = fk.graph(keras_models.nested())
    graph.pop("framework_config")
    print(json.dumps(graph, sort_keys=True), flush=True)
    sys.stdin.readline()
    model = keras_models.small(out=int(sys.argv[4]))
    with freshet.Repository(sys.argv[3]) as repository:
        transfer = fk.transfer(model, repository)
        print(transfer.match and transfer.match.version, transfer.frozen)
        if transfer.match is not None:
            stored = repository.get(transfer.match.version, tensors=transfer.match.tensors)
            variables = {variable.path: keras.ops.convert_to_numpy(variable) for variable in model.weights}
            assert stored and all(np.array_equal(variables[name], array) for name, array in stored.items())
        model.compile(optimizer="sgd", loss="mse")
        model.fit(keras_models.X, np.repeat(keras_models.Y, int(sys.argv[4]), axis=1), verbose=0)
        print(transfer.store("net"))
"""


def test_one_model_has_one_graph_and_what_one_backend_trained_is_the_ancestor_under_another(program, folder):
    backends = [backend for backend in ("torch", "jax", "tensorflow") if importlib.util.find_spec(backend)]
    if len(backends) < 2:
        pytest.skip("only one backend is there")
    started = [program(TRAINED, backend, os.path.dirname(__file__), folder + "/runs", str(number))
               for number, backend in enumerate(backends, 1)]
    graphs = {backend: one.line() for backend, one in zip(backends, started)}
    assert len(set(graphs.values())) == 1, graphs
    ancestor = "None []"
    for number, trained in enumerate(started, 1):  # One after the other, each from what was stored before.
        trained.go_on()
        assert trained.line() == ancestor
        assert trained.line() == f"net@{number}"
        assert trained.end()[0] == 0
        ancestor = f"net@{number} ['a', 'norm']"
    with freshet.Repository(folder + "/runs") as repository:
        assert repository.lineage(f"net@{len(backends)}")[-1].version == "net@1"
