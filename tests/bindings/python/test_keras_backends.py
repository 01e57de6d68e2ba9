# SPDX-License-Identifier: Apache-2.0
"""Keras' backends beside each other. Run once: each test starts them all."""
import os

import pytest

pytest.importorskip("keras", minversion="3")

PRINT_GRAPH = """
    import json, os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras, freshet, freshet.keras as fk
    sys.path.insert(0, sys.argv[2])
    os.environ.setdefault("KERAS_BACKEND", sys.argv[1])
    import test_keras
    graph = fk.graph(test_keras.nested())
    graph.pop("framework_config")
    print(json.dumps(graph, sort_keys=True))
"""


def test_one_model_has_one_graph_under_all_backends(program):
    graphs = {}
    for backend in ("tensorflow", "jax", "torch"):
        try:
            __import__(backend)
        except ImportError:
            continue
        graphs[backend] = program(PRINT_GRAPH, backend, os.path.dirname(__file__)).line()
    assert len(graphs) >= 2 or pytest.skip("only one backend is there")
    assert len(set(graphs.values())) == 1, graphs
