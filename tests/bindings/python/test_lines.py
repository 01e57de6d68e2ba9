# SPDX-License-Identifier: Apache-2.0
"""The lines that the pages promise work after `import freshet` alone."""
import importlib.util
import textwrap

import pytest

import freshet

# What a program has before these lines, and the lines.
LINES = {
    "a Keras callback": (("keras", "jax"), """
        import keras, numpy as np
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        x, y = np.ones((8, 4)), np.ones((8, 1))
    """, """
        model.fit(x, y, verbose=0, callbacks=[freshet.keras.PublishCallback("digits")])
    """),
    "an attached module": (("torch",), """
        import torch
        module, sub = torch.nn.Linear(2, 2), freshet.Subscriber("digits")
    """, """
        freshet.torch.attach(module, sub)
    """),
    "a storage writer": (("torch",), """
        import torch, torch.distributed.checkpoint as dcp
        state = {"w": torch.ones(2)}
    """, """
        dcp.save(state, storage_writer=freshet.torch.StorageWriter("runs/", "net"))
    """),
    "a search": (("torch", "deephyper"), """
        import torch, types
        from deephyper.hpo import HpProblem, RegularizedEvolution
        problem = HpProblem()
        problem.add((1, 8), "units")
        build = lambda parameters: torch.nn.Linear(2, parameters["units"])
        train = lambda model: 0.5
    """, """
        def run(job):
            model = build(job.parameters)
            with freshet.deephyper.evaluate(job, model, "runs/") as e:
                e.objective = train(model)
            return e.result
        search = freshet.deephyper.retire_on_eviction(RegularizedEvolution(problem), "runs/")
        run(types.SimpleNamespace(parameters={"units": 3}, id="0"))
    """),
    "tiers": ((), "", "freshet.tier.upcoming"),
}


@pytest.mark.parametrize("what", LINES)
def test_one_import_is_enough(program, folder, what):
    needed, before, lines = LINES[what]
    for module in needed:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"without {module}")
    text = f"""
import os, sys, warnings
os.environ.update(KERAS_BACKEND="jax", TF_CPP_MIN_LOG_LEVEL="3")
warnings.simplefilter("ignore")
os.chdir(sys.argv[1])
import freshet
"""
    ran = program(text + textwrap.dedent(before) + textwrap.dedent(lines) + "\nprint('done')\n", folder)
    assert ran.line() == "done"


def test_a_name_that_is_none_is_said(program):
    with pytest.raises(AttributeError, match="'freshet' has no attribute 'flax'"):
        freshet.flax
    assert {"Publisher", "deephyper", "tier"} <= set(dir(freshet))
    looked = program("""
        import sys, freshet
        dir(freshet), hasattr(freshet, "flax")
        print(sorted(set(sys.modules) & {"torch", "tensorflow", "keras", "jax", "deephyper"}))
    """)
    assert looked.line() == "[]"


def test_a_framework_that_is_missing_is_named(program):
    looked = program("""
        import sys, freshet
        sys.modules["keras"] = None
        try:
            freshet.keras
        except ImportError as error:
            print(error)
    """)
    assert "keras" in looked.line()
