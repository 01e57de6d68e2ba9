# SPDX-License-Identifier: Apache-2.0
"""Where versions rest: puts, gets, matches, lineages, pins, retirement, across processes."""
import copy
import os
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

import freshet
from conftest import PATIENCE, eventually


def graph_of(widths, names=None):
    """A chain of dense layers; their tensors are called after them."""
    layers = [{"name": "in", "class": "Input", "config": {"shape": [None, widths[0]]}}]
    for at, (rows, columns) in enumerate(zip(widths, widths[1:])):
        name = (names or {}).get(at, f"dense{at}")
        layers.append({"name": name, "class": "Dense", "config": {"units": columns}, "inputs": [layers[-1]["name"]],
                       "tensors": {"kernel": {"key": f"{name}.kernel", "shape": [rows, columns], "dtype": "f32"},
                                   "bias": {"key": f"{name}.bias", "shape": [columns], "dtype": "f32"}}})
    return {"freshet_graph": 1, "layers": layers, "outputs": [layers[-1]["name"]]}


def weights_of(graph, seed):
    random = np.random.default_rng(seed)
    return {tensor["key"]: random.random(tensor["shape"], np.float32)
            for layer in graph["layers"] for tensor in layer.get("tensors", {}).values()}


def assert_equal(came, sent):
    assert list(came) == list(sent)
    for name, array in sent.items():
        assert came[name].dtype == array.dtype
        np.testing.assert_array_equal(came[name], array)


@pytest.fixture
def repo(folder):
    with freshet.Repository(folder + "/repo") as repository:
        yield repository


def test_what_was_put_is_got(repo):
    sent = {"a": np.arange(6, dtype=np.int16).reshape(2, 3).T, "layer.b": np.array(2.0), "layer.c": np.empty((0, 3))}
    version = repo.put("net", sent, quality=0.5, step=9, metrics={"loss": 0.25}, tags={"by": "me"})
    assert version == "net@1" and isinstance(version, str) and (version.model, version.number) == ("net", 1)
    assert_equal(repo.get(version), sent)
    assert_equal(repo.get("net"), sent)
    came = repo.get(version)["a"]
    came[0, 0] = 77  # The caller's own memory.
    assert repo.get(version)["a"][0, 0] == 0
    assert repo.models() == ["net"] and [row.version for row in repo.versions("net")] == ["net@1"]
    assert repo.stat()["versions"] == 1 and repo.stat()["live_bytes"] == 12 + 8


def test_some_tensors_by_name_glob_and_new_name(repo):
    repo.put("net", {name: np.array(at) for at, name in enumerate(["a.w", "a.b", "b.w", "odd[1]"])})
    assert list(repo.get("net", tensors="a.*")) == ["a.w", "a.b"]
    assert list(repo.get("net", tensors=["b.w", "a.?"])) == ["b.w", "a.w", "a.b"]
    assert list(repo.get("net", tensors="odd[1]")) == ["odd[1]"]
    assert repo.get("net", tensors={"new": "b.w", "again": "b.w"}) == {"new": 2, "again": 2}
    assert repo.get("net", tensors={}) == {}
    for none in ("c.*", ["a.w", "c"], {"new": "c"}):
        with pytest.raises(freshet.NotFound, match="c"):
            repo.get("net", tensors=none)
    with pytest.raises(freshet.InvalidArgument, match="text"):
        repo.get("net", tensors=[3])


