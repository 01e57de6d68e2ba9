# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine `freshet`, in vLLM's own base classes and factories: whole versions or none, only what changed, and the version of
before where a load fails. A server is its workers' engines here, since vLLM's own needs a GPU."""
import http.server
import importlib
import json
import os
import sys
import threading
import types

import pytest

torch = pytest.importorskip("torch")

import freshet
import freshet.vllm
from conftest import PATIENCE, eventually, stand_still
from pages import blocks_of

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


@pytest.fixture(scope="module")
def vllm():
    """vLLM's package of weight transfer, with the engine in it."""
    try:
        package = importlib.import_module("vllm.distributed.weight_transfer")
    except ImportError as error:
        pytest.skip(f"without vLLM's classes of weight transfer: {error}")
    for _ in range(2):  # Each process of vLLM may call it again.
        freshet.vllm.register()
    return package


def load_rows(param, tensor, first, end):
    """As the loaders of vLLM's parameters: they know which part of a fused one a tensor is."""
    target = param.data[first:end]
    assert target.shape == tensor.shape and target.dtype == tensor.dtype
    target.copy_(tensor)


class Model(torch.nn.Module):
    """A model of vLLM's, as far as a worker sees it: q and k are fused, tensors come by checkpoint names."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 6) for _ in range(2)])  # The weight: rows of q, rows of k.
        self.head = torch.nn.Linear(4, 2, bias=False).to(torch.bfloat16)
        self.loads, self.fails = [], 0  # How often a load is to end at layers.1.bias.
        for parameter in self.parameters():
            parameter.data.fill_(-1)
            parameter.weight_loader = load_rows

    def load_weights(self, weights):
        names = []
        for name, tensor in weights:
            if self.fails and name == "layers.1.bias":
                self.fails -= 1
                raise ValueError(f"there is no module or parameter named {name!r}")
            names.append(name)
            layer, part = name[:-len("q.weight")], name[-len("q.weight"):]
            fused = part in ("q.weight", "k.weight")
            parameter = self.get_parameter(layer + "weight" if fused else name)
            rows = (0, 3) if part == "q.weight" else (3, 6) if fused else (0, len(parameter))
            getattr(parameter, "weight_loader", load_rows)(parameter, tensor, *rows)
        self.loads.append(names)

    def has(self, tensors):
        parts = {"head.weight": self.head.weight}
        for number, layer in enumerate(self.layers):
            parts.update({f"layers.{number}.q.weight": layer.weight[:3], f"layers.{number}.k.weight": layer.weight[3:],
                          f"layers.{number}.bias": layer.bias})
        return all(torch.equal(parts[name].cpu(), tensors[name]) for name in parts)


def checkpoint(value):
    tensors = {"head.weight": torch.full((2, 4), value, dtype=torch.bfloat16)}
    for number in range(2):
        tensors.update({f"layers.{number}.q.weight": torch.full((3, 4), value), f"layers.{number}.k.weight": torch.full((3, 4), value),
                        f"layers.{number}.bias": torch.full((6,), value)})
    return tensors


class Ranks:
    """The workers of one server, and the client that drives them: each call goes to all, and fails where one fails. What vLLM's
    worker counts of a session is counted alike."""

    def __init__(self, vllm, count=2):
        config = types.SimpleNamespace(backend="freshet")
        self.engines, self.calls, self.told = [], [], None
        for rank in range(count):
            of_model = types.SimpleNamespace(parallel_config=types.SimpleNamespace(rank=rank), model_config=types.SimpleNamespace(quantization=None))
            self.engines.append(vllm.WeightTransferEngineFactory.create_engine(config, of_model, torch.device("cpu"), Model()))
        self.active = [False] * count
        self.spoils = None  # A rank that gets another digest.

    @property
    def models(self):
        return [engine.model for engine in self.engines]

    def init_weight_transfer_engine(self, init_info):
        init_info = json.loads(json.dumps(init_info))  # As over HTTP.
        for engine in self.engines:
            engine.init_transfer_engine(engine.parse_init_info(init_info))

    def start_weight_update(self):
        self.calls.append("start")
        for rank, engine in enumerate(self.engines):
            if self.active[rank]:
                raise RuntimeError("a weight update is already active")
            engine.start_weight_update()
            self.active[rank] = True

    def update_weights(self, update_info):
        self.calls.append("cancel" if update_info["cancel"] else "update")
        update_info = json.loads(json.dumps(update_info))
        failed = None
        for rank, engine in enumerate(self.engines):
            told = {**update_info, "digest": "0" * 32} if rank == self.spoils else update_info
            try:
                if not self.active[rank]:
                    raise RuntimeError("start_weight_update must be called first")
                engine.receive_weights(engine.parse_update_info(told))
            except Exception as error:
                self.active[rank] = False
                failed = failed or error
        if failed is not None:
            raise failed

    def finish_weight_update(self, weight_version=None):
        self.calls.append("finish")
        failed = None
        for rank, engine in enumerate(self.engines):
            try:
                if not self.active[rank]:
                    raise RuntimeError("there is no update to finish")
                engine.finish_weight_update()
                self.active[rank] = False
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
        self.told = weight_version

    def close(self):
        for engine in self.engines:
            engine.shutdown()


@pytest.fixture
def server(vllm):
    ranks = Ranks(vllm)
    yield ranks
    ranks.close()


def trainer_of(vllm, client, source=None, **how):
    info = freshet.vllm.TrainerInfo(how.pop("model", "policy"), rank=how.pop("rank", 0), timeout=PATIENCE, **how)
    return vllm.WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


@pytest.fixture
def trainer(vllm, server):
    engine = trainer_of(vllm, server)
    yield engine
    engine.shutdown()


def test_each_process_of_vllm_registers_it():
    tomllib = pytest.importorskip("tomllib")
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["vllm.general_plugins"]
    module, _, function = points["freshet"].partition(":")
    assert getattr(importlib.import_module(module), function) is freshet.vllm._plugin


def test_a_vllm_without_our_engines_factory_starts(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer.factory", None)
    freshet.vllm._plugin()
    assert "vLLM has no engine freshet" in caplog.text
    with pytest.raises(ImportError):
        freshet.vllm.register()


def test_all_comes_first_and_then_what_changed(server, trainer):
    tensors = checkpoint(1.0)
    assert trainer.send_weights(tensors, step=7, metrics={"reward": 0.5}) == 1
    assert all(model.has(tensors) and sorted(model.loads[0]) == sorted(tensors) for model in server.models)
    assert server.told == "1" and server.calls == ["start", "update", "finish"]
    tensors["layers.1.k.weight"] = torch.full((3, 4), 2.0)
    assert trainer.send_weights(tensors) == 2
    assert all(model.has(tensors) and model.loads[1:] == [["layers.1.k.weight"]] for model in server.models)
    assert trainer.send_weights(tensors) == 3 and server.told == "3"
    assert all(len(model.loads) == 2 and engine.version == 3 for model, engine in zip(server.models, server.engines))


def test_a_source_of_vllms_is_sent_by_rank_0(vllm, server):
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList()
    for name, tensor in checkpoint(3.0).items():
        at = module
        for part in name.split(".")[:-1]:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_parameter(name.rpartition(".")[2], torch.nn.Parameter(tensor))
    source = vllm.ModuleSource(module)
    other = trainer_of(vllm, None, source, rank=1)
    assert other.send_weights() == 0
    with pytest.raises(freshet.FailedPrecondition, match="not of rank 0"):
        other.publisher
    first = trainer_of(vllm, server, source)
    try:
        assert first.send_weights() == 1 and all(model.has(checkpoint(3.0)) for model in server.models)
        with pytest.raises(freshet.InvalidArgument, match="no source"):
            first.send_weights(checkpoint(4.0))
    finally:
        first.shutdown()


def test_vllms_own_client_drives_it_over_http(vllm, server):
    pytest.importorskip("requests")

    class Handler(http.server.BaseHTTPRequestHandler):
        """The routes of vLLM's server. What a worker raises is a 500, as there."""

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}") or {}
            try:
                getattr(server, self.path[1:])(**body)
                status = 200
            except Exception:
                status = 500
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        trainer = trainer_of(vllm, vllm.HTTPVLLMWeightSyncClient(f"http://127.0.0.1:{served.server_port}", timeout=PATIENCE))
        try:
            assert trainer.send_weights(checkpoint(1.0)) == 1 and server.told == "1"
            server.spoils = 0
            with pytest.raises(Exception, match="500"):
                trainer.send_weights(checkpoint(2.0))
            assert all(model.has(checkpoint(1.0)) for model in server.models) and server.active == [False, False]
            server.spoils = None
            assert trainer.send_weights(checkpoint(3.0)) == 3 and server.told == "3"
            assert all(model.has(checkpoint(3.0)) for model in server.models)
        finally:
            trainer.shutdown()
            served.shutdown()


