# SPDX-License-Identifier: Apache-2.0
"""Who is on this host already: other accounts, clients with a reader's key, whoever writes into a folder that is watched; and the
honest clients beside them."""
import itertools
import json
import os
import struct

import messages
import processes
import zmtp
from context import REFUSED, model_of, session
from victims import safetensors

NOBODY = 65534
UNAVAILABLE, HONEST_TRIES = 5, 5


def neighbour(context):
    """Another account of this host: whatever it gets is a breach."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    processes.die_with_parent()  # The kernel forgets that with the account.
    turn = 0
    while context.go_on():
        for target in context.targets("control", "news", "data", "repository", "answers", "door", "raw"):
            knock_as_neighbour(context, target)
        for folder in context.options["private"]:
            look_as_neighbour(context, folder)
        run_as_neighbour(context, turn)
        turn += 1
        context.stop.wait(1)


def knock_as_neighbour(context, target):
    address, kind = target["address"], target["kind"]
    try:
        if not address.startswith("tcp://"):
            zmtp.connect(address).close()
            context.breach(f"another user connected to {kind} {address}")
            return
        if kind == "raw":
            zmtp.connect(address).close()  # A port that speaks nothing of ours: nobody knows what it would have said.
            return
        with zmtp.Peer(address, b"SUB" if kind == "news" else b"DEALER") as peer:
            peer.send({"control": messages.hello(session(context), model_of(target)), "news": b"\x01" + model_of(target).encode(),
                       "data": messages.data_frame(messages.FRAME_HELLO, total=1 << 20) + b"",
                       "repository": messages.ask_hello()}[kind])
            if kind == "data":
                peer.send(messages.data_frame(messages.FRAME_PING))
            peer.receive(1)
            context.breach(f"another user was answered by {target['owner']}'s {kind} port")
    except REFUSED:
        context.count("refused")


def look_as_neighbour(context, folder):
    try:
        os.listdir(folder)
        context.breach(f"another user listed {os.path.basename(folder)}")
    except OSError:
        context.count("refused")


def run_as_neighbour(context, turn):
    """The command, as that user would use it; one of the lines each time."""
    line = list(context.options["lines"][turn % len(context.options["lines"])])
    if line[0] == "rollback":
        line[1] = f"live@{newest(context)}"  # One that is still kept, if this is quick.
    if context.run(line) == 0:
        context.breach(f"another user ran `freshet {' '.join(line[:3])}` with success")
    else:
        context.count("refused")


def newest(context):
    """The newest version's number, as that user hears it; if it is told nothing, a number that it guesses well."""
    told = context.run(["top", "live", "--once", "--json", "--at", context.options["at"]], output=True)
    try:
        return json.loads(told)["newest"]
    except (ValueError, KeyError, TypeError):
        return next((target["newest"] for target in context.targets("control")), 1)


def reader(context):
    """A client whose key admits it to a repository as a reader: what only a writer or an operator may do is refused."""
    for line in itertools.cycle(context.options["reader_lines"]):
        if not context.go_on():
            return
        if context.run(line) == 0:
            context.breach(f"a reader ran `freshet {' '.join(line[:3])}` with success")
        context.stop.wait(2)


def files(context):
    """Files that lie, in folders that are watched: half of one, shards without the rest, shortened behind the reader's back."""
    random, version = context.random, 1
    good = safetensors({"a.kernel": 1024, "b.kernel": 1024})
    while context.go_on():
        stray = random.choice((b"", b"{}", struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 2) + b"{}", good[:-100],
                               messages.mutated(good[:200], random), safetensors({"other": 16}), random.randbytes(3000)))
        place(os.path.join(context.options["watched"], f"{random.getrandbits(32)}.safetensors"), stray)
        version += 1
        hostile_version(context, os.path.join(context.options["followed"], f"weight_v{version:06}"))
        context.count("files", 2)
        context.stop.wait(1)


def place(path, content):
    with open(path + ".part", "wb") as file:
        file.write(content)
    os.rename(path + ".part", path)


def hostile_version(context, folder):
    """A folder with a version that is whole for a moment, and then is not, or never was."""
    how, large = context.random.randrange(4), safetensors({"a.kernel": 1 << 20, "b.kernel": 1 << 20}, context.random.randrange(256))
    os.mkdir(folder)
    if how == 0:
        place(f"{folder}/model-00001-of-00002.safetensors", safetensors({"a.kernel": 1 << 20}))
        return
    place(f"{folder}/model.safetensors", large[:1 << 20] if how == 1 else large)
    if how == 2:
        for _ in range(100):  # While somebody may be reading it.
            os.truncate(f"{folder}/model.safetensors", 4096)
            context.stop.wait(0.003)
            with open(f"{folder}/model.safetensors", "r+b") as file:
                file.write(large)


def honest(context):
    """No attack: clients that read from the providers and must be served."""
    commands = context.options["honest"]
    while context.go_on():
        for client in commands:
            path = os.path.join(context.options["scratch"], "honest.safetensors")
            for line in (["repo", "show", "net@1", *client], ["repo", "get", "net@1", "-o", path, *client]):
                read_honestly(context, line)
        context.stop.wait(1)


def read_honestly(context, line):
    """Exit code 5 says that the same line may succeed later, as on a machine that is busy. It has to."""
    for _ in range(HONEST_TRIES):
        code = context.run(line)
        context.count("reads")
        if code == 0:
            return
        context.count("not served at once")
        if code != UNAVAILABLE:
            break
        context.stop.wait(1)
    context.breach(f"an honest client's `freshet {' '.join(line[:3])}` ended with {code}")
