# SPDX-License-Identifier: Apache-2.0
"""The base class of a model in Triton's Python backend."""
from __future__ import annotations

import contextlib
import importlib
import json
import time
import traceback
from typing import Any, Dict, List, Mapping

import numpy as np

from .._errors import Cancelled, Error, InvalidArgument, TimedOut, Unavailable
from ..serving import Journal
from ..subscriber import Snapshot, Subscriber
from ._config import Config, Wish, settings_of, wish_of
from ._tensors import array_of, check_outputs, tensor_of
from ._waits import Waits

# How long an instance waits for a version at a time while requests wait, and so how long it keeps another request waiting.
_PAUSE = 0.002
_FIRST = 0.5       # Seconds that an instance which starts waits for a first version.
_TRACES_MAX = 100  # Places of the user's code whose traceback goes to the server's log, once each.


class Model:
    """A Triton model whose weights are a published model's newest version. Subclass it as TritonPythonModel in 1/model.py, and
    write infer(). Triton makes an object for each instance, each in a process of its own; all of them map the same memory.

    Class attributes, which `parameters` of config.pbtxt override under the same names after "freshet.":

    model                   the published model's name; "": Triton's name of the model.
    at, keys, server_key, channel, directory
                            as Subscriber() takes them. Names of files, also of the journal, may be relative to the model's folder.
    label                   how `freshet top` shows an instance; "": its name in Triton.
    journal                 the file in which each answer is noted whose request has an id (freshet.serving.Journal); None: no file.
    min_version_timeout_ms  how long a request with `min_version` waits that does not say so itself.

    A request may have the parameters `min_version` (this version or a later one answers it) and `min_version_timeout_ms`.
    An output `weight_version` (TYPE_INT64, dims [1]) in config.pbtxt has the number of the version that answered.
    """

    model: str = ""
    at: str | None = None
    keys: str | None = None
    server_key: str | None = None
    channel: str = "auto"
    directory: str | None = None
    label: str = ""
    journal: str | None = None
    min_version_timeout_ms: float = 1000

    def infer(self, weights: Snapshot, inputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Answers one request: outputs by their names in config.pbtxt, arrays of the types that it lists. `weights` is one whole
        version, a mapping of names to read-only arrays, with `.version` and `.metrics`; `inputs` has the request's arrays,
        read-only too, and with the batch first where the config has max_batch_size. Both are the request's alone: copy what
        shall outlive it. What infer() raises is the answer of this request, and of no other."""
        raise NotImplementedError(f"{type(self).__name__} has no infer(self, weights, inputs)")

    def initialize(self, args: Mapping[str, str]) -> None:
        """Triton calls it once for each instance. A trainer need not be there. InvalidArgument names a setting that is wrong."""
        # Triton's own module: it exists within the server's processes alone.
        self._triton: Any = importlib.import_module("triton_python_backend_utils")
        self._config = Config(json.loads(args["model_config"]))
        settings = settings_of(self, self._config, args["model_repository"])
        self._timeout_ms = settings.pop("min_version_timeout_ms")
        self._name = settings.pop("model") or args["model_name"]
        settings["label"] = settings["label"] or f"triton {args['model_instance_name']}"
        self._waits = Waits(self._config.waiters_max)
        self._traced: set[str] = set()
        journal = settings.pop("journal")
        self._journal = Journal(journal) if journal else None
        if not self._config.can_put_back:
            self._log("log_warn", f"{args['model_name']}: a request that waits for its min_version stops its instance: config.pbtxt "
                                  f"lacks `sequence_batching {{ iterative_sequence: true oldest {{ … }} }}`")
        self._subscriber = Subscriber(self._name, **settings)
        with contextlib.suppress(Error):  # An instance that starts again has a version when it takes requests.
            self._subscriber.wait_for(timeout=_FIRST)

    def finalize(self) -> None:
        """Triton calls it when the instance ends."""
        self._subscriber.close()
        if self._journal is not None:
            self._journal.close()

    def execute(self, requests: List[Any]) -> List[Any]:
        """Triton calls it with requests that come together. All of them that need not wait are answered with one version."""
        answers: List[Any] = [None] * len(requests)
        wishes: Dict[int, Wish] = {}
        for index, request in enumerate(requests):
            try:
                wishes[index] = wish_of(request.parameters(), self._timeout_ms)
            except Exception as error:  # Also parameters that are no text: they fail this request alone.
                answers[index] = self._refusal(error, "INVALID_ARG")
        waiting = self._answer(requests, wishes, answers)
        if waiting:
            self._wait(requests, {index: wishes[index] for index in waiting}, answers)
        if self._waits:  # Those that came back, and have their answer.
            for request, answer in zip(requests, answers):
                if answer is not None:
                    self._waits.over(request.correlation_id())
        return answers

    def _answer(self, requests: List[Any], wishes: Mapping[int, Wish], answers: List[Any]) -> List[int]:
        """Answers those that the served version is new enough for; gives the others."""
        try:
            weights = self._subscriber.snapshot()
        except Error as error:
            for index, wish in wishes.items():
                if wish.min_version == 0:
                    answers[index] = self._refusal(error, "UNAVAILABLE" if isinstance(error, Unavailable) else "INTERNAL")
            return [index for index in wishes if answers[index] is None]
        with weights:
            version = weights.version
            for index, wish in wishes.items():
                if wish.min_version <= version:
                    answers[index] = self._inferred(requests[index], weights)
                    if self._journal is not None:
                        self._note(self._journal, requests[index], weights)
            return [index for index in wishes if answers[index] is None]

    def _wait(self, requests: List[Any], wishes: Mapping[int, Wish], answers: List[Any]) -> None:
        """Requests whose version is not there yet. An instance runs one execute() at a time; so these go back to Triton's queue,
        behind the requests that came meanwhile, until their time is over. Where Triton cannot put them back, they wait here, after
        the others of the batch were computed."""
        begin = time.monotonic()
        ends = {index: begin + wish.timeout_ms / 1000 for index, wish in wishes.items()}
        if self._config.can_put_back:
            self._put_back(requests, wishes, answers, ends)
            return
        left = dict(wishes)
        while left:
            left = self._look(requests, left, answers, ends, min(ends[index] for index in left) - time.monotonic())

    def _put_back(self, requests: List[Any], wishes: Mapping[int, Wish], answers: List[Any], ends: Dict[int, float]) -> None:
        """Answers what can be answered now, and what waits too long; too many are refused."""
        sequences = {index: requests[index].correlation_id() for index in wishes}
        ends = {index: self._waits.end(sequences[index], end) for index, end in ends.items()}
        now = time.monotonic()
        alone = len(wishes) == len(requests)
        patience = min(_PAUSE, min(ends.values()) - now) if alone and self._waits.paces(list(sequences.values()), now) else 0.0
        for index in self._look(requests, dict(wishes), answers, ends, patience):
            if self._waits.keep(sequences[index], ends[index], now):
                requests[index].set_release_flags(self._triton.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            else:
                answers[index] = self._refusal(f"{len(self._waits)} requests of this instance wait for a min_version already; ask again "
                                               f"later, or for an older version", "UNAVAILABLE")

    def _look(self, requests: List[Any], wishes: Dict[int, Wish], answers: List[Any], ends: Mapping[int, float],
              patience: float) -> Dict[int, Wish]:
        """Waits so many seconds at most for the first version that one of these asks for. Gives those that wait on."""
        left = wishes
        try:
            self._subscriber.wait_for(min(wish.min_version for wish in left.values()), max(0.0, patience))
            left = {index: left[index] for index in self._answer(requests, left, answers)}
        except (TimedOut, Cancelled):
            pass
        now = time.monotonic()
        for index in [index for index in left if ends[index] <= now]:
            answers[index] = self._too_late(left[index])
        return {index: wish for index, wish in left.items() if answers[index] is None}

    def _too_late(self, wish: Wish) -> Any:
        served = self._subscriber.version
        has = f"version {served} is served" if served else "no version is served yet"
        return self._refusal(TimedOut(f"the request asks for version {wish.min_version} or a later one (min_version); "
                                      f"{has}, after {wish.timeout_ms:g} ms. Ask for an older one, or wait longer "
                                      f"with min_version_timeout_ms"), "UNAVAILABLE")

    def _inferred(self, request: Any, weights: Snapshot) -> Any:
        try:
            inputs = {tensor.name(): array_of(tensor, self._config) for tensor in request.inputs()}
            outputs = self.infer(weights, inputs)
            wanted = request.requested_output_names()
            arrays = check_outputs(outputs, self._config, inputs, wanted, weights.version)
            return self._triton.InferenceResponse([tensor_of(self._triton, name, array) for name, array in arrays.items()])
        except BaseException as error:  # SystemExit too: the process answers others.
            self._trace(error, weights)
            what = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
            return self._refusal(f"version {weights.version}: {what}",
                                 "INVALID_ARG" if isinstance(error, InvalidArgument) else "INTERNAL")

    def _note(self, journal: Journal, request: Any, weights: Snapshot) -> None:
        """A line of the journal, also where infer() raised. An answer without an id is one that nobody can ask for later."""
        try:
            if request_id := request.request_id():
                journal.record(request_id, weights)
        except Exception as error:  # An id that is none, or an infer() that closed its snapshot: no reason to fail an answer.
            if "journal" not in self._traced:
                self._traced.add("journal")
                self._log("log_warn", f"{self._name}: no line in the journal {journal.path} (said once): {error}")

    def _refusal(self, why: Any, code: str) -> Any:
        said = str(why)
        said = said if said.startswith(f"{self._name}:") else f"{self._name}: {said}"
        return self._triton.InferenceResponse(error=self._triton.TritonError(said, getattr(self._triton.TritonError, code)))

    def _trace(self, error: BaseException, weights: Snapshot) -> None:
        """The server's log has the traceback of each place once: a model that fails at each request would fill the disk."""
        places = traceback.extract_tb(error.__traceback__)
        place = f"{type(error).__name__} {places[-1].filename}:{places[-1].lineno}" if places else type(error).__name__
        if place in self._traced or len(self._traced) >= _TRACES_MAX:
            return
        self._traced.add(place)
        self._log("log_error", f"{weights.model}@{weights.version}: a request failed (said once for {place}):\n"
                  + "".join(traceback.format_exception(type(error), error, error.__traceback__)))

    def _log(self, how: str, text: str) -> None:
        getattr(self._triton.Logger, how)(text)
