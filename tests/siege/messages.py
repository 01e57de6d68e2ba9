# SPDX-License-Identifier: Apache-2.0
"""The messages of transport/protocol/wire.fbs, repo/serve/wire/rpc.fbs and the zmq data channel, as a peer without manners writes
them; and what is made of them by chance."""
import os
import re
import struct

import flat

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def protocol_number(header):
    """What kProtocolVersion is there."""
    with open(os.path.join(ROOT, header), encoding="utf-8") as file:
        return int(re.search(r"kProtocolVersion = (\d+)", file.read()).group(1))


CONTROL_PROTOCOL = protocol_number("transport/protocol/messages.h")
REPOSITORY_PROTOCOL = protocol_number("repo/serve/wire/messages.h")
CONTROL = b"FWP1"
HELLO, WANT, HELD, PING, BYE, STAT_REQUEST, WELCOME, GRANT = range(1, 9)
REFUSAL, PONG, UNKNOWN_SESSION, STAT_REPLY = 9, 10, 11, 12
BODY_HELLO, BODY_SAID = 1, 128
ASK_PING, ASK_BYTES, ASK_RECORD, ASK_OWNERS, ASK_MODELS, ASK_STAT = 1, 40, 45, 48, 54, 56  # repo/serve/wire/questions.h
FRAME_HELLO, FRAME_FETCH, FRAME_CANCEL, FRAME_CREDIT, FRAME_PING = 1, 2, 3, 4, 5
SHM, UCX, ZMQ = 0, 1, 2
NUMBERS = (0, 1, 2, 255, 1 << 31, (1 << 32) - 1, (1 << 61) - 1, 1 << 61, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)


def envelope(kind, body):
    return flat.encode_union(kind, body, CONTROL)


def hello(session, model="live", highest_seen=0, every=False, label="siege", channels=1 | 1 << ZMQ, after=0, host="elsewhere/net"):
    return envelope(HELLO, {0: ("u32", CONTROL_PROTOCOL), 1: ("u64", session), 2: model, 3: ("u8", int(every)), 4: label, 5: ("i32", os.getpid()),
                            6: host, 7: ("u64", highest_seen), 8: ("u64", after), 10: ("u32", channels)})


def want(session, request, after=0, channel=ZMQ, waits=False, after_epoch=0):
    return envelope(WANT, {0: ("u64", session), 1: ("u64", request), 2: ("u64", after), 4: ("u64", after_epoch),
                           5: ("u8", channel), 7: ("bool", int(waits))})


def held(session, grants_seen, numbers):
    return envelope(HELD, {0: ("u64", session), 1: ("u64", grants_seen), 2: ("words", numbers)})


def ping(session, serving=0, epoch=0, why=""):
    return envelope(PING, {0: ("u64", session), 1: ("u64", serving), 2: ("u64", epoch), 5: why})


def stat_request(model="live"):
    return envelope(STAT_REQUEST, {0: model})


class Control:
    """A control message that came."""

    def __init__(self, message):
        root = flat.Table.root(message)
        self.kind, self.body = root.scalar(0, "u8"), root.table(1)

    def welcome(self):
        """The session's further addresses: announcements, and (kind, address) of data channels."""
        return self.body.text(4), [(channel.scalar(0, "u8"), channel.text(1)) for channel in self.body.tables(8)]


def ask(verb, request, words=(), texts=()):
    """A question by its verb, with its fields."""
    return flat.encode_union(BODY_SAID, {0: ("u16", verb), 1: ("words", list(words)), 2: ("offsets", list(texts))},
                             before={0: ("u64", request)})


def ask_hello(request=1):
    return flat.encode_union(BODY_HELLO, {0: ("u32", REPOSITORY_PROTOCOL), 1: "siege", 2: ("i32", os.getpid())},
                             before={0: ("u64", request)})


def ask_of(verb, request, model, version):
    return ask(verb, request, [version], [model])


def ask_bytes(request, model, version, identity, ranges):
    """`ranges`: (tensor, bytes) from each one's beginning."""
    words = [version, *identity, len(ranges)]
    for tensor, size in ranges:
        words += [tensor, 0, size]
    return ask(ASK_BYTES, request, words, [model])


def owners(reply):
    """(the writer's identity, tensor, bytes) of each row of an answer to ASK_OWNERS; nothing for other answers."""
    body = flat.Table.root(reply).table(3)
    words = body.words(1) if body and body.scalar(0, "u16") == ASK_OWNERS else []
    rows = [words[begin:begin + 7] for begin in range(1, len(words), 7)]  # The owner's number first.
    return [(row[1:5], row[5], row[6]) for row in rows]


def data_frame(kind, request=0, total=0, detail=0, body=b""):
    return struct.pack("<IIQQQII", 0x465a4301, kind, request, total, 0, 0, detail) + body


def fetch(request, session, lease, version, tensors):
    pieces = [struct.pack("<QQII", 0, 1 << 20, tensor, 0) for tensor in range(tensors)]
    return flat.encode({0: ("u64", request), 1: ("u64", session), 2: ("u64", lease), 3: ("u64", version),
                        4: ("structs", pieces)}, b"FWF1")


def knock(session, token):
    return struct.pack("<QQQ", 0x31304b434f4e4b46, session, token)


def seeds(corpus):
    """Messages to begin with, by the kind of port that they belong to."""
    def files(name):
        folder = os.path.join(corpus, name)
        found = []
        for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            with open(os.path.join(folder, file), "rb") as content:
                found.append(content.read())
        return found
    control = [hello(1), hello(2, every=True), want(1, 1), want(1, 2, waits=True), held(1, 1, [1, 2]), ping(1, 1), stat_request(),
               envelope(BYE, {0: ("u64", 1)})]
    return {
        "control": control + files("wire_fuzz"),
        "repository": [ask_hello(), ask(ASK_PING, 2), ask(ASK_STAT, 3), ask(ASK_MODELS, 4),
                       ask_bytes(5, "live", 1, [0] * 4, [(0, 64)])] + files("rpc_fuzz"),
        "data": [data_frame(FRAME_HELLO, total=1 << 20), data_frame(FRAME_FETCH, 1, body=fetch(1, 1, 1, 1, 3)),
                 data_frame(FRAME_CREDIT, total=100), data_frame(FRAME_CANCEL, 1), data_frame(FRAME_PING)],
        "news": [b"\x01live", b"\x00live", b"\x01", b"\x01" + b"x" * 300],
        "answers": [b'{"id":1,"window":[1,2,3]}', b'{"id":18446744073709551616,"window":[]}', b'{"id":1,"window":"' + b"x" * 300 + b'"}',
                    b"[" * 5000],
        "door": [knock(1, 1), knock(0, 0)] + files("door_frame_fuzz"),
    }


def mutated(message, random):
    """The message with a few things wrong with it."""
    out = bytearray(message)
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        if not out:
            break
        place = random.randrange(len(out))
        how = random.randrange(6)
        if how == 0:
            out[place] ^= 1 << random.randrange(8)
        elif how == 1:
            out[place] = random.randrange(256)
        elif how == 2:
            del out[place:place + random.randrange(1, 9)]
        elif how == 3:
            out[place:place] = random.randbytes(random.randrange(1, 9))
        elif how == 4 and len(out) >= 8:
            place = min(place & ~3, len(out) - 8)
            struct.pack_into("<Q", out, place, random.choice(NUMBERS))
        else:
            out = out[:place]
    return bytes(out)
