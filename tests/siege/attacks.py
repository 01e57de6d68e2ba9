# SPDX-License-Identifier: Apache-2.0
"""What hostile peers do. Each attack is a process of its own that goes on until it is told to stop, and counts what it did.

An attack that ends with an exception is a fault of the siege, so what the other side may do to it (refuse, close, stay silent) is
caught where it happens: OSError and struct.error.
"""
import itertools
import select
import struct

import messages
import zmtp
from context import REFUSED, model_of, session
from insiders import files, honest, neighbour, reader

BYTES_PER_VICTIM_MAX = 256 << 20
FLOODING_READERS = 32
#: They never rest. The loop is compared with the same loop beside as many processes that only burn processor time.
BUSY = ("fuzz", "hello_flood", "want_flood", "resets", "subscriptions")


def fuzz(context):
    """Valid handshakes and then nonsense; nonsense instead of a handshake; frames that lie about their length."""
    random = context.random
    corpus = messages.seeds(context.options["corpus"])
    kinds = ("control", "news", "data", "raw", "repository", "answers", "door", "curve")
    while context.go_on():
        target = context.pick(*kinds)
        if target is None:
            continue
        kind = target["kind"]
        try:
            if kind == "door":
                with zmtp.connect(target["address"]) as made:
                    made.send(messages.mutated(random.choice(corpus["door"]), random) or b"x")
            elif kind in ("raw", "curve") or random.random() < 0.2:
                with zmtp.connect(target["address"]) as made:
                    made.sendall(nonsense(random))
            else:
                with zmtp.Peer(target["address"], random.choice((b"DEALER", b"SUB", b"REQ", b"ROUTER", b"XPUB"))
                               if random.random() < 0.1 else b"SUB" if kind == "news" else b"DEALER") as peer:
                    speak_nonsense(peer, corpus[kind], random)
            context.count("connections")
        except REFUSED:
            context.count("refused")


