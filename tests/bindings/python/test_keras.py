# SPDX-License-Identifier: Apache-2.0
"""Keras: published while it trains, loaded, attached, transferred. Run for each backend."""
import os
import threading

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

keras = pytest.importorskip("keras", minversion="3")
pytest.importorskip(os.environ["KERAS_BACKEND"])

import freshet
import freshet.keras as fk
from conftest import PATIENCE, eventually
from freshet._keras_graph import counterparts
from keras_models import X, Y, arrays, equal, nested, small


def test_a_model_is_filled_from_a_repository_also_with_a_map_of_names(folder):
    repository = freshet.Repository(os.path.join(folder, "repository"))
    trained = small()
    repository.put("net", fk._arrays_of(fk._variables_of(trained)))
    model = small()
    assert fk.load(model, repository, "net@1") == "net@1" and equal(model, trained)
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.BatchNormalization(name="norm"),
                              keras.layers.Dense(1, name="last")])
    before = [np.array(keras.ops.convert_to_numpy(variable)) for variable in other.weights]
    with pytest.raises(freshet.FailedPrecondition, match="net@1"):
        fk.load(other, repository, "net")
    with pytest.raises(freshet.FailedPrecondition, match="net@1"):
        fk.load(other, repository, "net", names={"first": "a"})
    with pytest.raises(freshet.NotFound, match="net@1 has no tensor c/kernel for .*last/kernel"):
        fk.load(other, repository, "net", names={"first": "a", "last": "c"})
    with pytest.raises(freshet.NotFound, match="no tensor or layer second"):
        fk.load(other, repository, "net", names={"second": "a"})
    assert all(np.array_equal(one, keras.ops.convert_to_numpy(variable)) for one, variable in zip(before, other.weights))
    fk.load(other, repository, "net", names={"first": "a", "last/kernel": "b/kernel", "last/bias": "b/bias"})
    assert equal(other, trained)
    repository.close()


@pytest.mark.parametrize("how, count", [({}, 3), ({"every": 2}, 6), ({"every": 5}, 3), ({"every": 100}, 1)])
def test_the_callback_publishes(how, count):
    model = small()
    callback = fk.PublishCallback("k", **how)
    with freshet.Subscriber("k") as subscriber:
        model.fit(X, Y, batch_size=16, epochs=3, verbose=0, callbacks=[callback])
        assert callback.versions == list(range(1, count + 1)) and callback.blocked > 0
        subscriber.wait_for(count, PATIENCE)
        snapshot = subscriber.snapshot()
        assert snapshot.step == 12 and "loss" in snapshot.metrics, "the end of fit() is served"
        for variable in model.weights:
            np.testing.assert_array_equal(snapshot[variable.path], keras.ops.convert_to_numpy(variable))
    callback.close()


def test_a_metric_with_a_number_for_each_class_is_left_out():
    model = small(out=2)
    model.compile(optimizer="sgd", loss="mse", metrics=[keras.metrics.F1Score(), "mae"])
    callback = fk.PublishCallback("k")
    with freshet.Subscriber("k") as subscriber:
        model.fit(X, np.concatenate([Y, 1 - Y], axis=1), epochs=1, verbose=0, callbacks=[callback])
        subscriber.wait_for(1, PATIENCE)
        assert sorted(subscriber.snapshot().metrics) == ["loss", "mae"]
    callback.on_train_batch_end(0, {"loss": np.ones(3), "mae": 1.0})  # A training step of the program's own.
    callback.close()


def test_each_version_has_the_weights_of_its_step():
    """Also where the backend computes the next step in the memory of this one."""
    recorded = {}

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            recorded[len(recorded) + 1] = {variable.path: np.array(keras.ops.convert_to_numpy(variable))
                                           for variable in self.model.weights}

    model = small()
    callback = fk.PublishCallback("k", every=1)
    callback.set_model(model)
    callback.on_train_begin()
    with freshet.Subscriber("k", every=True) as subscriber:
        assert eventually(lambda: callback._publisher.stat()["subscribers"])
        model.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[Recorder(), callback])
        assert callback.versions == list(range(1, 25)) and len(recorded) == 24
        for version in callback.versions:
            with subscriber.next(PATIENCE) as snapshot:
                assert snapshot.version == snapshot.step == version
                for path, array in recorded[version].items():
                    np.testing.assert_array_equal(snapshot[path], array)
    callback.close()


