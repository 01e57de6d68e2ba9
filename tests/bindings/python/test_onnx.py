# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime with the newest weights: what NumPy computes from each version, in both modes."""
import threading

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

import freshet
import freshet.onnx
from conftest import eventually
from onnx import TensorProto, helper
from onnx_models import affine, architecture, follows, model, published, saved, value, weights

X = np.arange(8, dtype=np.float32).reshape(2, 4)
both = pytest.mark.parametrize("mode", ["inputs", "session"])
ways = pytest.mark.parametrize("how", [{}, {"mode": "session"}, {"mode": "session", "sess_options": ort.SessionOptions()},
                                       {"mode": "session", "sess_options": ort.SessionOptions}],
                               ids=["inputs", "session", "session-options", "session-function"])


@ways
def test_each_run_answers_with_the_newest_weights(pair, folder, how):
    path = saved(folder, affine(**weights(0)))
    with freshet.onnx.Session(path, pair[1], **how) as session:
        for seed in (1, 2, 3):
            now = weights(seed)
            follows(session, published(pair, now))
            answers = session.run(["y"], {"x": X})
            assert type(answers[0]) is np.ndarray and isinstance(answers, list) and len(answers) == 1
            assert answers.weight_version == session.version == seed
            np.testing.assert_allclose(answers[0], X @ now["w"] + now["b"], rtol=1e-5)
        assert session.status()["sessions_built"] == (3 if how else 1)
        assert session.status()["bound"] == ["b", "w"] and session.status()["kept"] == []


def test_weights_are_bound_where_the_version_lies(pair, folder):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1]) as session:
        published(pair, weights(1))
        session.run(None, {"x": X})
        with pair[1].snapshot() as snapshot:
            for name in ("w", "b"):
                assert session._served.values[name].data_ptr() == snapshot[name].ctypes.data
            binding = session._served._bindings[0]
            assert binding._bound_inputs["w"].data_ptr() == snapshot["w"].ctypes.data
        bindings = session._served._bindings[:]
        session.run(None, {"x": X})
        assert session._served._bindings == bindings  # Made once a version, not once a run.


