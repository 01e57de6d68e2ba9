# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Keras' models while fit() trains: training that is broken off goes on as if nothing had been."""
import functools
import os
import signal

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

keras = pytest.importorskip("keras", minversion="3")
pytest.importorskip(os.environ["KERAS_BACKEND"])

import freshet
import freshet._keras_fit
import freshet.keras as fk
from conftest import PATIENCE, eventually, full_disk
from freshet.keras import CheckpointCallback, PublishCallback

X = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
Y = (X.sum(axis=1, keepdims=True) > 0).astype(np.float32)


def network(start=1, at_once=1):
    keras.utils.set_random_seed(start)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a"),
                              keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.2, seed=7, name="drop"),
                              keras.layers.Dense(1, name="b")])
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"], steps_per_execution=at_once)
    return model


# TensorFlow's own shuffling has no state to ask for.
SHUFFLE = os.environ["KERAS_BACKEND"] != "tensorflow"


def fit(model, epochs, *callbacks, batch_size=16):
    return model.fit(X, Y, epochs=epochs, batch_size=batch_size, shuffle=SHUFFLE, verbose=0, callbacks=list(callbacks))


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in variables
            if all(variable is not metric for metric in model.metrics_variables)]


@functools.lru_cache(maxsize=None)
def undisturbed(epochs):
    """What a run comes to that nobody breaks off."""
    model = network()
    fit(model, epochs)
    return [value.copy() for value in values(model)]


def expect_equal(model, want):
    got = values(model)
    assert len(got) == len(want)
    for one, other in zip(got, want):
        np.testing.assert_array_equal(one, other)


def test_training_goes_on_as_if_nothing_had_been(tmp_path):
    want = undisturbed(4)
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


def test_a_later_fit_begins_where_it_says(tmp_path):
    callback = CheckpointCallback("digits", every=3, local=str(tmp_path), when_behind="wait")
    model = network()
    fit(model, 2, callback)  # Three batches are an epoch: its end is what is left of it.
    callback.close()
    model = network()
    callback = CheckpointCallback("digits", every=3, local=str(tmp_path))
    assert fit(model, 4, callback).epoch == [1, 2, 3] and callback.step == 12
    callback.close()
    assert fit(model, 2).epoch == [0, 1]


class Stop(keras.callbacks.Callback):
    """Breaks training off after so many batches."""

    def __init__(self, batches):
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_training_goes_on_in_the_middle_of_an_epoch(tmp_path):
    want = undisturbed(3)
    model = network()
    callback = CheckpointCallback("digits", every=2, local=str(tmp_path), when_behind="wait")
    with pytest.raises(KeyboardInterrupt):
        fit(model, 3, callback, Stop(5))
    callback.close()
    model = network(start=5)
    callback = CheckpointCallback("digits", every=2, local=str(tmp_path))
    history = fit(model, 3, callback)
    assert callback.restored.step == 4
    assert history.epoch == [1, 2], "training goes on with the epoch that was under way"
    assert callback.step == 9
    callback.close()
    expect_equal(model, want)


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] == "torch", reason="PyTorch has one batch in each execution")
@pytest.mark.parametrize("executions, step", [(3, 10), (4, 12)])
def test_training_goes_on_where_an_execution_of_several_batches_ended(tmp_path, executions, step):
    """Six batches are an epoch: an execution of four, and one of two."""
    model = network(at_once=4)
    fit(model, 3, batch_size=8)
    want = values(model)
    model = network(at_once=4)
    callback = CheckpointCallback("digits", every=4, local=str(tmp_path), when_behind="wait")
    with pytest.raises(KeyboardInterrupt):
        fit(model, 3, callback, Stop(executions), batch_size=8)
    callback.close()
    if step == 10:
        other = network(at_once=3)
        before = other.get_weights()
        with pytest.raises(freshet.Unsupported, match="after 4 batches.*steps_per_execution=3"):
            fit(other, 3, CheckpointCallback("digits", local=str(tmp_path)), batch_size=8)
        for one, was in zip(other.get_weights(), before, strict=True):
            np.testing.assert_array_equal(one, was)
    model = network(start=5, at_once=4)
    callback = CheckpointCallback("digits", every=4, local=str(tmp_path), when_behind="wait")
    fit(model, 3, callback, batch_size=8)
    assert callback.restored.step == step and callback.step == 18
    callback.close()
    expect_equal(model, want)