class AtEpochs:
    """A scheduler without a clock."""

    def __init__(self, schedule, **how):
        pass

    def observe(self, step, loss, *, epoch_end=False):
        return epoch_end

    def published(self, seconds):
        pass


def test_the_callback_follows_a_schedule_and_says_what_is_wrong(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(fk, "Scheduler", AtEpochs)
        callback = fk.PublishCallback("epochs", schedule="epoch")
        small().fit(X, Y, batch_size=16, epochs=3, verbose=0, callbacks=[callback])
        assert callback.versions == [1, 2, 3]
        callback.close()
    callback = fk.PublishCallback("k", schedule="every:3")
    small().fit(X, Y, batch_size=16, epochs=3, verbose=0, callbacks=[callback])
    # Four are due; a scheduler leaves out those with which the loop would stand still longer than it trains.
    assert callback.versions in [list(range(1, count + 1)) for count in (1, 2, 3, 4)]
    callback.close()
    for wrong in (0, "batch", True, 1.5):
        with pytest.raises(freshet.InvalidArgument, match="every"):
            fk.PublishCallback("k", every=wrong)
    with pytest.raises(freshet.InvalidArgument, match="resume"):
        fk.PublishCallback("k", resume="runs/")
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile(optimizer="sgd", loss="mse")
    callback = fk.PublishCallback("k", optimizer=True)
    callback.set_model(unbuilt)
    with pytest.raises(freshet.FailedPrecondition, match="build and compile"):
        callback.on_train_begin()


def test_weights_are_saved_and_loaded_all_or_none():
    model = small()
    for version in range(1, 6):
        model.weights[0].assign_add(keras.ops.ones((4, 3)))
        assert fk.save_weights(model, "w") == version
        other = small()
        assert fk.load_weights(other, "w") == version and equal(model, other)
    made = fk.load_model("w")
    assert made.name == model.name and equal(made, model)
    assert fk.save_weights(small(units=4), "w") == 6 and fk.load_model("w").layers[0].units == 4
    assert fk.save_weights(model, "w") == 7
    third = small()
    before = [keras.ops.convert_to_numpy(variable).copy() for variable in third.weights]
    fk.load_weights(third, "w", layers=["a"])
    assert np.array_equal(keras.ops.convert_to_numpy(third.weights[0]), keras.ops.convert_to_numpy(model.weights[0]))
    assert np.array_equal(keras.ops.convert_to_numpy(third.weights[-2]), before[-2])
    with pytest.raises(freshet.NotFound, match="no layer c"):
        fk.load_weights(third, "w", layers=["c"])
    misfit = small(out=2)
    before = [keras.ops.convert_to_numpy(variable).copy() for variable in misfit.weights]
    with pytest.raises(freshet.FailedPrecondition, match="tensor .*b/kernel"):
        fk.load_weights(misfit, "w")
    assert all(np.array_equal(keras.ops.convert_to_numpy(now), then) for now, then in zip(misfit.weights, before))


def test_a_layer_that_the_program_named_gets_its_own_weights():
    """Keras counts automatic names on, the model's too."""
    def dense(*names):
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4, name=name) for name in names)])

    saved = dense("a", "x", None, None)
    fk.save_weights(saved, "named")
    array = lambda model, at: keras.ops.convert_to_numpy(model.layers[at].kernel)
    other = dense("x", None, "a", None)
    untouched = array(other, 0)
    fk.load_weights(other, "named", layers=["a"])
    assert np.array_equal(array(other, 2), array(saved, 0)) and np.array_equal(array(other, 0), untouched)
    fk.load_weights(other, "named")
    for mine, theirs in [(0, 1), (1, 2), (2, 0), (3, 3)]:
        assert np.array_equal(array(other, mine), array(saved, theirs))
    with pytest.raises(freshet.FailedPrecondition, match="tensor .*/y/kernel"):
        fk.load_weights(dense("a", "y", None, None), "named")

    def recurrent(name):
        return keras.Sequential([keras.Input((2, 4)), keras.layers.Bidirectional(keras.layers.LSTM(3)), keras.layers.Dense(1)],
                                name=name)

    saved, other = recurrent("trainer"), recurrent("server")
    fk.save_weights(saved, "counted")
    fk.load_weights(other, "counted")
    assert equal(saved, other)


