# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of many ranks from Python: processes that meet over loopback, values of their step, other numbers of ranks."""
import json
import os
import subprocess
import sys
import textwrap

import freshet
import numpy as np
import pytest

from conftest import eventually, free_port, full_disk

TENSORS = {
    "w": freshet.CheckpointTensor("f32", (40, 30)),
    "experts": freshet.CheckpointTensor("f32", (5, 7), layout="split:0"),
    "table": freshet.CheckpointTensor("u8", (9,), layout="on:1"),
    "rng": freshet.CheckpointTensor("u64", (4,), layout="own", role="opaque"),
}


def state_of(ck, step):
    """What a rank holds after a step: every element says which step, and of split rows which row."""
    state = {"w": np.full((40, 30), step, np.float32), "rng": np.full(4, 1000 * ck.rank + step, np.uint64)}
    each = -(-5 // ck.ranks)
    rows = np.arange(5, dtype=np.float32)[each * ck.rank:each * (ck.rank + 1)]
    state["experts"] = np.repeat(rows[:, None], 7, axis=1) + 100 * step
    if ck.held("table") is not None:
        state["table"] = np.full(9, step, np.uint8)
    return state


def empty_like(state):
    return {name: np.zeros_like(array) for name, array in state.items()}


def test_one_rank_goes_on_where_it_was(tmp_path):
    with freshet.Checkpointer("net", TENSORS, local=str(tmp_path / "ck"), rank=0, ranks=1) as ck:
        assert ck.levels == ("memory", "local")
        assert ck.restore(empty_like(state_of(ck, 0))) is None
        for step in (1, 2, 3):
            captured = ck.checkpoint(step, state_of(ck, step))
            assert captured.version == step and captured.bytes > 0
        ck.wait(3, "local", timeout=60)
        assert ck.poll(3, "local")
        ck.finish(timeout=60)
        assert {"reached"} <= {event["event"] for event in ck.events()}
        assert ck.events() == []
    with pytest.raises(freshet.FailedPrecondition):
        ck.begin(4)
    with freshet.Checkpointer("net", TENSORS, local=str(tmp_path / "ck"), rank=0, ranks=1) as ck:
        state = empty_like(state_of(ck, 0))
        state["w"] = np.zeros((30, 40), np.float32).T  # Strided arrays are filled as they look.
        restored = ck.restore(state)
        assert (restored.version, restored.step, restored.levels, restored.fresh) == (3, 3, ("local",), ())
        for name, array in state_of(ck, 3).items():
            np.testing.assert_array_equal(state[name], array)


def test_packed_tensors_come_back_and_are_stored_with_their_type(tmp_path):
    packed = freshet.PackedArray(np.arange(16, dtype=np.uint8), "f4", (4, 8))
    for number, given in enumerate((packed, freshet.CheckpointTensor("f4", (4, 8)))):
        name = f"net{number}"
        where = {"local": str(tmp_path / name), "external": str(tmp_path / "store"), "rank": 0, "ranks": 1}
        with freshet.Checkpointer(name, {"w": given}, **where) as ck:
            assert ck.restore({"w": packed.copy()}) is None and ck.held("w") == (4, 8)
            with pytest.raises(freshet.InvalidArgument, match=r"w: uint8 \(16,\) came, this rank holds f4 \(4, 8\)"):
                ck.restore({"w": np.zeros(16, np.uint8)})
            ck.checkpoint(1, {"w": packed})
            ck.finish(timeout=60)
        with freshet.Repository(str(tmp_path / "store")) as repository:
            stored = repository.get(name)["w"]
            assert (stored.packed_dtype, stored.packed_shape) == ("f4", (4, 8)) and bytes(stored) == bytes(packed)
        with freshet.Checkpointer(name, {"w": given}, **where) as ck:
            came = freshet.PackedArray(np.zeros(16, np.uint8), "f4", (4, 8))
            assert ck.restore({"w": came}).step == 1
            assert bytes(came) == bytes(packed)


def test_layer_by_layer_keeps_the_values_of_the_step(tmp_path):
    w = np.ones((100, 100), np.float32)
    with freshet.Checkpointer("net", {"a": w, "b": w}, local=[str(tmp_path)], rank=0, ranks=1) as ck:
        ck.restore({"a": w, "b": w})
        a, b = w.copy(), w.copy()
        ck.begin(1)
        ck.capture({"b": b})
        b[:] = 7
        ck.capture({"a": a})
        a[:] = 7
        ck.end()
        ck.wait(1, "memory", timeout=60)
        back = {"a": np.zeros_like(w), "b": np.zeros_like(w)}
        assert ck.restore(back).levels == ("memory",)
        np.testing.assert_array_equal(back["a"], w)
        np.testing.assert_array_equal(back["b"], w)


def test_layers_are_copied_beside_the_loop(tmp_path):
    names = [f"layer{at}" for at in range(6)]
    layers = {name: np.zeros(900_000, np.float32) for name in names}
    with freshet.Checkpointer("net", layers, local=str(tmp_path), rank=0, ranks=1, when_behind="wait") as ck:
        ck.restore(layers)
        ck.wait_for_copies(names)  # None is under way.
        for step in range(1, 6):
            ck.begin(step)
            for name in reversed(names):
                layers[name][:] = step
                if name == "layer3":
                    ck.capture({name: layers[name] * 1}, beside=True)  # Nobody else keeps this array.
                else:
                    ck.capture({name: layers[name]}, beside=True)
                if name == "layer2":
                    ck.wait_for_copies(["layer4", "layer2"])
                    layers["layer4"][:] = -1
                    layers["layer2"][:] = -1
            ck.end()
            for array in layers.values():
                array[:] = -2
        with pytest.raises(freshet.InvalidArgument, match="nope"):
            ck.wait_for_copies(["nope"])
        ck.finish(timeout=60)
    with freshet.Checkpointer("net", layers, local=str(tmp_path), rank=0, ranks=1) as ck:
        assert ck.restore(layers).step == 5
        for name, array in layers.items():
            assert (array == 5).all(), name
        ck.begin(6)
        ck.capture({"layer0": layers["layer0"] + 1}, beside=True)  # And is closed in the middle of the version.


def test_wrong_use_names_what_is_wrong(tmp_path):
    w = np.ones(3, np.float32)
    for options, named in (({"tensors": {"w": freshet.CheckpointTensor("f33", (3,))}}, "f33"),
                           ({"tensors": {"w": freshet.CheckpointTensor("f32", (3,), layout="split:1")}}, "axis 1"),
                           ({"tensors": {"w": w}, "when_behind": "never"}, "never"),
                           ({"tensors": {"w": w}, "keep": {"disk": 2}}, "disk"),
                           ({"tensors": {"w": w}, "rank": 3, "ranks": 2, "meet": "tcp://127.0.0.1:1"}, "rank 3")):
        with pytest.raises(freshet.InvalidArgument, match=named):
            freshet.Checkpointer("net", local=str(tmp_path), **{"rank": 0, "ranks": 1, **options})
    with freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1) as ck:
        with pytest.raises(freshet.AlreadyExists):
            freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1)
        read_only = w.copy()
        read_only.flags.writeable = False
        with pytest.raises(freshet.InvalidArgument, match="read-only"):
            ck.restore({"w": read_only})
        with pytest.raises(freshet.InvalidArgument, match="w is missing"):
            ck.restore({})
        ck.restore({"w": w})
        with pytest.raises(freshet.InvalidArgument, match="float64"):
            ck.checkpoint(1, {"w": np.ones(3)})
        with pytest.raises(freshet.FailedPrecondition, match="w is missing"):
            ck.checkpoint(2, {})
        with pytest.raises(freshet.NotFound):
            ck.poll(99, "local")
        assert ck.checkpoint(3, {"w": w}).bytes == 12