def test_transfer_from_the_best_ancestor(repo):
    old, new = graph_of([8, 16, 4]), graph_of([8, 16, 6], {0: "first", 1: "second"})
    stored = weights_of(old, 1)
    low = repo.put("low", weights_of(old, 2), graph=old, quality=0.1)
    ancestor = repo.put("old", stored, graph=old, quality=0.9)
    match = repo.match(new, top=5, pin="worker")
    assert match.version == ancestor and match.quality == 0.9 and isinstance(match.version, freshet.Version)
    assert (match.lcp_layers, match.lcp_parametric_layers, match.lcp_bytes) == (1, 1, (8 * 16 + 16) * 4)
    assert match.layers == {"first": "dense0"}
    assert match.tensors == {"first.kernel": "dense0.kernel", "first.bias": "dense0.bias"}
    assert [row.version for row in match.top] == [ancestor, low]
    assert repo.pins(ancestor) == ["worker"]
    came = repo.get(match.version, tensors=match.tensors)
    np.testing.assert_array_equal(came["first.kernel"], stored["dense0.kernel"])

    tensors = {**weights_of(new, 3), **came}
    child = repo.put("new", tensors, graph=new, ancestor=match.version, quality=0.93)
    assert_equal(repo.get(child), tensors)
    repo.unpin(ancestor, "worker")
    assert [row.version for row in repo.lineage(child)] == [child, ancestor]
    row = repo.lineage(child)[0]
    assert row.ancestor == ancestor and row.inherited_bytes == match.lcp_bytes and row.own_bytes == (16 * 6 + 6) * 4
    assert {one.tensor: one.owner for one in repo.owners(child)} == {
        "first.kernel": ancestor, "first.bias": ancestor, "second.kernel": child, "second.bias": child}
    assert repo.mrca(child, ancestor) == ancestor and repo.mrca(low, child) is None
    difference = repo.diff(ancestor, child)
    assert difference.layers_added == ["second"] and difference.layers_removed == ["dense1"]
    assert repo.match(new, min_quality=0.99) is None
    assert repo.match(new, objective="bytes", exclude=child).version == low
    assert repo.match(graph_of([3, 3])) is None
    with pytest.raises(freshet.InvalidArgument, match="objective"):
        repo.match(new, objective="looks")


def test_what_lies_in_the_prefix_may_be_left_out(repo):
    graph = graph_of([4, 4, 4])
    first = weights_of(graph, 5)
    ancestor = repo.put("net", first, graph=graph)
    changed = {name: array + 1 for name, array in first.items() if name.startswith("dense1")}
    child = repo.put("net", changed, graph=graph, ancestor=ancestor)
    assert_equal(repo.get(child), {**first, **changed})
    with pytest.raises(freshet.InvalidArgument, match="tensor dense0.kernel is missing"):
        repo.put("net", {}, graph=graph)
    with pytest.raises(freshet.InvalidArgument, match="dense0.bias"):
        repo.put("net", {**first, "dense0.bias": np.zeros(5, np.float32)}, graph=graph)


def test_a_graph_comes_back_and_may_have_no_weights(repo, folder):
    graph = graph_of([2, 3])
    untrained = repo.put("plan", graph=graph)
    came = repo.graph(untrained)
    assert [layer["name"] for layer in came["layers"]] == ["in", "dense0"]
    with pytest.raises(freshet.FailedPrecondition, match="never trained"):
        repo.get(untrained)
    assert repo.match(graph) is None and repo.match(graph, any=True).version == untrained
    assert repo.match(came, any=True).lcp_layers == 1
    path = folder + "/g.json"
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(graph).replace("'", '"').replace("None", "null"))
    assert repo.match(path, any=True).version == untrained


def test_pins_retirement_and_garbage(repo):
    kept, gone = repo.put("net", {"w": np.zeros(100)}), repo.put("net", {"w": np.ones(100)})
    repo.pin(gone, "me")
    with pytest.raises(freshet.FailedPrecondition, match="me"):
        repo.retire(gone, wait=0.1)
    repo.unpin(gone, "me")
    assert repo.pins(gone) == []
    assert repo.retire(gone).released_bytes == 800
    with pytest.raises(freshet.NotFound, match="retired"):
        repo.get(gone)
    assert repo.gc(dry_run=True).freed_bytes == 800 and repo.gc().freed_bytes == 800 and repo.gc().freed_bytes == 0
    assert repo.stat()["live_bytes"] == 800 and list(repo.get(kept)) == ["w"]
    assert [row.retired for row in repo.lineage(gone)] == [True]


def test_the_best_version_is_found_by_quality_or_by_a_metric(repo):
    w = {"w": np.ones(1)}
    with pytest.raises(freshet.NotFound, match="no model net"):
        repo.best("net")
    repo.put("net", w, metrics={"loss": float("nan")})
    for metric in (None, "loss"):
        with pytest.raises(freshet.NotFound, match="no version of net has (a quality|the metric loss)"):
            repo.best("net", metric)
    for quality, loss in ((0.5, 3.0), (0.9, 2.0), (0.9, 1.0), (0.7, 0.5), (None, 0.5), (0.1, 9.0)):
        repo.put("net", w, quality=quality, metrics={"loss": loss})
    assert repo.best("net") == "net@4", "of equal ones the newest"
    assert repo.best("net", "loss") == "net@7" and repo.best("net", "loss", lowest=True) == "net@6"
    repo.retire("net@6")
    assert repo.best("net", "loss", lowest=True) == "net@5" and repo.get(repo.best("net"))["w"] == 1