@pytest.mark.parametrize("first", [0, 8, 98])
def test_names_that_keras_made_are_paired_by_what_it_counted(first):
    """A file may be in order of its names, where dense_10 is before dense_9."""
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4)])
    model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(3)), inner])
    paths, layers = [variable.path for variable in model.weights], [*inner.layers, *model.layers[:3]]
    counted = lambda at: f"dense_{first + at}" if first + at else "dense"
    came = {path: path.replace(f"{model.name}/", "sequential_70/").replace(f"{layer.name}/", f"{counted(at)}/")
            for at, layer in enumerate(layers) for path in paths if f"/{layer.name}/" in path}
    assert len(came) == 10 and counterparts(model, paths, sorted(came.values())) == came


def test_a_version_of_a_larger_network_is_refused_unless_it_is_asked_for(folder, caplog):
    larger = keras.Sequential([*small().layers, keras.layers.Dense(1, name="c")])
    larger.build((None, 4))
    cut = small()
    fk.save_weights(larger, "larger")
    with pytest.raises(freshet.FailedPrecondition, match="tensor .*c/kernel"):
        fk.load_weights(cut, "larger")
    assert not np.array_equal(keras.ops.convert_to_numpy(cut.weights[0]), keras.ops.convert_to_numpy(larger.weights[0]))
    fk.load_weights(cut, "larger", layers=["a"])
    assert np.array_equal(keras.ops.convert_to_numpy(cut.weights[0]), keras.ops.convert_to_numpy(larger.weights[0]))
    with freshet.Subscriber("larger") as subscriber:
        subscriber.wait_for(1, PATIENCE)
        attached = fk.attach(cut, subscriber)
        attached(X)
        assert attached.version == 0 and any("c/kernel" in record.getMessage() for record in caplog.records)
        lax = fk.attach(small(), subscriber, strict=False)
        lax(X)
        assert lax.version == 1
    assert fk.load_weights(cut, "larger", strict=False) == 1 and equal(cut, keras.Sequential(larger.layers[:-1]))

    def run(optimizer, **how):
        model = small()
        model.compile(optimizer=optimizer, loss="mse")
        callback = fk.PublishCallback("state", optimizer=True, resume=(repository, "state"), **how)
        with repository.sink("state") as sink:
            try:
                model.fit(X, Y, verbose=0, epochs=callback.step + 1, callbacks=[callback])
                sink.wait_for(callback.versions[-1], PATIENCE) if callback.versions else None
            finally:
                callback.close()
        return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))

    with freshet.Repository(folder + "/runs") as repository:
        run(keras.optimizers.Adam(0.001))
        with pytest.raises(freshet.FailedPrecondition, match="by Adam, this run has SGD"):
            run(keras.optimizers.SGD(0.5))
        assert run(keras.optimizers.SGD(0.5), strict=False) == pytest.approx(0.001)


def test_a_model_is_made_of_what_was_published_or_stored(folder):
    model = nested()
    with freshet.Publisher("net", graph=fk.graph(model)) as publisher:
        publisher.publish(arrays(model))
        made = fk.load_model("net")
        assert made.name == "nested" and equal(made, model)
        inputs = [X[:5], X[5:10]]
        for one, other in zip(made.predict(inputs, verbose=0), model.predict(inputs, verbose=0)):
            np.testing.assert_array_equal(one, other)
    with freshet.Repository(folder + "/runs") as repository:
        version = fk.transfer(model, repository).store("net")
        assert equal(fk.load_model(version, repository), model)
        plain = repository.put("plain", {"w": np.ones(3, np.float32)})
        with pytest.raises(freshet.FailedPrecondition, match="no Keras config"):
            fk.load_model(plain, repository)


def test_a_config_with_code_runs_only_where_that_is_asked_for(folder):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Lambda(lambda x: x + 1), keras.layers.Dense(1)])
    with freshet.Repository(folder + "/runs") as repository:
        version = fk.transfer(model, repository).store("code")
        with pytest.raises(freshet.InvalidArgument, match="(?i)lambda"):
            fk.load_model(version, repository)
        made = fk.load_model(version, repository, safe_mode=False)
        np.testing.assert_array_equal(made.predict(X, verbose=0), model.predict(X, verbose=0))
    with freshet.Publisher("code", graph=fk.graph(model)) as publisher:
        publisher.publish(arrays(model))
        assert equal(fk.load_model("code", safe_mode=False), model)


