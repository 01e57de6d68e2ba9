# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: sessions that answer with the newest weights.

    session = freshet.onnx.Session("digits.onnx", freshet.Subscriber("digits"))
    answers = session.run(["y"], {"x": x})       # as InferenceSession.run()
    print(answers[0], answers.weight_version)
"""
from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import threading
import time
import weakref
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Sequence

import onnxruntime

from ._errors import Error, FailedPrecondition, InvalidArgument, TimedOut, Unsupported, check_type
from ._handles import Closing, drain
from ._numbers import whole
from ._onnx_graph import Graph, listed
from ._onnx_served import Answers, Served, values_of
from .subscriber import Snapshot, Subscriber

__all__ = ["Answers", "Served", "Session"]

_log = logging.getLogger("freshet")
_PATIENCE = 5          # Seconds that close() waits for a session that is being built.
_PATIENCE_AT_END = 60  # Likewise when the program ends: Python ends a thread within onnxruntime by aborting.
_open: "weakref.WeakSet[Session]" = weakref.WeakSet()


class Session(Closing):
    """`InferenceSession` with the weights that a subscriber has: each run answers with the newest version, all of it with one.

    path_or_bytes      an .onnx file, which has the graph. Initializers that are published have the published values, the others
                       the file's.
    subscriber         of the model whose tensors have the initializers' names.
    mode               "inputs": the initializers become graph inputs, bound to the memory where the version lies. A new version
                       costs next to nothing; runs cost what onnxruntime computes in advance from constants.
                       "session": an InferenceSession is built for each version beside the served one, which answers
                       meanwhile. A run costs what it costs without Freshet.
    names              {initializer: tensor}, where the names differ.
    strict             a version with tensors that the graph has no initializer for is refused; False leaves them out.
    sess_options, providers, provider_options, more
                       as InferenceSession takes them. `sess_options` may be a function that makes them. With "session" and a
                       SessionOptions object each version's weights are copied into the model's bytes, since such an object
                       takes the weights of one session only.

    A version that does not fit the graph is refused, which the log says once and status() keeps; the session answers with what it
    had. Any thread. After a fork, and after close(), each call is FailedPrecondition. When the subscriber was closed, the
    session answers with the version that it has.

    NotFound, IoError and InvalidArgument name the file that cannot be read, or is no ONNX model."""

    def __init__(self, path_or_bytes: "str | bytes | os.PathLike[str]", subscriber: Subscriber, mode: str = "inputs", *,
                 names: Mapping[str, str] | None = None, strict: bool = True, sess_options: Any = None,
                 providers: Sequence[Any] | None = None, provider_options: Sequence[Dict[Any, Any]] | None = None,
                 **more: Any) -> None:
        if mode not in ("inputs", "session"):
            raise InvalidArgument(f"mode={mode!r}: \"inputs\" or \"session\"")
        check_type("Session(…, subscriber)", subscriber, Subscriber)
        self._graph = Graph(path_or_bytes)
        self._names = self._checked(names)
        self._given = path_or_bytes
        self._subscriber = subscriber
        self._mode = mode
        self._strict = strict
        self._sess_options = sess_options
        self._how = dict(more, providers=providers, provider_options=provider_options)
        self._taking = threading.Lock()
        self._served: Served | None = None
        self._model: "tuple[FrozenSet[str], bytes] | None" = None  # Which initializers gave way, and the model without them.
        self._session: Any = None     # With "inputs": what all versions are bound to.
        self._file_session: Any = None  # What tells of inputs and outputs before a first version came.
        self._at: "weakref.WeakValueDictionary[int, Served]" = weakref.WeakValueDictionary()  # What at() returned, while it lives.
        self._built = 0
        self._refused: "tuple[int, str] | None" = None  # A version and why it cannot be served.
        self._said_closed = False
        self._closed = False
        self._pid = os.getpid()
        stopped, self._stop = os.pipe()
        self._ended = weakref.finalize(self, _end, self._stop, self._pid)
        news = subscriber._core.news()
        self._follower = threading.Thread(target=_follow, args=(weakref.ref(self), news, stopped), daemon=True,
                                          name=f"freshet.onnx {subscriber.model}")
        self._follower.start()
        _open.add(self)

    def _checked(self, names: Mapping[str, str] | None) -> Dict[str, str]:
        if names is None:
            return {}
        check_type("names", names, Mapping, ": {initializer: tensor}")
        for name, tensor in names.items():
            if name not in self._graph.initializers:
                raise InvalidArgument(f"names: {self._graph.what} has no initializer {name!r}")
            if not isinstance(tensor, str):
                raise InvalidArgument(f"names: initializer {name}: a tensor's name is text, not {tensor!r:.80}")
            if self._graph.initializers[name].cannot:
                raise InvalidArgument(f"names: initializer {name}: {self._graph.initializers[name].cannot}")
        return dict(names)

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None) -> Answers:
        """As InferenceSession.run(), with the newest version of the weights; its number is the answer's `.weight_version`.

        Unavailable before a first version came; FailedPrecondition says why the first one cannot be served."""
        return self._newest().run(output_names, input_feed, run_options)

    def at(self, snapshot: Snapshot) -> Served:
        """This graph with the weights of a snapshot that the caller has, also of a staged one: `session.at(snapshot).run(…)`. For
        several runs with one version, and for answers of the version that a middleware or a Shadow pinned. The version stays
        mapped as long as what this returns.

        FailedPrecondition names the tensor that does not fit; Unsupported with mode="session"."""
        self._check_open()
        check_type("at(snapshot)", snapshot, Snapshot)
        if self._mode != "inputs":
            raise Unsupported("at(snapshot): with mode=\"session\" each version needs a session; mode=\"inputs\" can do it")
        for known in (self._served, self._at.get(snapshot.version)):
            if known is not None and known._is_of(snapshot):
                return known
        with self._taking:
            served = self._at[snapshot.version] = self._made(snapshot)
        return served

    def wait_for(self, version: int = 1, timeout: float | None = None) -> int:
        """Waits until this session answers with that version or a later one, and says which. FailedPrecondition says why it
        cannot be served, TimedOut that it did not come in so many seconds."""
        self._check_open()
        end = None if timeout is None else time.monotonic() + timeout
        self._subscriber.wait_for(version, timeout)
        while True:
            self._take(end)
            served = self._served
            if served is not None and served.version >= whole(version, "version"):
                return served.version
            self._check_open()
            refused = self._refused
            if refused is not None and refused[0] == self._subscriber.version:
                raise FailedPrecondition(refused[1])
            # The publisher went back to an older version meanwhile.
            self._subscriber.wait_for(version, None if end is None else max(0.0, end - time.monotonic()))

    @property
    def version(self) -> int:
        """The number of the version that a run answers with now; 0: none yet."""
        served = self._served
        return 0 if served is None else served.version

    def status(self) -> dict:
        """How it stands: `model`, `mode`, `serving` and `newest_known` (versions; 0: none), `refused` and `reason` (the newest
        version, where it cannot be served; else 0 and ""), `bound` and `kept` (names of the initializers with published
        values, and with the file's), `sessions_built`."""
        self._check_open()
        served, refused, newest = self._served, self._refused, self._newest_number()
        is_refused = refused is not None and refused[0] == newest
        bound = served.bound if served is not None else frozenset()
        return {"model": self._subscriber.model, "mode": self._mode, "serving": self.version, "newest_known": newest,
                "refused": newest if is_refused else 0, "reason": refused[1] if refused is not None and is_refused else "",
                "bound": sorted(bound), "kept": sorted(set(self._graph.initializers) - bound), "sessions_built": self._built}

    def get_inputs(self) -> List[Any]:
        """As InferenceSession's: the inputs that a caller feeds, without the weights."""
        served = self._served_or_none()
        return self._of_file().get_inputs() if served is None else served._get_inputs()

    def get_outputs(self) -> List[Any]:
        """As InferenceSession's."""
        return self._any_session().get_outputs()

    def get_overridable_initializers(self) -> List[Any]:
        """As InferenceSession's: what a caller may feed instead of a weight."""
        served = self._served_or_none()
        return self._of_file().get_overridable_initializers() if served is None else served._get_overridable()

    def get_providers(self) -> List[str]:
        """As InferenceSession's."""
        return self._any_session().get_providers()

    def get_provider_options(self) -> Any:
        """As InferenceSession's."""
        return self._any_session().get_provider_options()

    def get_session_options(self) -> Any:
        """As InferenceSession's."""
        return self._any_session().get_session_options()

    def get_modelmeta(self) -> Any:
        """As InferenceSession's."""
        return self._any_session().get_modelmeta()

    @property
    def closed(self) -> bool:
        """close() was called."""
        return self._closed

    def close(self) -> None:
        """Lets go of the weights; runs that are on their way end as they began. The subscriber stays open. Closing twice does
        nothing."""
        self._close(_PATIENCE)

    def _close(self, patience: float) -> None:
        self._closed = True
        self._served = self._session = self._file_session = None
        self._ended()
        if self._pid == os.getpid() and threading.current_thread() is not self._follower:
            self._follower.join(patience)
            self._served = self._session = None  # What a run or the follower had begun to take.

    def __repr__(self) -> str:
        if self._closed:
            return f"<freshet.onnx.Session of {self._subscriber.model}, closed>"
        return f"<freshet.onnx.Session {self._subscriber.model}@{self.version}, mode {self._mode}>"

    def _check_open(self) -> None:
        if self._closed:
            raise FailedPrecondition(f"the session of {self._subscriber.model} was closed")
        if self._pid != os.getpid():
            raise FailedPrecondition(f"the session of {self._subscriber.model} was opened before a fork: open one in this process")

    def _newest(self) -> Served:
        """What a run answers with. With "inputs" it is taken here, if it is not there yet, so that a run has what the subscriber has
        when the run begins."""
        self._check_open()
        served = self._served
        if served is None or (self._mode == "inputs" and served.version != self._newest_number()):
            self._take()
            served = self._served
        if served is None:
            self._check_open()  # close() came between.
            if self._refused is not None:
                raise FailedPrecondition(self._refused[1])
            self._subscriber.snapshot()  # It says why there is none.
            return self._newest()
        return served

    def _newest_number(self) -> int:
        try:
            return self._subscriber.version
        except Error:
            if self._served is None:
                raise
            if not self._said_closed:
                self._said_closed = True
                _log.warning("the ONNX session stays at %s@%d: its subscriber was closed", self._subscriber.model, self.version)
            return self.version

    def _take(self, end: float | None = None) -> None:
        """Serves the newest version, if it is another one than before, and fits."""
        if not self._taking.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
            raise TimedOut(f"the session of {self._subscriber.model} is still being built: wait longer")
        refused = None
        try:
            newest = self._newest_number()
            if self._closed or newest in (0, self.version) or (self._refused is not None and self._refused[0] == newest):
                return
            with self._subscriber.snapshot() as snapshot:
                try:
                    served = self._made(snapshot)
                except Exception as error:  # Of ours, or onnxruntime's.
                    self._refused = refused = snapshot.version, str(error)
                else:
                    self._refused = None
                    if not self._closed:
                        self._served, self._file_session = served, None
                        self._graph.settle(served.bound)
        finally:
            self._taking.release()
        if refused is not None:
            _log.warning("the ONNX session stays at version %d: %s", self.version, refused[1])

    def _made(self, snapshot: Snapshot) -> Served:
        called = f"{snapshot.model}@{snapshot.version}"
        pin = snapshot._here()
        tensors = {name: (dtype, tuple(shape)) for name, dtype, shape, _ in map(pin.spec, pin.served())}
        bound = {name: self._names.get(name, name) for name in self._graph.initializers
                 if name in self._names or name in tensors}
        if self._served is not None:  # The values in the file were dropped.
            bound.update({name: self._names.get(name, name) for name in self._served.bound})
        self._graph.check_fits(bound, tensors, called)
        unknown = set(tensors) - set(bound.values())
        if self._strict and unknown or not bound:
            raise FailedPrecondition(
                f"{called}: {self._graph.what} has no initializer for {listed(unknown) or 'any tensor'}. Exporters rename and fold weights: "
                f"give names={{initializer: tensor}}, or export with the parameters' names"
                + ("; strict=False leaves these tensors out" if bound else ""))
        kept = Snapshot(pin)  # The other one is closed soon.
        values = values_of(kept, bound, self._graph.initializers)
        session = self._session_for(kept, bound, values, called)
        return Served(session, kept, values, self._graph.initializers, self._mode == "inputs")

    def _session_for(self, snapshot: Snapshot, bound: Dict[str, str], values: Dict[str, Any], called: str) -> Any:
        names = frozenset(bound)
        is_new = self._model is None or self._model[0] != names
        if self._mode == "inputs":
            if is_new or self._session is None:
                model = self._graph.with_inputs(bound)
                self._session = self._build(model, self._options(), called,
                                            "; a graph that needs constants is for mode=\"session\"")
                self._model = names, b""
            return self._session
        if isinstance(self._sess_options, onnxruntime.SessionOptions):
            pin = snapshot._here()
            model = self._graph.with_values({name: pin.bytes(pin.find(tensor)).tobytes() for name, tensor in bound.items()})
            return self._build(model, self._sess_options, called)
        if is_new or self._model is None:
            self._model = names, self._graph.with_stubs(bound)
        options = self._options() or onnxruntime.SessionOptions()
        filled = [name for name in values if 0 not in self._graph.initializers[name].shape]
        options.add_external_initializers(filled, [values[name] for name in filled])
        return self._build(self._model[1], options, called)

    def _options(self) -> Any:
        return self._sess_options() if callable(self._sess_options) else self._sess_options

    def _build(self, model: Any, options: Any, called: str, hint: str = "") -> Any:
        try:
            session = onnxruntime.InferenceSession(model, options, **self._how)
        except Exception as error:  # onnxruntime's, which have no class in common.
            raise FailedPrecondition(f"onnxruntime builds no session of {self._graph.what} with {called}: {error}{hint}") from None
        self._built += 1
        return session

    def _served_or_none(self) -> Served | None:
        """What is served; None before a first version came."""
        self._check_open()
        return self._served

    def _any_session(self) -> Any:
        served = self._served_or_none()
        return self._of_file() if served is None else served.session

    def _of_file(self) -> Any:
        """A session with the file's own values, which tells of inputs and outputs until a first version is there."""
        session = self._file_session
        if session is None:
            given = self._given if isinstance(self._given, bytes) else os.fspath(self._given)
            session = onnxruntime.InferenceSession(given, self._options(), **self._how)
            if self._served is None:
                self._file_session = session
        return session


def _end(stop: int, pid: int) -> None:
    """The follower ends. In a forked child the pipe is the parent's, too."""
    if pid == os.getpid():
        with contextlib.suppress(OSError):  # The follower ended before, with its subscriber.
            os.write(stop, b"!")
    os.close(stop)


def _follow(session_of: "Callable[[], Session | None]", news: Any, stopped: int) -> None:
    """The follower's thread: takes each version when it came, so that an idle session holds no old one. It keeps neither the session
    nor the subscriber."""
    descriptor = news.add_descriptor()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(stopped, select.POLLIN)
    try:
        while True:
            session = session_of()
            if session is None or session._closed:
                return
            with contextlib.suppress(Error):  # The subscriber was closed before a first version came.
                session._take()
            if session._subscriber.closed:
                return
            del session
            if any(ready == stopped for ready, _ in poll.poll()):
                return
            drain(descriptor)
    finally:
        news.remove_descriptor(descriptor)
        os.close(stopped)


@atexit.register
def _close_all() -> None:
    for session in list(_open):
        session._close(_PATIENCE_AT_END)