def test_a_run_has_its_version_to_the_end(pair, folder):
    """Many steps of a loop read the weights while newer versions come: as many as the publisher has room for, and more."""
    steps = 20000
    body = helper.make_graph([helper.make_node("Add", ["sum", "w"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
                             "body", [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("sum", shape=[8])],
                             [value("on", TensorProto.BOOL, []), value("next", shape=[8])])
    nodes = [helper.make_node("Loop", ["n", "yes", "x"], ["z"], body=body), helper.make_node("Mul", ["z", "one"], ["y"])]
    made = model(nodes, [value("x", shape=[8]), value("n", TensorProto.INT64, [])], [value("y", shape=[8])],
                 {"w": np.zeros(8, np.float32), "one": np.zeros(8, np.float32), "yes": np.array(True)})
    with freshet.onnx.Session(saved(folder, made), pair[1]) as session:
        one = np.ones(8, np.float32)
        published(pair, {"w": one, "one": one})
        answers, overtaken, ended = [], [], threading.Event()

        def run():
            while not ended.is_set():
                answers.append(session.run(["y"], {"x": np.zeros(8, np.float32), "n": np.array(steps)}))
                overtaken.append(pair[1].version - answers[-1].weight_version)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        numbers = iter(range(2, 10**6))
        # Memory for a version that is not in use is written to by one of the next ones.
        assert eventually(lambda: max(overtaken, default=0) > 4 or not published(pair, {"w": next(numbers) * one, "one": one}))
        ended.set()
        for thread in threads:
            thread.join()
        assert max(answer.weight_version for answer in answers) > 1
        for answer in answers:
            assert (answer[0] == answer.weight_version * steps).all()


@both
def test_many_threads_get_whole_versions(pair, folder, mode):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        ones = {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
        published(pair, ones)
        wrong, seen, ended = [], set(), threading.Event()

        def run(seed):
            x = np.full((1 + seed, 4), seed, np.float32)
            last = 0
            while not ended.is_set():
                answers = session.run(None, {"x": x})
                version = answers.weight_version
                if answers[0].shape != (1 + seed, 3) or (answers[0] != version * (4 * seed + 1)).any() or version < last:
                    wrong.append((version, answers))
                last = version
                seen.add(version)

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for number in range(2, 30):
            version = published(pair, {name: number * array for name, array in ones.items()})
        follows(session, version)
        assert eventually(lambda: version in seen)
        ended.set()
        for thread in threads:
            thread.join()
        assert not wrong and len(seen) > 1


def test_requests_are_answered_while_a_session_is_built(pair, folder):
    builds, go_on = [], threading.Event()

    def options():
        builds.append(1)
        if len(builds) > 1:
            assert go_on.wait(60)
        return ort.SessionOptions()

    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], "session", sess_options=options) as session:
        follows(session, published(pair, weights(1)))
        published(pair, weights(2))
        assert eventually(lambda: len(builds) == 2)
        answers = session.run(["y"], {"x": X})
        assert answers.weight_version == 1
        np.testing.assert_allclose(answers[0], X @ weights(1)["w"] + weights(1)["b"], rtol=1e-5)
        with pytest.raises(freshet.TimedOut, match="being built"):
            session.wait_for(2, timeout=0.01)
        go_on.set()
        follows(session, 2)
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ weights(2)["w"] + weights(2)["b"], rtol=1e-5)


@both
def test_an_idle_session_holds_no_old_version(pair, folder, mode):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        for seed in range(1, 6):
            version = published(pair, weights(seed))
        assert eventually(lambda: session.version == version)
        assert eventually(lambda: [one["held"] for one in pair[0].stat()["subscribers"]] in ([[]], [[version]]))


@both
def test_a_publisher_of_another_process_that_is_killed(folder, program, mode):
    trainer = program("""
        import sys, numpy as np, freshet
        with freshet.Publisher("m") as publisher:
            for number in (1, 2):
                sys.stdin.readline()
                publisher.publish({"w": np.full((4, 3), number, np.float32), "b": np.zeros(3, np.float32)}, sync=True)
                print("published")
            sys.stdin.readline()
    """)
    with freshet.Subscriber("m") as subscriber, freshet.onnx.Session(saved(folder, affine(**weights(0))), subscriber, mode) as session:
        with pytest.raises(freshet.Unavailable, match="m"):
            session.run(None, {"x": X})
        for number in (1, 2):
            trainer.go_on()
            trainer.line()
            follows(session, number)
            assert (session.run(["h"], {"x": X})[0] == number * X.sum(1, keepdims=True)).all()
        trainer.process.kill()
        trainer.process.wait()
        assert eventually(lambda: not subscriber.status()["connected"])
        assert (session.run(["h"], {"x": X})[0] == 2 * X.sum(1, keepdims=True)).all()


@both
def test_going_back(folder, mode):
    with freshet.Publisher("m", keep_versions=3) as publisher, freshet.Subscriber("m") as subscriber, \
            freshet.onnx.Session(saved(folder, affine(**weights(0))), subscriber, mode) as session:
        for seed in (1, 2):
            follows(session, published((publisher, subscriber), weights(seed)))
        publisher.rollback(1)
        assert eventually(lambda: session.run(None, {"x": X}).weight_version == 1)
        np.testing.assert_allclose(session.run(["h"], {"x": X})[0], X @ weights(1)["w"], rtol=1e-5)


def test_runs_with_a_snapshot_of_ones_own(folder):
    path = saved(folder, affine(**weights(0)))
    with freshet.Publisher("m", keep_versions=3) as publisher, freshet.Subscriber("m", staged=True) as member, \
            freshet.onnx.Session(path, member) as session:
        follows(session, published((publisher, member), weights(1)))
        with member.snapshot() as snapshot:
            assert session.at(snapshot) is session._served
        publisher.publish(weights(2), sync=True)
        member.stage(2, 60)
        with member.staged_snapshot() as snapshot:
            staged = session.at(snapshot)
            assert session.at(snapshot) is staged and staged.version == 2
            assert staged.values["w"].data_ptr() == snapshot["w"].ctypes.data
        for names, feeds in ((["y"], {"x": X}), (["y"], {"x": X.tolist()})):
            answers = staged.run(names, feeds)
            assert answers.weight_version == 2
            np.testing.assert_allclose(answers[0], X @ weights(2)["w"] + weights(2)["b"], rtol=1e-5)
        assert session.run(["y"], {"x": X}).weight_version == 1
        member.commit()
        assert session.run(["y"], {"x": X}).weight_version == 2
        publisher.publish({"w": np.ones(3, np.float32)}, sync=True, graph=architecture({"w": np.ones(3, np.float32)}))
        member.stage(3, 60)
        with member.staged_snapshot() as snapshot, pytest.raises(freshet.FailedPrecondition, match="m@3.* tensor "):
            session.at(snapshot)
        with pytest.raises(freshet.InvalidArgument, match="Snapshot"):
            session.at(3)
        with freshet.onnx.Session(path, member, "session") as built, member.snapshot() as snapshot, \
                pytest.raises(freshet.Unsupported, match="inputs"):
            built.at(snapshot)


def test_a_shadow_of_a_session(folder):
    with freshet.Publisher("m", keep_versions=3) as publisher, freshet.Subscriber("m", staged=True) as member, \
            freshet.onnx.Session(saved(folder, affine(**weights(0))), member) as session, \
            freshet.serving.Shadow(member, 1, lambda a, b: (a.weight_version, b.weight_version) == (1, 2)) as shadow:
        follows(session, published((publisher, member), weights(1)))
        publisher.publish(weights(2), sync=True)
        member.stage(2, 60)
        for _ in range(5):
            assert shadow.handle(lambda snapshot, x: session.at(snapshot).run(["y"], {"x": x}), X).weight_version == 1
        assert eventually(lambda: shadow.counts["same"] == 5)


def test_a_module_of_pytorch(pair, folder):
    """The page's lines: the exporter keeps the parameters' names."""
    torch = pytest.importorskip("torch")
    import freshet.torch
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    for inputs in (torch.ones(2, 4), torch.ones(2, 5, 4)):  # Gemm; a product of a transposed matrix.
        path = f"{folder}/{inputs.dim()}.onnx"
        torch.onnx.export(module, (inputs,), path, dynamo=False, do_constant_folding=False)
        with freshet.onnx.Session(path, pair[1]) as session:
            for _ in range(2):
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter += torch.randn_like(parameter)
                    want = module(inputs).numpy()
                version = freshet.torch.publish(pair[0], module, sync=True).version
                follows(session, version)
                (fed,) = session.get_inputs()
                np.testing.assert_allclose(session.run(None, {fed.name: inputs.numpy()})[0], want, rtol=1e-4, atol=1e-5)
            assert session.status()["kept"] == []


@both
def test_what_is_not_published_has_the_files_values(pair, folder, mode):
    file = weights(0)
    with freshet.onnx.Session(saved(folder, affine(**file)), pair[1], mode) as session:
        follows(session, published(pair, {"w": weights(1)["w"]}))
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ weights(1)["w"] + file["b"], rtol=1e-5)
        assert session.status()["bound"] == ["w"] and session.status()["kept"] == ["b"]


