# SPDX-License-Identifier: Apache-2.0
"""Starts the server that the wheel nvidia-pytriton carries. The wheel's own launcher is not used: it fails on some Pythons, and
knows one backend folder for all."""
from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import fcntl
import glob
import http.client
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from .._errors import FailedPrecondition, InvalidArgument, NotFound, TimedOut, Unavailable
from .._handles import Closing

_WHEEL = "nvidia-pytriton"
_STUB = "triton_python_backend_stub"
_MEMORY = "/dev/shm"
_FOLDER = "freshet-triton-serve-"
_LOOK = 0.02            # Seconds between two looks at a server that starts or ends.
_EXIT_S = 5             # For requests on their way, and connections that stay open, when the server is told to end.
_KILL_S = _EXIT_S + 10
_WATCH = 0.1            # Seconds between two looks at a server that runs.
_LOST_S = 3.0           # So long a dead instance is left to the server.
_STARTS_MAX = 5         # So often a server is started again that did not run for so many seconds in between.
_RUN_S = 60.0
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Wheel(NamedTuple):
    """What the wheel has, for this Python."""
    server: str
    backend: str        # The folder of the Python backend.
    stub: str           # The program that an instance runs in.
    libraries: List[str]


def find_wheel() -> Wheel:
    """NotFound says what is missing and how it is installed."""
    spec = importlib.util.find_spec("pytriton")  # Found, not imported: it imports much, and may fail.
    if spec is None or not spec.submodule_search_locations:
        raise NotFound(f"{sys.executable} has no Triton server: install it with `{sys.executable} -m pip install {_WHEEL}`")
    package = spec.submodule_search_locations[0]
    root = os.path.join(package, "tritonserver")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stubs = os.path.join(root, "python_backend_stubs")
    wheel = Wheel(os.path.join(root, "bin", "tritonserver"), os.path.join(root, "backends", "python"),
                  os.path.join(stubs, python, _STUB),
                  [os.path.join(os.path.dirname(package), "nvidia_pytriton.libs"), *_folder_of_libpython()])
    for path in (wheel.server, wheel.backend):
        if not os.path.exists(path):
            raise NotFound(f"{path} is missing: install {_WHEEL} again, with `{sys.executable} -m pip install --force-reinstall "
                           f"{_WHEEL}`")
    if not os.path.exists(wheel.stub):
        there = ", ".join(sorted(os.listdir(stubs))) if os.path.isdir(stubs) else "none"
        raise NotFound(f"{_WHEEL} has no stub for Python {python}, only for {there}: install a newer one, with `{sys.executable} -m "
                       f"pip install --upgrade {_WHEEL}`, or take another Python")
    return wheel