def test_bad_input_leaves_nothing(repo):
    for tensors in ({"w": np.array([{}])}, {"w": np.ones(2, complex)}, {"w": None}, {2: np.ones(2)}):
        with pytest.raises(freshet.InvalidArgument, match="tensor"):
            repo.put("net", tensors)
    with pytest.raises(freshet.InvalidArgument, match="mapping"):
        repo.put("net", [np.ones(2)])
    with pytest.raises(freshet.InvalidArgument, match="quality|metric"):
        repo.put("net", {"w": np.ones(2)}, metrics={"loss": "low"})
    with pytest.raises(freshet.InvalidArgument, match="tag"):
        repo.put("net", {"w": np.ones(2)}, tags={"n": 3})
    with pytest.raises(freshet.NotFound):
        repo.put("net", {"w": np.ones(2)}, ancestor="nobody@3")
    with pytest.raises(freshet.NotFound):
        repo.get("net")
    assert repo.stat()["versions"] == 0


def test_what_was_closed_says_so(folder):
    repository = freshet.Repository(folder + "/repo")
    repository.close()
    repository.close()
    for call in (repository.models, repository.stat, lambda: repository.get("m"), lambda: repository.put("m", {})):
        with pytest.raises(freshet.FailedPrecondition, match="closed"):
            call()


def test_pickled_as_its_place(repo):
    version = repo.put("net", {"w": np.arange(3)})
    with pickle.loads(pickle.dumps(repo)) as again, copy.copy(repo) as third:
        assert again.place == repo.place == third.place
        assert again.get(version)["w"].tolist() == [0, 1, 2]
    assert repo.get(version)["w"].tolist() == [0, 1, 2]
    assert pickle.loads(pickle.dumps(version)).number == 1