@pytest.mark.parametrize("every, batches, step", [("epoch", 7, 6), (2, 5, 4), (1, 3, 3)])
def test_a_run_that_was_published_and_stored_goes_on_as_if_nothing_had_been(tmp_path, every, batches, step):
    want = undisturbed(4)
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        how = {"every": every, "optimizer": True, "resume": (repository, "digits")}
        model = network()
        callback = PublishCallback("digits", **how)
        with repository.sink("digits") as sink, freshet.Subscriber("digits") as server:
            with pytest.raises(KeyboardInterrupt):
                fit(model, 4, callback, Stop(batches))
            assert callback.resumed is None, "there was nothing yet"
            newest = callback.versions[-1]
            assert eventually(lambda: sink.status()["newest"] == newest)
            server.wait_for(newest, PATIENCE)
            with server.snapshot() as snapshot:
                assert sorted(snapshot) == sorted(variable.path for variable in model.weights)
        callback.close()
        assert repository.resume("digits").state.keys() >= {"fit/position", "rng/host", "rng/0"}

        model = network(start=5)
        callback = PublishCallback("digits", **how)
        fit(model, 4, callback)
        assert callback.resumed.step == step and callback.step == 12
        callback.close()
        expect_equal(model, want)

        # A model that is made of it has no optimizer; what learns from it neither.
        assert len(fk.load_model("digits", repository).weights) == len(model.weights)
        assert fk.transfer(network(), repository).match.lcp_layers == len(fk.graph(model)["layers"]) - 1, "inputs do not count"

        if every != "epoch":
            return
        # Weights and step alone.
        model = network(start=6)
        weights_only = PublishCallback("weights", resume=(repository, "digits"))
        fit(model, 1, weights_only)
        assert weights_only.resumed.step == step and weights_only.step == step + 3
        weights_only.close()
        with pytest.raises(freshet.NotFound):
            fit(network(), 1, PublishCallback("digits", resume=(repository, "digits@77")))
        with freshet.Publisher("plain", graph=fk.graph(model)) as publisher, repository.sink("plain") as sink:
            publisher.publish({variable.path: keras.ops.convert_to_numpy(variable) for variable in model.weights})
            assert eventually(lambda: sink.status()["newest"] == 1)
        before = values(model)
        with pytest.raises(freshet.FailedPrecondition, match="without its optimizer"):
            fit(model, 1, PublishCallback("digits", optimizer=True, resume=(repository, "plain")))
        expect_equal(model, before)


def test_a_model_that_lost_a_layer_says_so(tmp_path):
    model = network()
    callback = CheckpointCallback("digits", local=str(tmp_path), when_behind="wait")
    fit(model, 1, callback)
    callback.close()
    less = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="a"),
                             keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.2, seed=7, name="drop")])
    less.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    with pytest.raises(freshet.FailedPrecondition, match="b/kernel.*allow_left"):
        fit(less, 1, CheckpointCallback("digits", local=str(tmp_path)))
    callback = CheckpointCallback("digits", allow_left=True, local=str(tmp_path))
    fit(less, 2, callback)
    callback.close()
    assert callback.restored.step == 3 and "b/kernel" in callback.restored.left


KILLED = """
    import os, signal, sys
    sys.path.insert(0, sys.argv[1])
    import freshet
    from test_keras_checkpoints import *

    class Killed(keras.callbacks.Callback):
        left = 8  # In the third epoch, whose middle it is.

        def on_train_batch_end(self, batch, logs=None):
            self.left -= 1
            if self.left == 0:
                assert eventually(is_there)
                os.kill(os.getpid(), signal.SIGKILL)

    repository = freshet.Repository(sys.argv[2] + "/runs")
    published = PublishCallback("digits", every=2, optimizer=True, resume=(repository, "digits"))
    sink = repository.sink("digits")
    checkpointed = CheckpointCallback("digits", every=2, local=sys.argv[2] + "/local", when_behind="wait")
    is_there = lambda: sink.status()["newest"] >= 1 and checkpointed.checkpointer.poll(1, "local")
    fit(network(), 4, published, checkpointed, Killed())
"""


def test_a_run_that_was_killed_and_resumed_equals_an_undisturbed_one(tmp_path, program):
    """Whatever of it was stored by then, as published versions and as checkpoints."""
    code, out, err = program(KILLED, os.path.dirname(__file__), str(tmp_path)).end()
    assert code == -signal.SIGKILL, (out, err)
    model = network(start=5)
    with freshet.Repository(str(tmp_path / "runs")) as repository:
        callback = PublishCallback("digits", every=2, optimizer=True, resume=(repository, "digits"))
        fit(model, 4, callback)
        assert callback.resumed.step > 0 and callback.step == 12
        callback.close()
    expect_equal(model, undisturbed(4))

    model = network(start=6)
    callback = CheckpointCallback("digits", every=2, local=str(tmp_path / "local"), when_behind="wait")
    fit(model, 4, callback)
    assert callback.restored.step > 0 and callback.step == 12
    callback.close()
    expect_equal(model, undisturbed(4))