def test_the_callback_follows_the_learned_schedule():
    callback = fk.PublishCallback("online", schedule="online")
    model = small()
    with freshet.Subscriber("online") as subscriber:
        model.fit(X, Y, batch_size=4, epochs=10, verbose=0, callbacks=[callback])
        assert callback.step == 160 and 1 < len(callback.versions) <= 160, "in the middle, and at the end"
        subscriber.wait_for(callback.versions[-1], PATIENCE)
        with subscriber.snapshot() as snapshot:
            assert snapshot.step <= 160 and "loss" in snapshot.metrics
    callback.close()


def test_an_attached_model_follows(caplog):
    trained, served = small(), small()
    with freshet.Publisher("f") as publisher, freshet.Subscriber("f") as subscriber:
        attached = fk.attach(served, subscriber)
        own = served.predict(X, verbose=0)
        np.testing.assert_array_equal(attached.predict(X, verbose=0), own)
        for _ in range(2):
            trained.fit(X, Y, verbose=0)
            receipt = publisher.publish(arrays(trained))
            subscriber.wait_for(receipt.version, PATIENCE)
            np.testing.assert_array_equal(attached.predict(X, verbose=0), trained.predict(X, verbose=0))
            assert attached.version == receipt.version
        misfit = fk.attach(small(units=7), subscriber)
        for _ in range(2):
            misfit(X)
        assert sum("stays at version 0" in record.getMessage() for record in caplog.records) == 1
        with pytest.raises(freshet.FailedPrecondition, match="tensor .*kernel"):
            misfit.refresh()


def test_attach_waits_for_a_first_version_or_says_whose_did_not_come(run_dir):
    served = small()
    with freshet.Publisher("f") as publisher, freshet.Subscriber("f") as subscriber:
        with pytest.raises(freshet.TimedOut, match=f"^f .*{run_dir}"):
            fk.attach(served, subscriber, wait=0.01)
        assert "predict" not in vars(served)
        trained = small()
        receipt = publisher.publish(arrays(trained))
        with fk.attach(served, subscriber, wait=PATIENCE) as attached:
            assert attached.version == receipt.version and equal(served, trained), "before any prediction"


def test_the_model_itself_follows_and_a_version_can_be_held():
    trained, served = small(), small()

    def serve(value):
        trained.layers[-1].bias.assign([value])
        receipt = publisher.publish(arrays(trained))
        subscriber.wait_for(receipt.version, PATIENCE)
        return receipt.version, trained.predict(X, verbose=0), float(trained.evaluate(X, Y, verbose=0))

    def in_thread(call):
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it waits for somebody"

    with freshet.Publisher("f") as publisher, freshet.Subscriber("f") as subscriber:
        attached = fk.attach(served, subscriber)
        served.predict(X, verbose=0)
        assert attached.answered == 0
        first, answer, loss = serve(1.0)
        np.testing.assert_array_equal(served.predict(X, verbose=0), answer)
        assert attached.answered == attached.version == first
        second, answer, loss = serve(2.0)
        assert float(served.evaluate(X, Y, verbose=0)) == loss and attached.answered == second
        third, answer, _ = serve(3.0)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(served(X)), answer, rtol=1e-5)
        assert attached.answered == third
        with attached.hold() as version:
            assert version == third
            serve(4.0)
            with attached.hold() as inner:
                assert inner == third and attached.refresh() == third
            np.testing.assert_array_equal(served.predict(X, verbose=0), answer)
            in_thread(lambda: np.testing.assert_array_equal(attached.predict(X, verbose=0), answer))
            assert attached.answered == third
        fifth, answer, _ = serve(5.0)
        with attached:
            np.testing.assert_array_equal(served.predict(X, verbose=0), answer)
        serve(6.0)
        np.testing.assert_array_equal(served.predict(X, verbose=0), answer)
        assert attached.answered == fifth and "predict" not in vars(served)