def test_a_rank_that_has_another_version_fails_for_all_and_nothing_is_loaded(server, trainer):
    trainer.send_weights(checkpoint(1.0))
    server.spoils = 1
    with pytest.raises(freshet.FailedPrecondition, match="policy@2 with digest 0000.* was asked for"):
        trainer.send_weights(checkpoint(2.0))
    assert all(model.has(checkpoint(1.0)) and len(model.loads) == 1 for model in server.models)
    assert server.told == "1" and server.active == [False, False], "the rank that had staged it was told to let go"
    server.spoils = None
    assert trainer.send_weights(checkpoint(3.0)) == 3 and all(model.has(checkpoint(3.0)) for model in server.models)


def test_a_worker_that_is_gone_is_told_before_vllm_hears_of_a_version(server, trainer):
    trainer.send_weights(checkpoint(1.0))
    server.engines[1].shutdown()
    assert eventually(lambda: sum(one["member"] for one in trainer.publisher.stat()["subscribers"]) == 1)
    del server.calls[:]
    with pytest.raises(freshet.Unavailable, match="1 of 2 workers"):
        trainer.send_weights(checkpoint(2.0))
    assert server.calls == [] and all(model.has(checkpoint(1.0)) for model in server.models)


def test_a_worker_that_is_killed_amid_a_version_stops_it_for_all(server, trainer, program, run_dir):
    """A rank in a process of its own, which stands still when the version comes: the others have it, and load nothing."""
    trainer.send_weights(checkpoint(1.0))
    other = program("""
        import freshet
        with freshet.Subscriber("policy", staged=True, label="vllm rank 2") as subscriber:
            print(subscriber.wait_for(), flush=True)
            input()
    """)
    assert other.line() == "1"
    trainer._members += 1
    stand_still(other.process.pid)
    sent = []

    def send():
        try:
            sent.append(trainer.send_weights(checkpoint(2.0)))
        except freshet.Unavailable as error:
            sent.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    assert eventually(lambda: trainer.publisher.stat()["candidate"] == 2)
    other.process.kill()
    thread.join(PATIENCE)
    assert isinstance(sent[0], freshet.Unavailable) and "2 of 3 workers" in str(sent[0])
    assert all(model.has(checkpoint(1.0)) for model in server.models) and server.told == "1"


