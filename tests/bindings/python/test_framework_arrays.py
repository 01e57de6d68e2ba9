# SPDX-License-Identifier: Apache-2.0
"""Arrays of the frameworks, given as they are: of types that NumPy lacks, with gradients, replaced between two publishes."""
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest

import freshet
from conftest import PATIENCE

TORCH = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "uint8", "bool"]
JAX = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "uint8", "bool"]


def served(pair, tensors):
    publisher, subscriber = pair
    subscriber.wait_for(publisher.publish(tensors).version, PATIENCE)
    return dict(subscriber.snapshot())


def of_torch(dtype):
    torch = pytest.importorskip("torch")
    return torch.tensor([[0.0, 1.0, 2.0], [-3.0, 1.5, 0.5]]).to(getattr(torch, dtype)).t()


def of_jax(dtype):
    jax = pytest.importorskip("jax")
    return jax.numpy.array([[0.0, 1.0, 2.0], [3.0, 1.5, 0.5]]).astype(dtype)


GIVEN = [*((of_torch, dtype) for dtype in TORCH), *((of_jax, dtype) for dtype in JAX)]
IDS = [f"{make.__name__}-{dtype}" for make, dtype in GIVEN]


@pytest.mark.parametrize("make, dtype", GIVEN, ids=IDS)
def test_a_type_comes_as_it_went(pair, make, dtype):
    sent = make(dtype)
    came = served(pair, {"w": sent, "beside": np.ones(1)})["w"]
    assert came.dtype.name == dtype and came.shape == tuple(sent.shape)
    want = sent.float().numpy() if hasattr(sent, "float") else np.asarray(sent.astype("float32"))
    np.testing.assert_array_equal(came.astype(np.float32), want)


@pytest.mark.parametrize("make, dtype", GIVEN, ids=IDS)
def test_a_repository_takes_it_too(folder, make, dtype):
    with freshet.Repository(folder + "/runs") as repository:
        sent = make(dtype)
        came = repository.get(repository.put("m", {"w": sent}))["w"]
        assert came.dtype.name == dtype and came.shape == tuple(sent.shape)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_modules_state_is_given_as_it_is(pair, dtype):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(3, 2).to(getattr(torch, dtype))
    came = served(pair, module.state_dict())
    assert sorted(came) == ["bias", "weight"] and came["weight"].dtype.name == dtype
    came = served(pair, dict(module.named_parameters()))  # With gradients.
    np.testing.assert_array_equal(came["weight"].astype(np.float32), module.weight.detach().float().numpy())
    bound = pair[0].bind(module.state_dict())
    with torch.no_grad():
        module.bias.fill_(5)
    pair[1].wait_for(bound.publish().version, PATIENCE)
    assert (pair[1].snapshot()["bias"].astype(np.float32) == 5).all(), "it is read in place"


def test_a_negated_view_is_read_anew(pair):
    torch = pytest.importorskip("torch")
    numbers = torch.zeros(3, dtype=torch.complex64)
    bound = pair[0].bind({"w": numbers.conj().imag})
    bound.publish()
    numbers.imag.fill_(2)
    pair[1].wait_for(bound.publish().version, PATIENCE)
    assert pair[1].snapshot()["w"].tolist() == [-2, -2, -2]


@pytest.mark.parametrize("name, make", [
    ("meta", lambda torch: torch.empty(3, device="meta")), ("complex", lambda torch: torch.zeros(2, dtype=torch.complex128)),
    ("sparse", lambda torch: torch.eye(2).to_sparse()),
])
def test_what_is_no_tensor_of_a_model_is_refused_by_name(pair, name, make):
    torch = pytest.importorskip("torch")
    with pytest.raises(freshet.InvalidArgument, match=f"tensor {name}:"):
        pair[0].publish({"good": np.ones(2), name: make(torch)})


def test_a_checkpoint_of_bf16_and_what_cannot_be_filled(tmp_path):
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    how = {"local": str(tmp_path), "rank": 0, "ranks": 1}
    state = {"w": torch.full((4, 3), 1.5, dtype=torch.bfloat16)}
    with freshet.Checkpointer("net", state, **how) as checkpointer:
        assert checkpointer.restore(state) is None
        checkpointer.wait(checkpointer.checkpoint(1, state).version, "local", PATIENCE)
        checkpointer.finish(PATIENCE)
    filled = {"w": torch.zeros((4, 3), dtype=torch.bfloat16)}
    with freshet.Checkpointer("net", filled, **how) as checkpointer:
        with pytest.raises(freshet.InvalidArgument, match="tensor w: .*fill|tensor w: .*read-only"):
            checkpointer.restore({"w": jax.numpy.zeros((4, 3), "bfloat16")})
        assert checkpointer.restore(filled).step == 1
        checkpointer.finish(PATIENCE)
    assert torch.equal(filled["w"], state["w"])