def _folder_of_libpython() -> List[str]:
    """Where the shared library of this Python lies, which the stub needs; none when the loader finds it by itself."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    folders = [sysconfig.get_config_var("LIBDIR"), os.path.join(sys.base_prefix, "lib")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders += [os.path.join("/usr/lib", multiarch), os.path.join("/lib", multiarch)]
    for folder in folders:
        if folder and os.path.exists(os.path.join(folder, name)):
            return [folder]
    with contextlib.suppress(OSError):
        ctypes.CDLL(name)
        return []
    raise NotFound(f"{name} is not on this machine, and Triton's Python backend needs it: install it (Debian: apt install "
                   f"{name.partition('.so')[0]}), or take a Python that has it")


class Ports(NamedTuple):
    """None: not served. 0: any that is free."""
    http: int
    grpc: int
    metrics: "int | None"


def _reserve(address: str, port: int, what: str, hold: contextlib.ExitStack) -> int:
    """A port that nobody else has. A free one stays bound, so that nobody else gets it before the server has it."""
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    hold.callback(made.close)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT if port == 0 else socket.SO_REUSEADDR, 1)
        made.bind((address, port))
    except OSError as error:
        raise Unavailable(f"port {port} of {address}: {error.strerror}; give another one with --{what}-port, 0 for any that is "
                          f"free") from error
    number = made.getsockname()[1]
    if port != 0:
        made.close()
    return number


class Server(Closing):
    """A running server. close() ends it: its processes, its shared memory and its folder are gone then. One thread at a time."""

    def __init__(self, models: str, ports: Ports, address: str, arguments: Sequence[str]) -> None:
        if not os.path.isdir(models):
            raise NotFound(f"{models} is no folder: it must have a folder for each model (`freshet triton new {models}/MODEL` "
                           f"makes one)")
        self._wheel = find_wheel()
        self.address = address
        self._clean = contextlib.ExitStack()
        self._process: "subprocess.Popen[bytes] | None" = None
        # A prefix of its own, or servers of one host take each other's memory.
        self._prefix = f"freshet_triton_{os.getpid()}_{secrets.token_hex(4)}_"
        try:
            folder = _own_folder(self._clean)
            backend = os.path.join(folder, "python")
            shutil.copytree(self._wheel.backend, backend, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(self._wheel.stub, backend)
            self.ports = Ports(*(None if port is None else _reserve(address, port, what, self._clean)
                                 for port, what in zip(ports, ports._fields)))  # type: ignore[arg-type]
            self._command = [self._wheel.server, *self._words(os.path.abspath(models), folder, ports), *arguments]
            self._start()
        except BaseException:
            self.close()
            raise

    def start_again(self) -> None:
        """In the place of a server that died, or lost an instance: the same models, ports and settings. A model that does not load
        any more ends no other one: it stays away, with its error on stderr."""
        self._end()
        self._start("--exit-on-error=false", "--strict-readiness=false")

    def has_lost_an_instance(self) -> bool:
        """Whether an instance's process died, and the server did not start it again. Not before the server's end does anybody
        collect it."""
        return any(_is_dead(pid) for pid in _children_of(self.pid))

    def _words(self, models: str, folder: str, asked: Ports) -> List[str]:
        words = {"model-repository": models, "backend-directory": folder, "http-address": self.address,
                 "http-port": self.ports.http, "reuse-http-port": _truth(asked.http == 0), "grpc-address": self.address,
                 "grpc-port": self.ports.grpc, "reuse-grpc-port": _truth(asked.grpc == 0),
                 "allow-metrics": _truth(self.ports.metrics is not None), "log-info": "false", "exit-timeout-secs": _EXIT_S,
                 "backend-config": f"python,shm-region-prefix-name={self._prefix}"}
        if self.ports.metrics is not None:
            words.update({"metrics-port": self.ports.metrics, "metrics-address": self.address})
        return [f"--{name}={value}" for name, value in words.items()]

    def _start(self, *more: str) -> None:
        environment = dict(os.environ)
        libraries = [*self._wheel.libraries, environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
        # The stub asks `python3` of PATH where its packages are; PYTHONPATH it ignores.
        environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment.get("PATH", os.defpath)])
        set_signal = ctypes.CDLL(None).prctl

        def end_with_parent() -> None:
            set_signal(_PR_SET_PDEATHSIG, signal.SIGTERM)

        # Its standard output goes to ours for errors. A session of its own: Ctrl-C in a terminal reaches this process alone,
        # which then ends the server in order; and the stubs can be ended with it.
        self._process = subprocess.Popen([*self._command, *more], env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(),
                                         start_new_session=True, preexec_fn=end_with_parent)

    @property
    def pid(self) -> int:
        """Of the server's process."""
        assert self._process is not None
        return self._process.pid

    def wait_until_ready(self, timeout: float) -> Dict[str, Any]:
        """Until each model can be asked; what the server says of itself. Unavailable when it ended before, TimedOut."""
        end = time.monotonic() + timeout
        while True:
            code = self.poll()
            if code is not None:
                raise Unavailable(f"the Triton server ended with code {code} before it was ready; its own errors stand above")
            try:
                if self._asked("GET", "/v2/health/ready") is not None:
                    about = json.loads(self._asked("GET", "/v2") or "{}")
                    index = json.loads(self._asked("POST", "/v2/repository/index") or "[]")
                    away = {one["name"]: one.get("reason", "") for one in index if one.get("state") != "READY"}
                    return {"server": about.get("version", ""), "models": sorted({one["name"] for one in index} - away.keys()), "away": away}
            except (OSError, http.client.HTTPException, ValueError):
                pass
            if time.monotonic() > end:
                raise TimedOut(f"the Triton server was not ready after {timeout:g} s")
            time.sleep(_LOOK)

    def _asked(self, method: str, path: str) -> "bytes | None":
        line = http.client.HTTPConnection(_reached(self.address), self.ports.http, timeout=5)
        try:
            line.request(method, path)
            answer = line.getresponse()
            body = answer.read()
            return body if answer.status == 200 else None
        finally:
            line.close()

    def poll(self) -> "int | None":
        """Its exit code, once it ended."""
        return None if self._process is None else self._process.poll()

    def close(self) -> None:
        """Ends it. Requests that are on their way are answered first, for some seconds."""
        self._end()
        self._clean.close()

    def _end(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_KILL_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # Stubs of a server that died.
            self._process.wait()
            self._process = None
        for name in os.listdir(_MEMORY) if os.path.isdir(_MEMORY) else ():
            if name.startswith(self._prefix):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(_MEMORY, name))