@pytest.mark.parametrize("before", [-1.0, 1.0])
def test_a_load_that_fails_leaves_the_weights_of_before(server, trainer, before):
    """Amid the first version, over what vLLM loaded itself, and amid a later one."""
    if before == 1.0:
        trainer.send_weights(checkpoint(before))
    for model in server.models:
        model.fails = 1
    with pytest.raises(ValueError, match="no module or parameter named 'layers.1.bias'"):
        trainer.send_weights(checkpoint(2.0))
    assert all(model.has(checkpoint(before)) and not model.fails for model in server.models)
    assert server.active == [False, False]
    assert trainer.send_weights(checkpoint(3.0)) and all(model.has(checkpoint(3.0)) for model in server.models)


def test_a_model_that_is_torn_is_told_and_loaded_whole(server, trainer, caplog):
    tensors = checkpoint(1.0)
    trainer.send_weights(tensors)
    server.models[1].fails = 2  # Also on the way back.
    for name in ("layers.0.bias", "layers.1.bias"):
        tensors[name] = torch.full((6,), 2.0)
    with pytest.raises(ValueError):
        trainer.send_weights(tensors)
    assert sum("parts of two versions" in record.getMessage() for record in caplog.records) == 1
    tensors["head.weight"] = torch.full((2, 4), 4.0, dtype=torch.bfloat16)
    trainer.send_weights(tensors)
    assert all(model.has(tensors) for model in server.models)
    assert [len(model.loads[-1]) for model in server.models] == [1, 7], "the other rank had the version before already"


def test_another_trainer_goes_on(vllm, server, trainer):
    trainer.send_weights(checkpoint(1.0))
    trainer.shutdown()
    with pytest.raises(freshet.FailedPrecondition):
        trainer.send_weights(checkpoint(2.0))
    second = trainer_of(vllm, server)
    try:
        assert second.send_weights(checkpoint(2.0)) > 1
        assert all(model.has(checkpoint(2.0)) for model in server.models)
    finally:
        second.shutdown()


