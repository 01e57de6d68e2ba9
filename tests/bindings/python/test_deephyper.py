# SPDX-License-Identifier: Apache-2.0
"""Candidates of a DeepHyper search learn from each other through a repository."""
import math
import os
import threading

os.environ["KERAS_BACKEND"] = "torch"  # One framework in this process.

import numpy as np
import pytest

torch = pytest.importorskip("torch")
hpo = pytest.importorskip("deephyper.hpo")
evaluator = pytest.importorskip("deephyper.evaluator")

import freshet
import freshet.deephyper as fd

pytestmark = pytest.mark.filterwarnings("ignore")


class Job:
    """What a run function is given."""

    def __init__(self, number, **parameters):
        self.id = f"0.{number}"
        self.parameters = parameters


def net(*widths):
    layers = [layer for pair in zip(widths, widths[1:]) for layer in (torch.nn.Linear(*pair), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def evaluated(repository, number, model, objective, **how):
    with fd.evaluate(Job(number), model, repository, **how) as e:
        e.objective = objective
    return e


@pytest.fixture
def repository(folder):
    with freshet.Repository(folder) as opened:
        yield opened


def test_a_candidate_begins_with_what_it_shares(repository):
    first = net(4, 8, 8)
    result = evaluated(repository, 0, first, 0.5).result
    assert result["objective"] == 0.5
    metadata = result["metadata"]
    assert (metadata["model"], metadata["parent"], metadata["lcp_bytes"]) == ("search@1", None, 0)

    second = net(4, 8, 16)
    with fd.evaluate(Job(1), second, repository) as e:
        assert e.match.version == "search@1" and repository.pins("search@1")
        assert torch.equal(second[0].weight, first[0].weight)
        assert e.frozen and not second[0].weight.requires_grad and second[2].weight.requires_grad
        e.objective = 0.25
    assert e.result["metadata"]["parent"] == "search@1"
    assert e.result["metadata"]["lcp_bytes"] == 4 * 8 * 4 + 8 * 4
    assert repository.pins("search@1") == []
    row = repository.lineage("search@2")[0]
    assert row.ancestor == "search@1" and row.inherited_bytes == 4 * 8 * 4 + 8 * 4
    assert repository.tags("search@2")["job"] == "0.1" and repository.quality("search@2") == 0.25


def test_a_keras_candidate(repository):
    keras = pytest.importorskip("keras", minversion="3")

    def dense(*widths):
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(width) for width in widths)])

    first = dense(8, 8)
    evaluated(repository, 0, first, 0.5)
    second = dense(8, 16)
    with fd.evaluate(Job(1), second, repository) as e:
        assert e.frozen == [second.layers[0].name] and not second.layers[0].trainable
        assert (keras.ops.convert_to_numpy(second.layers[0].kernel) == keras.ops.convert_to_numpy(first.layers[0].kernel)).all()
        e.objective = 0.75
    assert e.result["metadata"]["parent"] == "search@1" and repository.aliases("search") == {"best": 2}


def trains(model):
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad and name.endswith("weight")]


@pytest.mark.parametrize("freeze, want", [
    ("prefix", [["2.weight"], ["2.weight", "4.weight"], ["2.weight", "4.weight", "6.weight"]]),
    ("none", [["0.weight", "2.weight"], ["0.weight", "2.weight", "4.weight"], ["0.weight", "2.weight", "4.weight", "6.weight"]]),
    ("all", [[], ["4.weight"], []])])
def test_every_candidate_trains_unless_all_of_it_is_to_be_frozen(repository, freeze, want):
    """Also one whose layers are all stored."""
    for widths in ([4, 8, 8], [4, 8, 8, 8, 3]):
        evaluated(repository, 0, net(*widths), 0.5)
    for widths, names in zip(([4, 8, 8], [4, 8, 8, 9], [4, 8, 8, 8, 3]), want):
        model = net(*widths)
        with fd.evaluate(Job(1), model, repository, "other", freeze=freeze) as e:
            assert e.match is not None and trains(model) == names
            if names:
                model(torch.ones(1, 4)).sum().backward()
            e.objective = 0.25
        stored = repository.owners(e.result["metadata"]["model"])
        assert {row.owner.model for row in stored} == {"search"} if len(widths) != 4 else {"search", "other"}
    with pytest.raises(freshet.InvalidArgument, match="freeze"):
        fd.evaluate(Job(2), net(4, 8), repository, freeze="some")


