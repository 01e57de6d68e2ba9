# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Keras' models while fit() trains: training that is broken off goes on as if nothing had been."""
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

keras = pytest.importorskip("keras", minversion="3")
pytest.importorskip(os.environ["KERAS_BACKEND"])

import freshet
from freshet.keras import CheckpointCallback

X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)


def network(start=1):
    keras.utils.set_random_seed(start)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a"),
                              keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.2, seed=7, name="drop"),
                              keras.layers.Dense(1, name="b")])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return model


def fit(model, epochs, *callbacks):
    return model.fit(X, Y, epochs=epochs, batch_size=16, shuffle=False, verbose=0, callbacks=list(callbacks))


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables
            if all(variable is not metric for metric in model.metrics_variables)]


def expect_equal(model, want):
    got = values(model)
    assert len(got) == len(want)
    for one, other in zip(got, want):
        np.testing.assert_array_equal(one, other)


def test_training_goes_on_as_if_nothing_had_been(tmp_path):
    model = network()
    fit(model, 4)
    want = values(model)

    model = network()
    callback = CheckpointCallback("digits", local=str(tmp_path), when_behind="wait")
    fit(model, 2, callback)
    assert callback.restored is None and callback.step == 6 and callback.blocked > 0
    callback.close()

    model = network(start=5)
    callback = CheckpointCallback("digits", local=str(tmp_path), when_behind="wait")
    history = fit(model, 4, callback)
    assert callback.restored.step == 6
    assert history.epoch == [2, 3]
    assert callback.step == 12
    callback.close()
    expect_equal(model, want)
    # There is nothing left to train.
    model = network(start=6)
    callback = CheckpointCallback("digits", local=str(tmp_path))
    fit(model, 4, callback)
    callback.close()
    expect_equal(model, want)


def test_batches_count(tmp_path):
    model = network()
    callback = CheckpointCallback("digits", every=2, local=str(tmp_path), when_behind="wait")

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if callback.step == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, 9, callback, Stop())
    callback.close()
    model = network()
    callback = CheckpointCallback("digits", every=2, local=str(tmp_path))
    history = fit(model, 3, callback)
    assert callback.restored.step == 4
    assert history.epoch == [1, 2], "training goes on with the epoch that was under way"
    assert callback.step == 4 + 2 * 3
    callback.close()


def test_wrong_use_names_what_is_wrong(tmp_path):
    with pytest.raises(freshet.InvalidArgument, match="every"):
        CheckpointCallback("digits", every=0, local=str(tmp_path))
    callback = CheckpointCallback("digits", local=str(tmp_path))
    callback.close()  # Nothing was begun.
    fit(network(), 1, callback)
    callback.close()
    wider = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, name="a")])
    wider.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    with pytest.raises(freshet.FailedPrecondition, match="a/kernel"):
        fit(wider, 1, CheckpointCallback("digits", local=str(tmp_path)))
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="other")])
    other.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    with pytest.raises(freshet.FailedPrecondition, match="other/"):
        fit(other, 1, CheckpointCallback("digits", local=str(tmp_path)))