def test_an_attached_model_goes_on_when_its_subscriber_is_closed_and_ends_when_it_is_detached(caplog):
    trained, served = small(), small()
    with freshet.Publisher("f") as publisher:
        with freshet.Subscriber("f") as subscriber:
            attached = fk.attach(served, subscriber)
            subscriber.wait_for(publisher.publish(arrays(trained)).version, PATIENCE)
            attached(X)
            detached = fk.attach(small(), subscriber)
            detached.detach()
            detached(X)
            assert detached.refresh() == detached.version == 0
        for _ in range(3):
            attached(X)
            np.testing.assert_array_equal(attached.predict(X, verbose=0), trained.predict(X, verbose=0))
        assert sum("closed" in record.getMessage() for record in caplog.records) == 1 and attached.version == 1
        with pytest.raises(freshet.FailedPrecondition, match="closed"):
            attached.refresh()


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "torch", reason="the threads of the other backends do not outlive a fork")
def test_a_forked_child_goes_on_with_the_model_it_has(caplog):
    served = small()
    with freshet.Publisher("f") as publisher, freshet.Subscriber("f") as subscriber:
        attached = fk.attach(served, subscriber)
        subscriber.wait_for(publisher.publish(arrays(served)).version, PATIENCE)
        want = np.asarray(keras.ops.convert_to_numpy(attached(X[:1])))
        locked, leave = threading.Event(), threading.Event()

        def predicts():
            with attached._lock:
                locked.set()
                leave.wait(PATIENCE)

        thread = threading.Thread(target=predicts)
        thread.start()
        assert locked.wait(PATIENCE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                same = [np.array_equal(keras.ops.convert_to_numpy(attached(X[:1])), want) for _ in range(2)]
                told = sum("forked" in record.getMessage() for record in caplog.records)
                code = 0 if same == [True, True] and told == 1 else 2
            finally:
                os._exit(code)
        leave.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_ctrl_c_in_the_middle_of_loading_leaves_a_whole_version(monkeypatch):
    model, other = small(), small()
    fk.save_weights(model, "whole")
    assign, calls = type(other.weights[0]).assign, []

    def interrupted(variable, value):
        calls.append(variable)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return assign(variable, value)

    monkeypatch.setattr(type(other.weights[0]), "assign", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fk.load_weights(other, "whole")
    assert equal(model, other)


def test_a_transfer_loads_and_freezes_the_common_prefix(folder):
    with freshet.Repository(folder + "/runs") as repository:
        first = fk.transfer(small(), repository)
        assert first.match is None and first.frozen == []
        parent = small()
        base = fk.transfer(parent, repository)
        parent.fit(X, Y, verbose=0)
        version = base.store("base", quality=0.5)
        child = small(out=2)
        moved = fk.transfer(child, repository)
        assert moved.match.version == version and moved.frozen == ["a", "norm"]
        assert repository.pins(version) != []
        assert np.array_equal(keras.ops.convert_to_numpy(child.weights[0]), keras.ops.convert_to_numpy(parent.weights[0]))
        child.compile(optimizer="sgd", loss="mse")
        child.fit(X, np.hstack([Y, Y]), verbose=0)
        stored = moved.store("child", quality=0.9)
        row = repository.lineage(stored)[0]
        assert row.ancestor == version and row.inherited_bytes > 0 and repository.pins(version) == []


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.scale = self.add_weight(shape=(2,), name="scale")

    def call(self, x):
        return self.dense(x) * self.scale


@pytest.mark.parametrize("make, traced_by", [(small, "keras"), (nested, "keras"), (Own, "layers")])
def test_a_graph_has_every_tensor_once(folder, make, traced_by):
    model = make()
    if make is Own:
        model(X)
    graph = fk.graph(model)
    keys = [tensor["key"] for layer in graph["layers"] for tensor in layer.get("tensors", {}).values()]
    assert graph["traced_by"] == traced_by and sorted(keys) == sorted(variable.path for variable in model.weights)
    with freshet.Repository(folder + "/runs") as repository:
        fk.transfer(model, repository).store("m")
        assert fk.transfer(model, repository).match.lcp_layers > 0


def test_what_was_mixed_up_is_named(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with freshet.Subscriber("m") as subscriber:
        for call, said in [(lambda: freshet.keras.attach(model, "m"), "subscriber.*freshet.Subscriber, not 'm'"),
                           (lambda: freshet.keras.attach(subscriber, model), "attach.model")]:
            with pytest.raises(freshet.InvalidArgument, match=said):
                call()
    place = str(tmp_path / "runs")  # A repository's place will do.
    assert freshet.keras.transfer(model, place).store("a").model == "a"
    with pytest.raises(freshet.NotFound):
        freshet.keras.load_model("nothing", repository=place)
