# SPDX-License-Identifier: Apache-2.0
"""What handles say of themselves, and whom errors name."""
import importlib.metadata
import os

import numpy as np
import pytest

import freshet
from conftest import PATIENCE


def test_the_version_is_the_package_s():
    assert freshet.__version__ == importlib.metadata.version("freshet") and "__version__" in dir(freshet)


def test_handles_say_of_whom_they_are_and_how_they_stand(pair, folder):
    publisher, subscriber = pair
    assert repr(publisher) == "<freshet.Publisher of m, nothing published yet>"
    assert repr(subscriber) == "<freshet.Subscriber of m, no version yet>"
    bound = publisher.bind({"w": np.ones(2)})
    assert repr(bound) == "<freshet.publisher.Bound, 1 tensors of m>"
    subscriber.wait_for(bound.publish().version, PATIENCE)
    assert repr(publisher) == "<freshet.Publisher of m, last @1>"
    assert repr(subscriber) == "<freshet.Subscriber of m, serving @1>"
    place = os.path.join(folder, "repository")
    with freshet.Repository(place).sink("m") as sink:
        assert repr(sink) == f"<freshet.Sink of m into {place}>"
    assert repr(sink).endswith(", closed>")
    assert repr(freshet.Scheduler("every:3")) == "freshet.Scheduler('every:3')"
    publisher.close()
    subscriber.close()
    assert repr(publisher).endswith(", closed>") and repr(subscriber).endswith(", closed>")
    with freshet.Checkpointer("job", {"w": np.ones(2)}, local=os.path.join(folder, "ck"), rank=0, ranks=1) as checkpointer:
        assert repr(checkpointer) == "<freshet.Checkpointer of job>"


def test_a_wait_in_vain_names_the_model_and_the_run_folder(run_dir, folder):
    with freshet.Subscriber("digits", every=True) as subscriber:
        for wait in (lambda: subscriber.wait_for(timeout=0.01), lambda: subscriber.snapshot(1, timeout=0.01),
                     lambda: subscriber.next(timeout=0.01)):
            with pytest.raises(freshet.TimedOut, match="digits") as raised:
                wait()
            assert run_dir in str(raised.value)
        status = subscriber.status()
        assert status["model"] == "digits" and run_dir in status["directory"]
    with freshet.Publisher("digits") as publisher:
        publisher.publish({"w": np.ones(2)}, sync=True)
        with freshet.Repository(os.path.join(folder, "repository")).sink("digits") as sink:
            with pytest.raises(freshet.TimedOut, match="digits into .*repository"):
                sink.wait_for(99, timeout=0.01)


CELL = """
    import freshet
    publisher = freshet.Publisher("digits")
    print("open", flush=True)
    input()
"""


def test_a_cell_that_runs_twice_is_told_that_it_is_the_publisher_itself(program):
    first = freshet.Publisher("digits")
    with pytest.raises(freshet.AlreadyExists, match="this program itself.*close.*cell that runs twice"):
        freshet.Publisher("digits")
    first.close()
    other = program(CELL)
    assert other.line() == "open"
    with pytest.raises(freshet.AlreadyExists) as raised:
        freshet.Publisher("digits")
    assert "this program" not in str(raised.value) and str(other.process.pid) in str(raised.value)
