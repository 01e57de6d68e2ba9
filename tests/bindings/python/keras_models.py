# SPDX-License-Identifier: Apache-2.0
"""Models that tests of Keras share. Whoever imports this has chosen the backend."""
import keras
import numpy as np

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)


def small(units=3, out=1):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, activation="relu", name="a"),
                              keras.layers.BatchNormalization(name="norm"), keras.layers.Dense(out, name="b")])
    model.compile(optimizer="sgd", loss="mse")
    return model


def nested():
    a, b = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    shared = keras.layers.Dense(3, name="shared")
    inner = keras.Sequential([keras.layers.Dense(3, activation="tanh", name="in1"), keras.layers.Dropout(0.1, name="drop")],
                             name="inner")
    x = keras.layers.Add(name="sum")([shared(a), shared(b)])
    return keras.Model([a, b], [keras.layers.Dense(1, name="one")(inner(x) * 2.0), keras.layers.Dense(2, name="two")(x)],
                       name="nested")


def arrays(model):
    return {variable.path: keras.ops.convert_to_numpy(variable) for variable in model.weights}


def equal(model, other):
    return all(np.array_equal(keras.ops.convert_to_numpy(mine), keras.ops.convert_to_numpy(theirs))
               for mine, theirs in zip(model.weights, other.weights))