def test_the_best_can_be_made_again(repository):
    parameters = {"width": np.int64(8), "rate": np.float32(0.5), "kind": "relu", "deep": True}
    first = net(4, 8)
    with fd.evaluate(Job(7, **parameters), first, repository) as e:
        e.objective = 1.0
    evaluated(repository, 8, net(4, 3), 0.5)
    told = fd.parameters(repository)
    assert told == {"width": 8, "rate": 0.5, "kind": "relu", "deep": True} and type(told["width"]) is int
    again = fd.best(lambda its: net(4, its["width"]), repository)
    assert torch.equal(again[0].weight, first[0].weight)
    with pytest.raises(freshet.FailedPrecondition, match="0.weight: search@1 has"):
        fd.best(lambda _: net(4, 9), repository)
    with pytest.raises(freshet.InvalidArgument, match="neither a Keras model"):
        fd.best(dict, repository)
    repository.put("plain", {"w": np.ones(1)})
    for call in (lambda: fd.parameters(repository, "plain"), lambda: fd.best(net, repository, "plain")):
        with pytest.raises(freshet.NotFound, match="parameters"):
            call()


def test_a_search_without_a_population_keeps_the_best(folder):
    problem = hpo.HpProblem()
    problem.add_hyperparameter((1, 64), "width")
    place = os.path.join(folder, "runs")

    def run(job):
        with fd.evaluate(job, net(4, job.parameters["width"]), place) as e:
            e.objective = float(job.parameters["width"])
        return e.result

    search = hpo.RandomSearch(problem, random_state=1, log_dir=os.path.join(folder, "log"))
    assert fd.retire_on_eviction(search, place, keep=3) is search
    results = search.search(evaluator.Evaluator.create(run, method="thread"), max_evals=10)
    with freshet.Repository(place) as opened:
        alive = sorted(row.quality for row in opened.versions("search") if not row.retired)
        assert alive == sorted(results["objective"].astype(float))[-3:] and opened.quality("search@best") == alive[-1]
        assert opened.stat()["live_bytes"] < sum(row.own_bytes for row in opened.versions("search"))
    for wrong in (0, True, 1.5):
        with pytest.raises(freshet.InvalidArgument, match="keep"):
            fd.retire_on_eviction(search, place, keep=wrong)