@both
def test_other_names(pair, folder, mode):
    path = saved(folder, affine(**weights(0)))
    now = weights(1)
    with freshet.onnx.Session(path, pair[1], mode, names={"w": "layer.weight", "b": "layer.bias"}) as session:
        follows(session, published(pair, {"layer.weight": now["w"], "layer.bias": now["b"]}))
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ now["w"] + now["b"], rtol=1e-5)
    for names, what in (({"q": "w"}, "no initializer 'q'"), ({"w": 3}, "initializer w"), (["w"], "names")):
        with pytest.raises(freshet.InvalidArgument, match=what):
            freshet.onnx.Session(path, pair[1], mode, names=names)
    with freshet.onnx.Session(path, pair[1], mode, names={"w": "layer.weight", "b": "nobody"}) as session:
        with pytest.raises(freshet.FailedPrecondition, match=r"m@1 has no tensor nobody \(for the initializer b\)"):
            session.run(None, {"x": X})


@both
def test_versions_that_do_not_fit_are_told_once_and_not_served(pair, folder, caplog, mode):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        follows(session, published(pair, weights(1)))
        ones = np.ones((4, 3), np.float32)
        for wrong, why in (({"w": ones.astype(np.float64), "b": ones[0]}, "tensor w is f64, and .* needs f32"),
                           ({"w": ones.T.copy(), "b": ones[0]}, r"tensor w has shape \[3, 4\], and .* needs \[4, 3\]"),
                           ({"w": ones}, "has no tensor b"),
                           ({"w": ones, "b": ones[0], "c": ones}, "no initializer for c")):
            version = published(pair, wrong, graph=architecture(wrong))
            with pytest.raises(freshet.FailedPrecondition, match=f"m@{version}.*{why}"):
                session.wait_for(version, timeout=60)
            for _ in range(3):
                answers = session.run(["y"], {"x": X})
                assert answers.weight_version == 1
                np.testing.assert_allclose(answers[0], X @ weights(1)["w"] + weights(1)["b"], rtol=1e-5)
            status = session.status()
            assert (status["serving"], status["newest_known"], status["refused"]) == (1, version, version)
            # The line comes a moment after the error: the thread that builds sessions writes it outside of its lock.
            told = [0]

            def is_told(reason=status["reason"]):
                told[0] = sum(reason in record.getMessage() for record in list(caplog.records))
                return told[0] > 0

            assert eventually(is_told) and told == [1]
        follows(session, published(pair, weights(3), graph=architecture(weights(3))))
        assert session.status()["refused"] == 0 and session.status()["reason"] == ""
        np.testing.assert_allclose(session.run(["h"], {"x": X})[0], X @ weights(3)["w"], rtol=1e-5)