class Dying:
    """A trainer's client that comes to so many calls more, and then to none: also not to those that would end the update."""

    def __init__(self, ranks):
        self.ranks, self.left = ranks, 10

    def __getattr__(self, name):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the trainer is dead")
        return getattr(self.ranks, name)


@pytest.mark.parametrize("calls", [["start"], ["start", "update"]])
def test_an_update_that_a_dead_trainer_left_open_is_cancelled(vllm, server, calls):
    client = Dying(server)
    first = trainer_of(vllm, client)
    first.send_weights(checkpoint(1.0))
    client.left = len(calls)
    del server.calls[:]
    with pytest.raises(ConnectionError):
        first.send_weights(checkpoint(7.0))
    first.shutdown()
    assert server.calls == calls and all(server.active)
    second = trainer_of(vllm, server)
    try:
        del server.calls[:]
        version = second.send_weights(checkpoint(2.0))
        assert server.calls == ["start", "cancel", "finish", "start", "update", "finish"] or \
            server.calls == ["start", "cancel", "start", "update", "finish"], server.calls
        assert all(model.has(checkpoint(2.0)) for model in server.models) and server.told == str(version)
        assert all(len(model.loads) == 2 for model in server.models), "what was left open was never loaded"
        del server.calls[:]
        second.send_weights(checkpoint(3.0))
        assert server.calls == ["start", "update", "finish"], "nothing is left open"
    finally:
        second.shutdown()


def test_a_worker_without_a_publisher_says_so(server):
    engine = server.engines[0]
    with pytest.raises(freshet.TimedOut, match="no publisher of nobody answered within 0.1 s"):
        engine.init_transfer_engine(engine.parse_init_info({"model": "nobody", "timeout": 0.1}))
    engine.start_weight_update()
    with pytest.raises(freshet.FailedPrecondition, match="was not initialized"):
        engine.receive_weights(engine.parse_update_info({"version": 1, "digest": "0" * 32}))
    engine.finish_weight_update()
    assert engine.model.loads == []


def test_what_comes_from_outside_is_checked(vllm, server):
    engine = server.engines[0]
    for init in ({}, {"model": ""}, {"model": 3}, {"model": "m", "at": 7}, {"model": "m", "timeout": 0}, {"model": "m", "timeout": "soon"},
                 {"model": "m", "reload": "both"}, {"model": "m", "channel": None}, {"model": "m", "more": 1}):
        with pytest.raises(ValueError):
            engine.parse_init_info(init)
    for update in ({}, {"version": 1}, {"version": 0, "digest": "0" * 32}, {"version": True, "digest": "0" * 32},
                   {"version": 1, "digest": "0" * 31}, {"version": 1, "digest": "G" * 32}, {"version": 1, "digest": "0" * 32, "cancel": "no"}):
        with pytest.raises(ValueError):
            engine.parse_update_info(update)
    with pytest.raises(freshet.InvalidArgument, match="worker: .*nonsense"):
        freshet.vllm.TrainerInfo("m", rank=0, worker={"nonsense": 1})


def test_converted_weights_are_loaded_a_layer_at_a_time(vllm):
    """By vLLM's own reloading of layers, which builds a layer out of all its tensors."""
    try:
        from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    except ImportError as error:
        pytest.skip(f"without vLLM's reloading of layers: {error}")
    server = Ranks(vllm)
    for model in server.models:
        record_metadata_for_reloading(model)
    trainer = trainer_of(vllm, server, worker={"reload": "layerwise"})
    try:
        tensors = checkpoint(1.0)
        trainer.send_weights(tensors)
        addresses = [[parameter.data_ptr() for parameter in model.parameters()] for model in server.models]
        tensors["layers.1.k.weight"] = torch.full((3, 4), 2.0)
        trainer.send_weights(tensors)
        for model, there in zip(server.models, addresses):
            assert model.has(tensors)
            assert sorted(model.loads[1]) == ["layers.1.bias", "layers.1.k.weight", "layers.1.q.weight"]
            assert [parameter.data_ptr() for parameter in model.parameters()] == there, "graphs of CUDA would read elsewhere"
    finally:
        trainer.shutdown()
        server.close()


def test_the_page_imports_what_vllm_has(vllm):
    pytest.importorskip("transformers")
    [text] = [text for _, name, text in blocks_of("vllm.md") if name == "trainer.py"]
    lines = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    names = {}
    exec("\n".join(lines), names)
    assert any("vllm.distributed" in line for line in lines) and vllm.WeightTransferTrainerFactory is names["WeightTransferTrainerFactory"]