def test_a_relative_place_is_the_same_folder_from_everywhere(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with freshet.Repository("runs") as repo:
        version = repo.put("net", {"w": np.arange(3)})
        pickled = pickle.dumps(repo)
        monkeypatch.chdir("/")
        with pickle.loads(pickled) as again:
            assert again.get(version)["w"].tolist() == [0, 1, 2]


def test_a_run_resumes_from_a_version_as_put_names_it(repo):
    version = repo.put("run", {"w": np.arange(3)}, step=7)
    repo.put("run", {"w": np.arange(3) + 1}, step=8)
    assert repo.resume("run", version).step == repo.resume("run", 1).step == repo.resume("run@1").step == 7
    assert repo.resume("run").step == 8


def test_tensors_have_roles_and_servers_take_two_of_them(repo):
    tensors = {"w": np.arange(3.0), "mean": np.ones(2), "momentum": np.full(3, 7.0), "rng": np.arange(5)}
    roles = {"mean": "buffer", "momentum": "optimizer", "rng": "opaque"}
    with freshet.Publisher("run") as publisher, repo.sink("run") as sink, freshet.Subscriber("run") as server:
        bound = publisher.bind(tensors, roles)
        for number in (1, 2):
            bound.publish(step=number, sync=True)
            tensors["momentum"] += 1
        assert eventually(lambda: sink.status()["newest"] == 2)
        server.wait_for(2, PATIENCE)
        with server.snapshot() as snapshot:
            assert list(snapshot) == ["w", "mean"] and len(snapshot) == 2 and "rng" not in snapshot
            with pytest.raises(freshet.NotFound):
                snapshot["momentum"]
            assert "momentum" not in snapshot._repr_html_()
    resumed = repo.resume("run")
    assert sorted(resumed.weights) == ["mean", "w"] and sorted(resumed.state) == ["momentum", "rng"]
    assert resumed.state["momentum"].tolist() == [8, 8, 8] and resumed.state["rng"].tolist() == [0, 1, 2, 3, 4]
    assert sorted(repo.resume("put", repo.put("put", tensors, roles=roles)).state) == ["momentum", "rng"]
    for call in (lambda roles: repo.put("put", {"w": np.zeros(2)}, roles=roles),
                 lambda roles: freshet.Publisher("wrong").publish({"w": np.zeros(2)}, roles=roles)):
        for wrong in ({"w": "weights"}, {"x": "weight"}, {"w": 3}):
            with pytest.raises(freshet.InvalidArgument, match=f"tensor '?{next(iter(wrong))}"):
                call(wrong)


def test_another_process_sees_and_changes_the_same(repo, program):
    version = repo.put("net", {"w": np.arange(3)})
    other = program("""
        import sys, freshet
        with freshet.Repository(sys.argv[1]) as repo:
            w = repo.get("net")["w"]
            print(repo.put("net", {"w": w + 1}, ancestor="net@1"))
    """, repo.place)
    assert other.line() == "net@2"
    assert other.end()[0] == 0
    assert repo.get("net@2")["w"].tolist() == [1, 2, 3]
    assert repo.mrca("net@2", version) == version


def test_a_run_resumes_its_lineage(repo):
    with freshet.Publisher("run") as publisher, repo.sink("run") as sink:
        publisher.publish({"w": np.arange(4.0), "still": np.zeros(9)}, step=5, metrics={"loss": 1}, sync=True)
        assert eventually(lambda: sink.status()["newest"] == 1)
    came = repo.resume("run")
    assert (came.version, came.step, came.metrics, came.state) == ("run@1", 5, {"loss": 1}, {})
    with freshet.Publisher("run", resume=(repo, "run")) as publisher, repo.sink("run") as sink:
        assert publisher.resumed.version == "run@1"
        weights = publisher.resumed.weights
        weights["w"] += 1
        assert publisher.publish(weights, step=6, sync=True).version == 2
        assert eventually(lambda: sink.status()["newest"] == 2)
    assert [row.version for row in repo.lineage("run@2")] == ["run@2", "run@1"]
    assert {one.tensor: one.owner for one in repo.owners("run@2")} == {"w": "run@2", "still": "run@1"}
    assert repo.get("run@2")["w"].tolist() == [1, 2, 3, 4]
    with pytest.raises(freshet.NotFound):
        repo.resume("nobody")


def test_notebooks_show_lineages_with_names_escaped(repo):
    from xml.etree import ElementTree

    repo.put("net", {"w": np.ones(3)})
    child = repo.put("net", {"w": np.zeros(3)}, ancestor="net@1", quality=0.5)
    for shown in (repo.lineage(child), repo.versions("net"), repo):
        tree = ElementTree.fromstring(shown._repr_html_())
        assert tree.tag.endswith("svg")
        assert {"net@1", "net@2"} <= {word for text in tree.itertext() for word in text.split()}


class FakeBar:
    made = []

    def __init__(self, **how):
        self.how, self.n, self.closed = how, 0, False
        self.total = how["total"]
        FakeBar.made.append(self)

    def update(self, done):
        self.n += done

    def close(self):
        self.closed = True


def test_long_work_shows_a_bar_where_somebody_looks(repo, monkeypatch):
    weights = {f"w{i}": np.full(1000, i, np.float32) for i in range(10)}
    repo.put("net", weights)
    fake = types.ModuleType("tqdm.auto")
    fake.tqdm = FakeBar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", fake)
    monkeypatch.setattr(FakeBar, "made", [])
    repo.get("net")
    assert not FakeBar.made, "nobody looks"

    monkeypatch.setattr("freshet._progress.wanted", lambda: True)
    monkeypatch.setattr("freshet.repository._READ_AT_ONCE", 9000)
    assert repo.put("other", weights) == "other@1"
    [put] = FakeBar.made
    assert put.how["desc"] == "put other" and put.total == 40000 and 0 <= put.n < 40000 and put.closed
    repo.retire("other@1")
    assert repo.gc().freed_bytes == 40000
    FakeBar.made.clear()
    came = repo.get("net")
    assert all(np.array_equal(came[name], array) for name, array in weights.items())
    [bar] = FakeBar.made
    assert bar.how["desc"] == "get net@1" and bar.how["delay"] > 0 and bar.n == bar.total == 40000 and bar.closed
    repo.retire("net@1")
    assert repo.gc().freed_bytes == 40000
    assert FakeBar.made[1].closed and FakeBar.made[1].n == FakeBar.made[1].total
    with pytest.raises(freshet.NotFound):
        repo.get("net@1")
    assert all(one.closed for one in FakeBar.made)


def test_ctrl_c_in_a_bar_ends_long_work_and_leaves_nothing_half(repo, monkeypatch):
    class Interrupted:
        is_shown = True
        raises = KeyboardInterrupt

        def __init__(self, *_):
            self.told = 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add(self, done):
            raise self.raises

        at = lambda self, done, total: self.add(done)

    big = {f"w{i}": np.full(1 << 20, i, np.float32) for i in range(30)}
    kept = repo.put("kept", big)
    retired = repo.put("old", {name: array + 1 for name, array in big.items()})
    repo.retire(retired)
    monkeypatch.setattr("freshet.repository.Bar", Interrupted)
    monkeypatch.setattr("freshet.repository._READ_AT_ONCE", 1)
    for call in (lambda: repo.put("net", {name: array + 2 for name, array in big.items()}), lambda: repo.get(kept), repo.gc):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert "net" not in repo.models()
    # What else a bar raises is told, and ends nothing.
    Interrupted.raises = ValueError
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    assert repo.put("net", {name: array + 2 for name, array in big.items()}) == "net@1" and told
    monkeypatch.undo()
    assert repo.gc().live_bytes == 2 * 30 * (1 << 22)
    assert all((array == i + 2).all() for i, array in enumerate(repo.get("net").values()))


def test_ctrl_c_ends_a_put_into_ones_own_folder(program, folder):
    one = program("""
        import os, signal, sys, threading, freshet, numpy as np
        repo = freshet.Repository(sys.argv[1])
        big = {f"w{i}": np.full(1 << 21, i, np.float32) for i in range(48)}
        begun = threading.Event()
        pairs_of = freshet.repository.pairs_of

        def last_before_the_call(given, what, kind):
            if what == "tag":
                begun.set()
            return pairs_of(given, what, kind)

        freshet.repository.pairs_of = last_before_the_call

        def interrupt():
            begun.wait()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            repo.put("net", big)
        except KeyboardInterrupt:
            print("interrupted")
        thread.join()
        print(repo.models())
        small = {"w": np.ones(3)}
        print(repo.put("net", small), repo.get("net")["w"].tolist())
        repo.close()
    """, folder)
    assert one.end() == (0, "interrupted\n[]\nnet@1 [1.0, 1.0, 1.0]\n", "")


def test_a_terminal_is_looked_at(program, folder):
    master, terminal = os.openpty()
    code = "import freshet, sys; from freshet import _progress; print(_progress.wanted())"
    for where, expected in ((terminal, "True"), (subprocess.PIPE, "False")):
        ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=where, text=True)
        assert ran.stdout.strip() == expected
    os.close(master)
    os.close(terminal)