@both
def test_a_first_version_that_does_not_fit(pair, folder, mode):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        published(pair, {"v": np.ones(3, np.float32)})
        with pytest.raises(freshet.FailedPrecondition, match="m@1: .* no initializer for v"):
            session.run(None, {"x": X})
        assert session.version == 0 and session.status()["refused"] == 1


@both
def test_a_larger_version_is_taken_where_it_is_asked_for(pair, folder, mode):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode, strict=False) as session:
        follows(session, published(pair, {**weights(1), "step": np.ones(1)}))
        np.testing.assert_allclose(session.run(["h"], {"x": X})[0], X @ weights(1)["w"], rtol=1e-5)


@both
def test_a_version_with_more_of_the_initializers(pair, folder, mode):
    with freshet.onnx.Session(saved(folder, affine(**weights(0))), pair[1], mode) as session:
        follows(session, published(pair, {"w": weights(1)["w"]}))
        session.run(None, {"x": X})
        follows(session, published(pair, weights(2), graph=architecture(weights(2))))
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ weights(2)["w"] + weights(2)["b"], rtol=1e-5)


def test_files_that_are_no_models(pair, folder):
    def opened(content):
        path = f"{folder}/noise.onnx"
        with open(path, "wb") as file:
            file.write(content)
        return freshet.onnx.Session(path, pair[1])

    whole = affine(**weights(0)).SerializeToString()
    for content in (b"", b"\x00", b"no model", whole[:len(whole) // 2], np.random.default_rng(1).bytes(1000)):
        with pytest.raises(freshet.InvalidArgument, match="noise.onnx is no ONNX model"):
            opened(content)
    with pytest.raises(freshet.NotFound, match="nowhere.onnx"):
        freshet.onnx.Session(f"{folder}/nowhere.onnx", pair[1])
    with pytest.raises(freshet.IoError, match=folder):
        freshet.onnx.Session(folder, pair[1])
    with pytest.raises(freshet.InvalidArgument, match="path or bytes"):
        freshet.onnx.Session(3, pair[1])
    with pytest.raises(freshet.InvalidArgument, match="mode"):
        freshet.onnx.Session(whole, pair[1], "copies")
    with pytest.raises(freshet.InvalidArgument, match="freshet.Subscriber"):
        freshet.onnx.Session(whole, "m")


@both
def test_a_graph_that_onnxruntime_refuses(pair, mode):
    made = model([helper.make_node("NoSuchOperator", ["x", "w"], ["y"])], [value("x")], [value("y")], {"w": np.ones(3, np.float32)})
    with freshet.onnx.Session(made.SerializeToString(), pair[1], mode) as session:
        published(pair, {"w": np.ones(3, np.float32)})
        with pytest.raises(freshet.FailedPrecondition, match="onnxruntime builds no session of .*m@1.*NoSuchOperator"):
            session.run(None, {"x": X})


def test_close_and_what_comes_after(pair, folder):
    path = saved(folder, affine(**weights(0)))
    session = freshet.onnx.Session(path, pair[1])
    published(pair, weights(1))
    answers = session.run(["y"], {"x": X})
    session.close()
    session.close()
    assert session.closed and not session._follower.is_alive() and "closed" in repr(session)
    for call in (lambda: session.run(None, {"x": X}), session.status, session.get_inputs, session.get_outputs, session.wait_for):
        with pytest.raises(freshet.FailedPrecondition, match="closed"):
            call()
    for seed in range(2, 9):
        published(pair, weights(seed))
    np.testing.assert_allclose(answers[0], X @ weights(1)["w"] + weights(1)["b"], rtol=1e-5)
    follower = freshet.onnx.Session(path, pair[1])._follower  # Which nobody closes.
    assert eventually(lambda: not follower.is_alive())


@both
def test_a_closed_subscriber(folder, caplog, mode):
    with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
        session = freshet.onnx.Session(saved(folder, affine(**weights(0))), subscriber, mode)
        follows(session, published((publisher, subscriber), weights(1)))
    for _ in range(3):
        answers = session.run(["y"], {"x": X})
        assert answers.weight_version == 1
        np.testing.assert_allclose(answers[0], X @ weights(1)["w"] + weights(1)["b"], rtol=1e-5)
    assert mode == "session" or sum("m@1: its subscriber was closed" in one.getMessage() for one in caplog.records) == 1
    session.close()


def test_a_forked_child_is_told_so(folder, program):
    one = program("""
        import os, sys, numpy as np, freshet, freshet.onnx
        with freshet.Publisher("m") as publisher, freshet.Subscriber("m") as subscriber:
            session = freshet.onnx.Session(sys.argv[1], subscriber)
            tensors = {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
            publisher.publish(tensors, sync=True)
            session.wait_for(1)
            child = os.fork()
            if not child:
                try:
                    session.run(None, {"x": np.ones((1, 4), np.float32)})
                except freshet.FailedPrecondition as error:
                    session.close()
                    os._exit(7 if "fork" in str(error) else 1)
                os._exit(1)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            publisher.publish(tensors, sync=True)
            while session.version != 2:  # The follower lives on: the child did not stop it.
                pass
            print("followed")
    """, saved(folder, affine(**weights(0))))
    assert one.line() == "7" and one.line() == "followed"
    assert one.end()[0] == 0


def test_a_program_ends_while_a_session_is_built(folder, program):
    """Where the thread that builds it were cut off, onnxruntime would abort the process."""
    one = program("""
        import sys, threading, numpy as np, onnxruntime, freshet, freshet.onnx
        publisher, subscriber = freshet.Publisher("m"), freshet.Subscriber("m")
        begun = threading.Event()

        def options():
            begun.set()
            return onnxruntime.SessionOptions()

        session = freshet.onnx.Session(sys.argv[1], subscriber, "session", sess_options=options)
        publisher.publish({"w": np.ones((2000, 2000), np.float32), "b": np.ones(2000, np.float32)}, sync=True)
        begun.wait(60)
        print("ends")
    """, saved(folder, affine(**weights(0, (2000, 2000)))))
    assert one.line() == "ends"
    code, _, complaints = one.end()
    assert code == 0, complaints


def test_a_version_that_is_only_tried_takes_no_value_of_the_file(folder):
    file, tried = weights(0), weights(2)
    with freshet.Publisher("m", keep_versions=3) as publisher, freshet.Subscriber("m", staged=True) as member, \
            freshet.onnx.Session(saved(folder, affine(**file)), member) as session:
        follows(session, published((publisher, member), {"w": weights(1)["w"]}))
        publisher.publish(tried, sync=True, graph=architecture(tried))
        member.stage(2, 60)
        with member.staged_snapshot() as snapshot:
            assert session.at(snapshot).run(None, {"x": X}).weight_version == 2
        now = {"w": weights(3)["w"]}
        publisher.publish(now, sync=True, graph=architecture(now))
        member.stage(3, 60)
        member.commit()
        follows(session, 3)
        np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X @ now["w"] + file["b"], rtol=1e-5)


def test_a_type_that_onnx_does_not_know_is_named_by_its_number(pair):
    made = affine(**weights(0))
    made.graph.initializer[0].data_type = 999
    with pytest.raises(freshet.InvalidArgument, match="the model in bytes: the initializer w has type 999"):
        freshet.onnx.Session(made.SerializeToString(), pair[1])