def nonsense(random):
    begin = random.choice((b"", zmtp.greeting(), zmtp.greeting(b"CURVE"), zmtp.greeting(b"PLAIN", 1),
                           zmtp.greeting() + zmtp.ready(b"DEALER"), zmtp.greeting(b"CURVE") + zmtp.command(b"HELLO", random.randbytes(194)),
                           b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"))
    lies = (b"\x02" + struct.pack(">Q", random.choice(messages.NUMBERS)), b"\x01\xff", b"\x04\xff", b"\x06" + bytes(7) + b"\xff",
            zmtp.command(b"PING", b"\0\0"), zmtp.command(b"SUBSCRIBE", random.randbytes(40)), zmtp.command(b"ERROR", b"\xffx"),
            zmtp.ready(b"DEALER", Identity=b"x" * 255))
    return begin + random.choice(lies + (b"",)) + random.randbytes(random.choice((0, 1, 8, 64, 3000)))


def speak_nonsense(peer, seeds, random):
    for _ in range(random.randrange(1, 40)):
        message = random.choice(seeds)
        if random.random() < 0.8:
            message = messages.mutated(message, random)
        if random.random() < 0.1:
            peer.send(*[messages.mutated(message, random) for _ in range(random.randrange(2, 30))])
        else:
            peer.send(message)
    if random.random() < 0.3:
        peer.receive(0.05)


def hello_flood(context):
    """Hellos, equal and varied, some hundred to a connection; new connections all the time."""
    while context.go_on():
        target = context.pick("control")
        if target is None:
            continue
        try:
            with zmtp.Peer(target["address"]) as peer:
                same = messages.hello(session(context), model_of(target))
                for round_ in range(200):
                    if not context.go_on():
                        break
                    peer.send(same if round_ % 2 else messages.hello(session(context), model_of(target), every=round_ % 3 == 0,
                                                                     label=f"siege-{round_}"))
                    context.count("messages")
                    drain(peer)
        except REFUSED:
            context.count("refused")


def drain(peer):
    """Takes what has come, without looking."""
    while select.select([peer.socket], [], [], 0)[0]:
        if not peer.socket.recv(1 << 18):
            raise ConnectionError("the other side closed")
        peer.received.clear()


def want_flood(context):
    """Admitted readers that repeat their Wants as fast as they can, under one number and under new ones. Half of them take what comes;
    the others don't even read, and cost the other side as much."""
    readers = []
    while context.go_on():
        while len(readers) < FLOODING_READERS:
            target = context.pick("control")
            reader_made = target and flooding_reader(context, target)
            if not reader_made:
                break
            readers.append(reader_made)
        for flooding in list(readers):
            try:
                flooding.flood(context)
            except REFUSED:
                readers.remove(flooding)
                flooding.peer.socket.close()
                context.count("refused")
        if not readers:
            context.stop.wait(0.05)
    for flooding in readers:
        flooding.peer.socket.close()


def flooding_reader(context, target):
    try:
        return FloodingReader(context, target)
    except REFUSED:
        context.count("refused")
        return None


class FloodingReader:
    BATCH = 50

    def __init__(self, context, target):
        self.peer, self.own = zmtp.Peer(target["address"]), session(context)
        self.peer.send(messages.hello(self.own, model_of(target)))
        self.peer.socket.setblocking(False)
        self.takes, self.turn, self.waiting = context.random.random() < 0.5, 0, b""
        self.same = zmtp.frame(messages.want(self.own, 1)) * self.BATCH

    def flood(self, context):
        """One batch, as far as the kernel takes it: what is left of a frame goes first the next time."""
        if not self.waiting:
            self.turn += 1
            first = 2 + self.BATCH * self.turn
            self.waiting = self.same if self.turn % 2 else b"".join(
                zmtp.frame(messages.want(self.own, first + i)) for i in range(self.BATCH))
            context.count("messages", self.BATCH)
        try:
            self.waiting = self.waiting[self.peer.socket.send(self.waiting):]
        except BlockingIOError:
            pass
        if self.takes:
            drain(self.peer)


def resets(context):
    """Connections that ask for much, read nothing, and are reset while both sides' queues are full; half messages; bursts."""
    random = context.random
    while context.go_on():
        target = context.pick("control", "repository", "data", "news", "answers", "raw")
        if target is None:
            continue
        burst = []
        try:
            for _ in range(random.choice((1, 5, 40))):
                burst.append(reset_later(context, target))
            if random.random() < 0.5:
                context.stop.wait(random.choice((0.01, 0.3)))  # So that a heartbeat falls into it.
        except REFUSED:
            context.count("refused")
        for made in burst:
            zmtp.reset(made)
            context.count("resets")


def reset_later(context, target):
    random, kind = context.random, target["kind"]
    if kind == "raw" or random.random() < 0.2:
        made = zmtp.connect(target["address"])
        made.sendall(zmtp.greeting()[:random.randrange(65)])
        return made
    peer = zmtp.Peer(target["address"], b"SUB" if kind == "news" else b"DEALER", receive_bytes=4096)
    peer.socket.settimeout(0.2)
    own = session(context)
    asked = {
        "control": lambda: zmtp.frame(messages.hello(own, model_of(target)))
        + b"".join(zmtp.frame(messages.want(own, 1 + i)) for i in range(300)) + zmtp.command(b"PING", b"\0\1x") * 3,
        "repository": lambda: zmtp.frame(messages.ask_hello())
        + b"".join(zmtp.frame(messages.ask_of(messages.ASK_RECORD, 2 + i, model_of(target), 1)) for i in range(200)),
        "data": lambda: zmtp.frame(messages.data_frame(messages.FRAME_HELLO, total=1 << 20)) * 2,
        "news": lambda: zmtp.frame(b"\x01" + model_of(target).encode()) * 100,
        "answers": lambda: zmtp.frame(b'{"id":1,"window":[32,32,32,32,32,32,32,32,32,32]}') * 200,
    }[kind]()
    try:
        peer.socket.sendall(asked[:random.randrange(len(asked))] if random.random() < 0.5 else asked)
    except OSError:
        pass  # It does not take all: then its queues are as full as they get.
    return peer.socket


def slow_readers(context):
    """Connections that ask for as much as is allowed and read a byte a second; they stay until the end."""
    held = []
    while context.go_on():
        if len(held) < 24:
            target = context.pick("control", "repository")
            made = target and slow_reader(context, target)
            if made:
                held.append(made)
                context.count("connections")
        context.stop.wait(0.25)
        for made in list(held):
            try:
                made.settimeout(0.01)
                if context.random.random() < 0.25 and not made.recv(1):
                    raise ConnectionError
            except TimeoutError:
                pass
            except OSError:
                held.remove(made)
                made.close()
                context.count("put out")
    for made in held:
        made.close()


def is_understood(target):
    """Whether an honest greeting is answered as such: attacks that nobody understands would hold anything."""
    try:
        with zmtp.Peer(target["address"], seconds=10) as peer:
            if target["kind"] == "control":
                peer.send(messages.hello(1, model_of(target)))
                return messages.Control(peer.receive(10)[0]).kind == messages.WELCOME
            return bool(messages.owners(owners_reply(peer, model_of(target))))
    except REFUSED:
        return False


def slow_reader(context, target):
    try:
        peer = zmtp.Peer(target["address"], receive_bytes=4096)
        own = session(context)
        if target["kind"] == "control":
            peer.send(messages.hello(own, model_of(target)))
            asked = [messages.want(own, 1 + i) for i in range(2000)]
        else:
            asked = large_questions(peer, model_of(target))
        peer.socket.settimeout(0.5)
        try:
            for message in asked:
                peer.send(message)
                context.count("messages")
        except TimeoutError:
            pass
        return peer.socket
    except REFUSED:
        context.count("refused")
        return None


def large_questions(peer, model):
    """Of a repository: bytes of its first version, 4 MiB or all that a tensor has in each, as often as it takes questions."""
    rows = messages.owners(owners_reply(peer, model))
    identity = rows[0][0]
    ranges, room = [], 4 << 20
    for _, tensor, size in rows:
        if size <= room:
            ranges.append((tensor, size))
            room -= size
    return [messages.ask_bytes(3 + i, model, 1, identity, ranges) for i in range(64)]


def owners_reply(peer, model):
    peer.send(messages.ask_hello())
    peer.receive()
    peer.send(messages.ask_of(messages.ASK_OWNERS, 2, model, 1))
    return peer.receive()[0]


def endless_messages(context):
    """Messages of ever more parts, none of them large, to one victim after another. Not over a socket in a folder of the user's own:
    there nobody's bytes are counted, since whoever may enter it may do worse."""
    part = zmtp.frame(bytes(60000), zmtp.MORE) * 4
    for target in circling(context, "control", "repository", "data", "news"):
        if not target["address"].startswith("tcp://"):
            continue
        sent = 0
        try:
            with zmtp.Peer(target["address"], b"SUB" if target["kind"] == "news" else b"DEALER") as peer:
                while context.go_on() and sent < BYTES_PER_VICTIM_MAX:
                    peer.socket.sendall(part)
                    sent += len(part)
                    context.stop.wait(0.002)
        except REFUSED:
            context.count("refused")
        context.count("bytes", sent)


def circling(context, *kinds):
    for turn in itertools.count():
        if not context.go_on():
            return
        found = context.targets(*kinds)
        if found:
            yield found[turn % len(found)]
        context.stop.wait(0.2)


def subscriptions(context):
    """Topics without end, every one another, on the announcements' port."""
    random = context.random
    for target in circling(context, "news"):
        sent = 0
        try:
            with zmtp.Peer(target["address"], b"SUB") as peer:
                while context.go_on() and sent < BYTES_PER_VICTIM_MAX // 4:
                    topics = b"".join(zmtp.frame(b"\x01" + random.randbytes(200)) for _ in range(100))
                    peer.socket.sendall(topics)
                    sent += len(topics)
                    context.count("topics", 100)
        except REFUSED:
            context.count("refused")
        context.count("bytes", sent)


def numbers(context):
    """Peers that lie about how far they are: the model's numbers and epochs must not follow them."""
    while context.go_on():
        target = context.pick("control")
        context.stop.wait(1)
        if target is None:
            continue
        try:
            with zmtp.Peer(target["address"]) as peer:
                own = session(context)
                peer.send(messages.hello(own, model_of(target), highest_seen=context.random.choice(((1 << 61) - 1, 1 << 40, 10**6))))
                peer.receive()
                peer.send(messages.want(own, 1, after=1 << 60, after_epoch=1 << 60))
                peer.send(messages.ping(own, serving=1 << 60, epoch=(1 << 61) - 1, why="\u202e\u009b31mlies"))
                peer.send(messages.held(own, 1 << 60, [1, 2, 3]))
                peer.receive()
                context.count("lies")
        except REFUSED:
            context.count("refused")


def crowd(context):
    """Connections that say nothing, or half a greeting, a few hundred at a time."""
    held = []
    while context.go_on():
        target = context.pick("control", "news", "data", "raw", "curve")
        if target is None:
            continue
        try:
            made = zmtp.connect(target["address"], 0.5)
            held.append(made)
            made.sendall(zmtp.greeting()[:context.random.randrange(65)])
            context.count("connections")
        except REFUSED:
            context.count("refused")
        if len(held) > 300:
            for made in held[:150]:
                made.close()
            del held[:150]
        context.stop.wait(0.01)
    for made in held:
        made.close()


def door_knocks(context):
    """Knocks with guessed sessions and tokens, many at a time; and guests that hold the door open and say nothing."""
    held = []
    while context.go_on():
        target = context.pick("door")
        if target is None:
            continue
        try:
            made = zmtp.connect(target["address"], 0.5)
            held.append(made)
            if context.random.random() < 0.7:
                made.send(messages.knock(session(context), session(context)))
            context.count("knocks")
        except REFUSED:
            context.count("refused")
        if len(held) > 100:
            for made in held:
                made.close()
            held.clear()
        context.stop.wait(0.02)
    for made in held:
        made.close()


def burn(context):
    """No attack: what the loop is compared with."""
    while context.go_on():
        for _ in range(20000):
            pass


ATTACKS = {function.__name__: function for function in (
    fuzz, hello_flood, want_flood, resets, slow_readers, endless_messages, subscriptions, numbers, crowd, door_knocks, neighbour, reader,
    files)}
ATTACKS_AND_OTHERS = {**ATTACKS, "honest": honest, "burn": burn}