def _own_folder(clean: contextlib.ExitStack) -> str:
    """A folder that goes with `clean`. Its lock tells who comes later whether its process lives; what killed ones left goes now."""
    for old in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), _FOLDER + "????????")):  # As mkdtemp() names them.
        with contextlib.suppress(OSError), _locked(old):
            shutil.rmtree(old, ignore_errors=True)
    while True:
        folder = tempfile.mkdtemp(prefix=_FOLDER)
        with contextlib.ExitStack() as made:
            made.callback(shutil.rmtree, folder, ignore_errors=True)
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                made.enter_context(_locked(folder))
                if os.path.isdir(folder):  # Not: another server that began took it for one that was left.
                    clean.push(made.pop_all())
                    return folder


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """OSError: another process has the lock, or the folder is not ours."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError(folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _reached(address: str) -> str:
    """Where a server that is bound to that address answers this host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)


@contextlib.contextmanager
def _told_to_end() -> Iterator[List[int]]:
    """Signals that came; instead of what they would do."""
    came: List[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve(models: str, ports: Ports, address: str, timeout: float, arguments: Sequence[str], as_json: bool) -> None:
    """Runs a server until SIGTERM, SIGINT or SIGHUP. One line on stdout says when it is ready, and where. A server that dies later, or
    does not start a dead instance again, is started again, with a line on stderr."""
    if address in ("0.0.0.0", "::"):
        _tell("everybody who reaches this host can ask, and load models if the server allows it")
    for argument in arguments:
        if not argument.startswith("--"):
            raise InvalidArgument(f"{argument!r} after -- is no option of tritonserver")
    with _told_to_end() as came, Server(models, ports, address, arguments) as server:
        ready = _ready(server, timeout, came)
        if ready is None:
            return
        print(_line(server, ready, as_json), flush=True)
        starts, ready_at = 0, time.monotonic()  # When it was ready the last time; 0: not since it was started again.
        while True:
            why = _watched(server, came)
            if why is None:
                return
            now = time.monotonic()
            starts = 1 if ready_at and now - ready_at >= _RUN_S else starts + 1
            if starts > _STARTS_MAX:
                raise FailedPrecondition(f"{why}, {starts} times, and never ran for {_RUN_S:g} s in between; its own errors stand above")
            _tell(f"{why}; it is started again")
            server.start_again()
            ready_at = 0.0
            try:
                again = _ready(server, timeout, came)
            except Unavailable:  # It died on the way: the next look counts that, too.
                continue
            if again is None:
                return
            ready_at = time.monotonic()
            _tell(f"the server answers again, after {ready_at - now:.1f} s")
            for name in sorted(set(ready["models"]) - set(again["models"])):
                _tell(f"{name} did not load again: {again['away'].get(name) or 'its error stands above'}")


def _ready(server: Server, timeout: float, came: List[int]) -> "Dict[str, Any] | None":
    """What the server says of itself when it is ready; None when a signal came first."""
    begin = time.monotonic()
    while True:
        try:
            return server.wait_until_ready(0.5)
        except TimedOut:
            if came:
                return None
            if time.monotonic() - begin > timeout:
                raise TimedOut(f"the Triton server was not ready after {timeout:g} s: a model's initialize() takes longer, or an "
                               f"error stands above; --timeout S waits longer") from None
        except Unavailable:
            if came:
                return None
            raise


def _watched(server: Server, came: List[int]) -> "str | None":
    """What went wrong with the server; None when a signal came."""
    lost_since = None
    while not came:
        code = server.poll()
        if code is not None:
            return f"the Triton server ended by itself, with code {code}"
        now = time.monotonic()
        # A server that starts its instances again needs a request, and a second, to see that one is dead.
        lost_since = (lost_since or now) if server.has_lost_an_instance() else None
        if lost_since is not None and now - lost_since > _LOST_S:
            return f"an instance is dead for {_LOST_S:g} s, and the Triton server does not start it again"
        time.sleep(_WATCH)
    return None


def _children_of(parent: int) -> List[int]:
    found: List[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    return found


def _is_dead(pid: int) -> bool:
    """A zombie."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"
    return False


def _tell(text: str) -> None:
    print(f"freshet triton serve: {text}", file=sys.stderr, flush=True)


def _line(server: Server, ready: Dict[str, Any], as_json: bool) -> str:
    address = f"[{server.address}]" if ":" in server.address else server.address
    served = {name: f"{address}:{port}" for name, port in server.ports._asdict().items() if port is not None}
    if as_json:
        return json.dumps({**served, "models": ready["models"], "pid": server.pid, "server": ready["server"]})
    at = f"http://{served['http']}, gRPC at {served['grpc']}" + (f", metrics at {served['metrics']}" if "metrics" in served else "")
    return f"serving {', '.join(ready['models']) or 'no model'} at {at} (tritonserver {ready['server']}, pid {server.pid})"