def test_what_was_reached_is_told_in_order(tmp_path, caplog):
    reached = []

    def told(version, step, level):
        reached.append((version, step, level))
        if level == "memory":
            raise RuntimeError("of the program's")

    w = np.ones(3)
    with freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1, when_behind="wait", lost_after=2,
                              on_reached=told) as ck:
        ck.restore({"w": w})
        for step in (10, 20):
            ck.checkpoint(step, {"w": w})
        ck.finish(timeout=60)
        assert [one for one in reached if one[0] == 1] == [(1, 10, "memory"), (1, 10, "local")]
        assert [one for one in reached if one[0] == 2] == [(2, 20, "memory"), (2, 20, "local")]
    assert "of the program's" in caplog.text
    with pytest.raises(freshet.InvalidArgument, match="lost_after"):
        freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1, lost_after=0)


def test_a_full_disk_is_told_at_the_end_and_in_the_log(tmp_path, caplog):
    w = np.zeros(50_000)
    reached = []
    with freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1, when_behind="wait",
                              on_reached=lambda *what: reached.append(what)) as ck:
        ck.restore({"w": w})
        with full_disk():
            for step in (10, 20):
                ck.checkpoint(step, {"w": w + step})
            with pytest.raises(freshet.Error, match=f"version 2, the last one, is stored nowhere: .*{tmp_path}"):
                ck.finish(timeout=60)
        assert reached == [(1, 10, "memory"), (2, 20, "memory")]
        assert eventually(lambda: "did not reach" in caplog.text)
        with pytest.raises(freshet.FailedPrecondition, match="the job was finished"):
            ck.checkpoint(30, {"w": w})
    told = [line for line in caplog.messages if "did not reach" in line]
    assert len(told) == 1 and "net: version 1 (step 10) did not reach local" in told[0] and str(tmp_path) in told[0]
    with freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1) as ck:
        assert ck.restore({"w": w}) is None
        with full_disk():
            first = ck.checkpoint(1, {"w": w + 1})
            with pytest.raises(freshet.Error):
                ck.wait(first.version, "local", timeout=60)
        ck.checkpoint(2, {"w": w + 2})
        ck.finish(timeout=60)


