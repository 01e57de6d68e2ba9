# SPDX-License-Identifier: Apache-2.0
"""`freshet triton`: python -m freshet.triton does the same."""
from __future__ import annotations

import argparse
import json
import sys
from typing import Any, List, Sequence

from .._errors import (Corrupt, Error, InvalidArgument, NotFound, TimedOut, Unavailable)
from . import _folder, _server

_EXIT_CODES = ((InvalidArgument, 2), (NotFound, 3), (Corrupt, 4), (Unavailable, 5), (TimedOut, 5))
_SETTINGS = ("model", "at", "keys", "server_key", "channel", "directory", "label", "journal")


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, from 0 to 65535")
    return number


def _count(least: int) -> Any:
    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return number
    return read


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return number


def _ported(text: str) -> _folder.Port:
    try:
        return _folder.port_of(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="freshet triton", description="models of a Triton server that follow a published model")
    commands = root.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="write a model's folder: config.pbtxt and 1/model.py")
    new.add_argument("folder", metavar="FOLDER/MODEL")
    new.add_argument("--input", action="append", default=[], type=_ported, metavar="NAME:TYPE:DIMS")
    new.add_argument("--output", action="append", default=[], type=_ported, metavar="NAME:TYPE:DIMS")
    new.add_argument("--instances", type=_count(1), default=1, metavar="N")
    new.add_argument("--max-batch", type=_count(0), default=0, metavar="N")
    new.add_argument("--timeout", type=_seconds, default=2.0, metavar="S")
    for name in _SETTINGS:
        new.add_argument("--" + name.replace("_", "-"), default=None)
    serve = commands.add_parser("serve", help="run the server of the wheel nvidia-pytriton until SIGTERM or SIGINT")
    serve.add_argument("models", metavar="MODELS")
    serve.add_argument("--http-port", type=_port, default=8000, metavar="PORT")
    serve.add_argument("--grpc-port", type=_port, default=8001, metavar="PORT")
    serve.add_argument("--metrics-port", type=_port, default=None, metavar="PORT")
    serve.add_argument("--address", default="127.0.0.1")
    serve.add_argument("--timeout", type=_seconds, default=120.0, metavar="S")
    for command in (new, serve):
        command.add_argument("--json", action="store_true")
    return root


def _new(given: argparse.Namespace) -> None:
    settings = {name: value for name in _SETTINGS if (value := getattr(given, name)) is not None}
    wrote = _folder.new(_folder.Wanted(given.folder, settings, given.input, given.output, given.instances, given.max_batch),
                        given.timeout)
    if given.json:
        print(json.dumps(wrote))
    else:
        print(f"wrote {wrote['folder']}: {', '.join(wrote['files'])}; infer() is {wrote['infer']}")


def main(words: "Sequence[str] | None" = None) -> int:
    """The exit code, as the codes of `freshet` are."""
    given_words: List[str] = list(sys.argv[1:] if words is None else words)
    for_server: List[str] = []
    if "--" in given_words:
        at = given_words.index("--")
        given_words, for_server = given_words[:at], given_words[at + 1:]
    given = _parser().parse_args(given_words)
    try:
        if given.command == "new":
            if for_server:
                raise InvalidArgument("freshet triton new takes nothing after --")
            _new(given)
        else:
            _server.serve(given.models, _server.Ports(given.http_port, given.grpc_port, given.metrics_port), given.address,
                          given.timeout, for_server, given.json)
    except (Error, OSError) as error:
        print(f"freshet triton {given.command}: {error}", file=sys.stderr)
        return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
