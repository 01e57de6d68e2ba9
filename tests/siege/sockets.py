# SPDX-License-Identifier: Apache-2.0
"""Where processes listen, as the kernel's tables tell it, and what is spoken there."""
import os

import zmtp

LISTENING_TCP, ACCEPTING_UNIX = "0A", 0x10000
STREAM, SEQPACKET = 1, 5
PROBE_SECONDS = 0.5


def inodes_of(pid):
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                link = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if link.startswith("socket:["):
                found.add(link[8:-1])
    except OSError:
        pass
    return found


def table(name):
    with open(f"/proc/net/{name}", encoding="utf-8") as file:
        return [line.split() for line in file][1:]


def listening(pid):
    """Addresses as zmtp.connect() takes them."""
    inodes, found = inodes_of(pid), []
    for words in table("tcp"):
        if words[3] == LISTENING_TCP and words[9] in inodes:
            found.append(f"tcp://127.0.0.1:{int(words[1].split(':')[1], 16)}")
    for words in table("unix"):
        if len(words) < 8 or words[6] not in inodes or not int(words[3], 16) & ACCEPTING_UNIX or not words[7].startswith("/"):
            continue
        path = words[7]
        if not os.path.exists(path) and path.endswith(".new"):  # Renamed after it was bound.
            path = path[:-4]
        kind = int(words[4], 16)
        if kind in (STREAM, SEQPACKET):
            found.append(("door://" if kind == SEQPACKET else "ipc://") + path)
    return sorted(found)


def kind_of(address):
    """What a port is for: by its path, or by what it says when somebody connects. None when nobody is there."""
    if address.startswith("door://"):
        return "door"
    if address.startswith("ipc://"):
        return "repository" if address.endswith("/serve/socket") else "answers"
    try:
        made = zmtp.connect(address, PROBE_SECONDS)
    except OSError:
        return None
    with made:
        try:
            made.sendall(zmtp.greeting())
            greeting = received(made, 64)
            if greeting[:1] != b"\xff":
                return "raw"
            if greeting[12:17] == b"CURVE":
                return "curve"
            return "news" if b"XPUB" in made.recv(256) else "data"  # It says READY without waiting for ours.
        except OSError:
            return "raw"


def received(made, count):
    out = b""
    while len(out) < count:
        piece = made.recv(count - len(out))
        if not piece:
            break
        out += piece
    return out


def memory(pid):
    """(now, at most since its start), in bytes; None when it is gone."""
    values = {}
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name in ("VmRSS", "VmHWM"):
                    values[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError):
        return None
    return (values["VmRSS"], values["VmHWM"]) if len(values) == 2 else None