def test_a_closed_checkpointer_and_a_forked_childs_tell_no_events(tmp_path, program):
    with freshet.Checkpointer("net", {"w": np.ones(3)}, local=str(tmp_path / "closed"), rank=0, ranks=1) as ck:
        ck.events()
    with pytest.raises(freshet.FailedPrecondition, match="closed"):
        ck.events()
    parent = program("""
        import os, sys, freshet, numpy as np
        ck = freshet.Checkpointer("net", {"w": np.ones(3)}, local=sys.argv[1], rank=0, ranks=1, on_reached=print)
        child = os.fork()
        if child == 0:
            try:
                ck.events()
            except freshet.FailedPrecondition as error:
                print("child", "forked" in str(error), flush=True)
            ck.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("parent", ck.events())
        ck.close()
    """, str(tmp_path / "forked"))
    assert parent.line() == "child True"
    assert parent.line() == "parent []"
    assert parent.end()[0] == 0


PROGRAM = textwrap.dedent("""
    import json, sys
    import test_checkpointer as t, freshet, numpy as np
    rank, ranks, meet, folder, steps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
    with freshet.Checkpointer("net", t.TENSORS, local=f"{folder}/{rank}", external=f"{folder}/runs", rank=rank,
                              ranks=ranks, meet=meet, when_behind="wait") as ck:
        state = t.empty_like(t.state_of(ck, 0))
        restored = ck.restore(state)
        first = restored.step if restored else 0
        wrong = [name for name, array in t.state_of(ck, first).items()
                 if restored and name not in restored.fresh and f"{name}.r{rank}" not in restored.fresh
                 and not np.array_equal(array, state[name])]
        print(json.dumps({"step": first, "wrong": wrong, "fresh": restored.fresh if restored else [],
                          "left": restored.left if restored else []}), flush=True)
        for step in range(first + 1, steps + 1):
            ck.checkpoint(step, t.state_of(ck, step))
        ck.finish(timeout=60)
""")


def run_job(folder, ranks, steps):
    meet = f"tcp://127.0.0.1:{free_port()}"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__)] + sys.path))
    jobs = [subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), str(ranks), meet, str(folder), str(steps)],
                             stdout=subprocess.PIPE, text=True, env=environment) for rank in range(ranks)]
    said = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * ranks
    return [json.loads(text) for text in said]


def test_a_renamed_tensor_is_refused_unless_asked(tmp_path):
    w = np.full(3, 5.0)
    with freshet.Checkpointer("net", {"w": w}, local=str(tmp_path), rank=0, ranks=1) as ck:
        ck.restore({"w": w})
        ck.checkpoint(1, {"w": w})
        ck.finish(timeout=60)
    v = np.zeros(3)
    with freshet.Checkpointer("net", {"v": v}, local=str(tmp_path), rank=0, ranks=1) as ck:
        with pytest.raises(freshet.FailedPrecondition, match="tensor w, .* tensor v,.*allow_left=True"):
            ck.restore({"v": v})
        restored = ck.restore({"v": v}, allow_left=True)
        assert (restored.fresh, restored.left, v.tolist()) == (("v",), ("w",), [0, 0, 0])


def test_two_ranks_then_three_then_one(tmp_path):
    for rank in run_job(tmp_path, 2, 3):
        assert rank["step"] == 0
    for index, rank in enumerate(run_job(tmp_path, 3, 5)):
        assert rank == {"step": 3, "wrong": [], "fresh": [] if index < 2 else ["rng.r2"], "left": []}
    assert run_job(tmp_path, 1, 5) == [{"step": 5, "wrong": [], "fresh": [], "left": ["rng.r1", "rng.r2"]}]
    repo = freshet.Repository(tmp_path / "runs")
    assert sorted(repo.get("net")) == ["experts", "rng.r0", "rng.r1", "rng.r2", "table", "w"]
    np.testing.assert_array_equal(repo.get("net")["experts"][:, 0], np.arange(5) + 500)


def test_what_reads_versions_reads_checkpoints(tmp_path):
    """match, diff and `freshet bisect` over versions of three ranks and of two."""
    run_job(tmp_path, 3, 4)
    run_job(tmp_path, 2, 8)
    with freshet.Repository(tmp_path / "runs") as repo:
        assert len(repo.versions("net")) == 8 and len(repo.lineage("net@8")) == 8
        assert repo.match(repo.graph("net@3")).version.number <= 4 < repo.match(repo.graph("net@7")).version.number
        assert "w" in repo.diff("net@4", "net@5").tensors_changed
    judge = tmp_path / "judge.py"
    judge.write_text("import freshet, sys; sys.exit(bool(freshet.from_state_dict(sys.argv[1])['w'][0, 0] >= 6))")
    command = os.path.join(os.path.dirname(sys.executable), "freshet")
    ran = subprocess.run([command, "bisect", "net", "--repo", str(tmp_path / "runs"), "--good", "1", "--bad", "8", "--json",
                          "--exec", f"{sys.executable} {judge} {{}}"], text=True, capture_output=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert (found["last_good"], found["first_bad"], found["tensors"]) == ("net@5", "net@6", ["w"])