def shuffled(**how):
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(48, **how).batch(16)


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "tensorflow", reason="TensorFlow's own shuffling")
@pytest.mark.parametrize("data, every, batches, step", [
    (lambda: {"x": X, "y": Y, "batch_size": 16, "shuffle": True}, 3, 7, 6),
    (lambda: {"x": shuffled()}, 3, 7, 6),
    (lambda: {"x": shuffled()}, 2, 8, 8),  # Where an epoch ends.
    (lambda: {"x": shuffled(seed=3)}, 3, 7, 6),
    (lambda: {"x": shuffled(seed=3, reshuffle_each_iteration=False)}, 3, 7, 6),
], ids=["arrays", "dataset", "epoch", "seed", "once"])
def test_with_one_seed_tensorflow_shuffles_as_if_nothing_had_been(tmp_path, data, every, batches, step):
    """In the middle of the third epoch, and at its begin."""
    model = network()
    model.fit(**data(), epochs=4, verbose=0)
    want = values(model)
    model = network()
    callback = CheckpointCallback("digits", every=every, local=str(tmp_path), when_behind="wait")
    with pytest.raises(KeyboardInterrupt):
        model.fit(**data(), epochs=4, verbose=0, callbacks=[callback, Stop(batches)])
    callback.close()
    model = network()
    model.set_weights([weights + 1 for weights in model.get_weights()])
    callback = CheckpointCallback("digits", every=every, local=str(tmp_path), when_behind="wait")
    model.fit(**data(), epochs=4, verbose=0, callbacks=[callback])
    assert callback.restored.step == step and callback.step == 12
    callback.close()
    expect_equal(model, want)


@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_shuffling_that_cannot_be_gone_on_with_is_told_once(tmp_path, caplog, monkeypatch, shuffle):
    monkeypatch.setattr(freshet._keras_fit, "_warned_of_order", False)
    model = network()
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        model.fit(X, Y, epochs=1, shuffle=shuffle, verbose=0, callbacks=[callback := PublishCallback("seeded", optimizer=True)])
        callback.close()
        assert not caplog.records, "with a seed it can"
        import tensorflow
        tensorflow.random.set_seed(None)
    for callback in (CheckpointCallback("digits", local=str(tmp_path)), PublishCallback("digits", optimizer=True)):
        model.fit(X, Y, epochs=1, batch_size=16, shuffle=shuffle, verbose=0, callbacks=[callback])
        callback.close()
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[callback := PublishCallback("digits")])  # Nobody goes on from it.
    callback.close()
    told = sum("shuffles" in record.getMessage() for record in caplog.records)
    assert told == (1 if shuffle and os.environ["KERAS_BACKEND"] == "tensorflow" else 0)


def test_wrong_use_names_what_is_wrong(tmp_path):
    with pytest.raises(freshet.InvalidArgument, match="every"):
        CheckpointCallback("digits", every=0, local=str(tmp_path))
    callback = CheckpointCallback("digits", local=str(tmp_path))
    callback.close()  # Nothing was begun.
    fit(network(), 1, callback)
    callback.close()
    wrong = network()
    wrong.add(keras.layers.Dense(1, name="more"))
    wrong.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    again = CheckpointCallback("digits", local=str(tmp_path))
    for _ in range(2):  # What failed once is no state that trains on.
        with pytest.raises(freshet.FailedPrecondition):
            fit(wrong, 1, again)
    wider = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, name="a")])
    wider.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    with pytest.raises(freshet.FailedPrecondition, match="a/kernel"):
        fit(wider, 1, CheckpointCallback("digits", local=str(tmp_path)))
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, name="other")])
    other.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
    with pytest.raises(freshet.FailedPrecondition, match="other/"):
        fit(other, 1, CheckpointCallback("digits", local=str(tmp_path)))


def test_a_job_whose_last_version_is_not_stored_ends_with_its_error(tmp_path, caplog):
    model = keras.Sequential([keras.Input((200,)), keras.layers.Dense(200)])
    model.compile("sgd", "mse")
    callback = CheckpointCallback("dense", local=str(tmp_path), when_behind="wait")
    with full_disk():
        model.fit(np.zeros((4, 200), np.float32), np.zeros((4, 200), np.float32), epochs=2, verbose=0, callbacks=[callback])
        with pytest.raises(freshet.Error, match="version 2, the last one, is stored nowhere"):
            callback.close()
    assert eventually(lambda: caplog.text.count("did not reach local") == 1)
    callback.close()  # It is closed already.