def test_a_run_resumes_from_an_older_version_and_branches(repo):
    for value in (1, 2, 3):
        assert repo.put("m", {"w": np.full(3, value)}, ancestor=f"m@{value - 1}" if value > 1 else None) == f"m@{value}"
    with freshet.Publisher("m", resume=(repo, "m@2")) as publisher, repo.sink("m") as sink:
        assert publisher.resumed.version == "m@2" and publisher.resumed.weights["w"].tolist() == [2, 2, 2]
        number = publisher.publish({"w": np.full(3, 9)}, sync=True).version
        assert number > 2 and eventually(lambda: sink.status()["stored"] == 1)
    newest = repo.versions("m")[-1]
    assert newest.ancestor == "m@2" and repo.get(newest.version)["w"].tolist() == [9, 9, 9]
    assert repo.get("m@3")["w"].tolist() == [3, 3, 3], "what was there stays"


def test_a_forked_sink_is_the_parents(program, folder):
    parent = program("""
        import os, sys, freshet, numpy as np
        repo = freshet.Repository(sys.argv[1])
        pub = freshet.Publisher("m")
        sink = repo.sink("m")
        child = os.fork()
        if child == 0:
            try:
                sink.status()
            except freshet.FailedPrecondition as error:
                print("forked" in str(error))
            sink.close()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        pub.publish({"w": np.ones(3)}, sync=True)
        while sink.status()["newest"] < 1:
            pass
        print(repo.get("m")["w"].tolist())
    """, folder)
    assert parent.end() == (0, "True\n[1.0, 1.0, 1.0]\n", "")


def test_random_state_comes_back_and_is_looked_at_before():
    import random
    from freshet import _random_state
    random.seed(4)
    np.random.seed(5)
    random.gauss(0, 1)  # Keeps a second number.
    np.random.normal()
    state = _random_state.take(with_torch=False)
    want = [random.gauss(0, 1), random.random(), np.random.normal(), np.random.random()]
    assert list(state) == _random_state.names(with_torch=False) == ["rng/host"]
    _random_state.put_back({})
    _random_state.put_back(state)
    assert [random.gauss(0, 1), random.random(), np.random.normal(), np.random.random()] == want
    host = state["rng/host"]
    for wrong in (host[:-1], np.zeros(3), np.full(host.size, 255, np.uint8), np.full(host.size, 63, np.uint8)):
        with pytest.raises(freshet.Corrupt, match="rng/host"):
            _random_state.put_back({"rng/host": wrong})
    _random_state.put_back(state)
    assert random.gauss(0, 1) == want[0], "what was wrong changed nothing"