def test_best_is_the_largest_whoever_comes_last(repository):
    for number, objective in enumerate([0.5, 0.25, 0.75, 0.5]):
        evaluated(repository, number, net(4, 8), objective)
    assert repository.aliases("search") == {"best": 3}

    def work(begin):
        for number in range(begin, begin + 5):
            evaluated(repository, number, net(4, 8), (number * 7 % 20) / 10 + 1, name="many")

    workers = [threading.Thread(target=work, args=(begin,)) for begin in (0, 5, 10, 15)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rows = repository.versions("many")
    assert len(rows) == 20
    assert repository.quality("many@best") == max(row.quality for row in rows)


def test_failures_store_nothing_and_let_go(repository):
    evaluated(repository, 0, net(4, 8), 0.5)
    with pytest.raises(ZeroDivisionError):
        with fd.evaluate(Job(1), net(4, 8), repository) as e:
            1 / 0
    with pytest.raises(freshet.FailedPrecondition):
        e.result
    with pytest.raises(freshet.InvalidArgument, match="objective"):
        with fd.evaluate(Job(2), net(4, 8), repository):
            pass
    assert evaluated(repository, 3, net(4, 8), "F_memory").result["objective"] == "F_memory"
    assert evaluated(repository, 4, net(4, 8), math.nan).result == {
        "objective": "F_objective_not_finite", "metadata": dict(evaluated(repository, 5, net(4, 8), math.inf).result["metadata"],
                                                               transfer_s=pytest.approx(0, abs=60))}
    assert [row.version for row in repository.versions("search")] == ["search@1"]
    assert repository.pins("search@1") == []
    with pytest.raises(freshet.InvalidArgument, match="neither"):
        with fd.evaluate(Job(6), object(), repository):
            pass


def test_a_search_retires_what_drops_out_of_its_population(folder):
    problem = hpo.HpProblem()
    for i in range(3):
        problem.add_hyperparameter([4, 8, 16], f"width{i}")
    place = os.path.join(folder, "runs")
    alive = threading.Lock()
    seen = []

    def run(job):
        widths = [job.parameters[f"width{i}"] for i in range(3)]
        model = net(4, *widths)
        with fd.evaluate(job, model, place) as e:
            with alive:
                seen.append((tuple(widths), e.match is not None))
                number = len(seen)
            e.objective = "F_bad" if number % 7 == 0 else float(-sum(widths))
        return e.result

    search = hpo.RegularizedEvolution(problem, random_state=5, log_dir=os.path.join(folder, "log"), population_size=5, sample_size=3)
    assert fd.retire_on_eviction(search, place) is search
    results = search.search(evaluator.Evaluator.create(run, method="thread", method_kwargs={"num_workers": 2}), max_evals=30)
    good = results[~results["objective"].astype(str).str.startswith("F")]
    assert {"m:model", "m:parent", "m:lcp_layers", "m:lcp_bytes", "m:transfer_s", "m:store_s"} <= set(results.columns)
    with freshet.Repository(place) as repository:
        rows = repository.versions("search")
        assert len(rows) == len(good)
        left = {str(row.version) for row in rows if not row.retired}
        best = f"search@{repository.aliases('search')['best']}"
        assert repository.quality(best) == good["objective"].astype(float).max()
        # The population's five, the best, and those that came in the last gathering, which nobody told the search.
        assert left <= set(good["m:model"]) and best in left
        assert 5 <= len(left) <= 5 + 1 + 2
        assert all(repository.get(version) for version in left)


def test_candidates_go_on_when_the_process_that_had_the_folder_is_killed(program, folder):
    owner = program("""
        import sys, freshet
        repository = freshet.Repository(sys.argv[1])
        print("open")
        sys.stdin.read()
    """, folder)
    assert owner.line() == "open"
    assert evaluated(folder, 0, net(4, 8), 0.5).result["metadata"]["model"] == "search@1"
    with fd.evaluate(Job(1), net(4, 8), folder) as e:
        assert e.match.version == "search@1"
        owner.process.kill()
        owner.process.wait()
        e.objective = "F_gone"  # Nothing is stored, and the pin that cannot be taken back ends by itself.
    assert evaluated(folder, 2, net(4, 8), np.float32(0.75)).result["metadata"]["model"] == "search@2"
    assert evaluated(folder, 3, net(4, 8), np.float32("nan")).result["objective"] == "F_objective_not_finite"
    with pytest.raises(freshet.InvalidArgument, match="list|object|dict"):
        evaluated(folder, 4, net(4, 8), {})


OWNER = """
    import sys, freshet
    repository = freshet.Repository(sys.argv[1])
    print("open")
    sys.stdin.read()
"""


def test_a_candidate_is_stored_though_the_process_that_had_the_folder_is_killed_while_it_trains(program, folder):
    owner = program(OWNER, folder)
    assert owner.line() == "open"
    first = evaluated(folder, 0, net(4, 8, 8), 0.5).result["metadata"]
    with fd.evaluate(Job(1), net(4, 8, 16), folder) as e:
        owner.process.kill()
        owner.process.wait()
        e.objective = 0.75
    stored = e.result["metadata"]
    assert (first["model"], stored["model"], stored["parent"]) == ("search@1", "search@2", "search@1")
    with freshet.Repository(folder) as repository:
        assert repository.lineage("search@2")[0].ancestor == "search@1"
        assert repository.aliases("search") == {"best": 2} and repository.pins("search@1") == []

    # Another process may have opened it in between, and retired the ancestor with its pin gone.
    with fd.evaluate(Job(2), net(4, 8, 12), folder) as e:
        parent = e.match.version
        for name in repository_of(folder).pins(parent):
            repository_of(folder).unpin(parent, name)
        e._transferred.moved_to(repository_of(folder))
        assert e.match.version == parent, "it is pinned anew"
        e.objective = 0.25
    assert e.result["metadata"]["parent"] == str(parent)


def repository_of(folder):
    return fd._repository_at(folder)


def test_workers_that_are_processes(program, folder):
    """DeepHyper forks them from the process that searches, which has the folder."""
    search = program("""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        import torch, freshet
        from deephyper.evaluator import Evaluator
        from deephyper.hpo import HpProblem, RegularizedEvolution
        torch.set_num_threads(1)
        place = os.path.join(sys.argv[1], "runs")

        def run(job):
            width = job.parameters["width"]
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, width))
            with freshet.deephyper.evaluate(job, model, place) as e:
                e.objective = float(width)
            result = e.result
            result["metadata"]["pid"] = os.getpid()
            return result

        if __name__ == "__main__":
            problem = HpProblem()
            problem.add_hyperparameter((1, 16), "width")
            search = RegularizedEvolution(problem, random_state=3, log_dir=os.path.join(sys.argv[1], "log"), population_size=4,
                                          sample_size=2)
            freshet.deephyper.retire_on_eviction(search, place)
            evaluator = Evaluator.create(run, method="process", method_kwargs={"num_workers": 2})
            results = search.search(evaluator, max_evals=10)
            repository = freshet.Repository(place)
            print(os.getpid() in set(results["m:pid"]), len(repository.versions("search")) == len(results),
                  results["m:parent"].notna().any(), repository.quality("search@best") == results["objective"].astype(float).max(),
                  {pin for row in repository.versions("search") if not row.retired for pin in repository.pins(row.version)})
    """, folder)
    code, out, err = search.end()
    assert code == 0, err
    assert out.splitlines()[-1] == "False True True True set()", out


def test_only_a_search_with_a_population():
    with pytest.raises(freshet.InvalidArgument, match="population.*keep="):
        fd.retire_on_eviction(object(), "runs/")
