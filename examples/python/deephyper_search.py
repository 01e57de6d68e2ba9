#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Searches for a network for scikit-learn's digits with DeepHyper. Each candidate begins with the layers that it shares with the best
ancestor in a repository; the first of them stay frozen, and it trains the rest. What is Freshet's is marked."""
import argparse

import torch
from deephyper.evaluator import Evaluator
from deephyper.hpo import HpProblem, RegularizedEvolution
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import freshet.deephyper

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--repo", default="runs/", help="a folder, or a repository's address")
arguments.add_argument("--candidates", type=int, default=40)
arguments.add_argument("--population", type=int, default=10)
arguments.add_argument("--epochs", type=int, default=3)
options = arguments.parse_args(None if __name__ == "__main__" else [])

x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)
x, x_test = (torch.tensor(part / 16, dtype=torch.float32) for part in (x, x_test))
y, y_test = torch.tensor(y), torch.tensor(y_test)


def build(parameters):
    widths = [64, *(parameters[f"width{i}"] for i in range(3)), 10]
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def train(model):
    trainable = [one for one in model.parameters() if one.requires_grad]  # The others came from the ancestor.
    optimizer = torch.optim.Adam(trainable, lr=0.003) if trainable else None  # None: with freeze="all" nothing may be left.
    for _ in range(options.epochs if trainable else 0):
        for batch in torch.randperm(len(x)).split(32):
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return (model(x_test).argmax(1) == y_test).float().mean().item()


def problem():
    made = HpProblem()
    for i in range(3):
        made.add_hyperparameter([16, 32, 64, 128], f"width{i}")
    return made


def run(job):
    model = build(job.parameters)
    with freshet.deephyper.evaluate(job, model, options.repo) as e:                                   # Freshet
        e.objective = train(model)
    return e.result                                                                                    # Freshet


if __name__ == "__main__":
    torch.manual_seed(1)
    search = RegularizedEvolution(problem(), random_state=1, log_dir="deephyper_search", population_size=options.population,
                                  sample_size=max(2, options.population // 3))
    search = freshet.deephyper.retire_on_eviction(search, options.repo)                                # Freshet
    results = search.search(Evaluator.create(run, method="thread"), max_evals=options.candidates)
    from_others = results["m:lcp_bytes"] > 0
    print(f"{len(results)} candidates, {from_others.sum()} began with layers of an ancestor")
    print(f"best: accuracy {results['objective'].max():.3f}, stored as search@best in {options.repo}, of "
          f"{freshet.deephyper.parameters(options.repo)}")
