# SPDX-License-Identifier: Apache-2.0
"""ZMTP 3 (rfc.zeromq.org/spec/23 and 37) over plain sockets, so that a peer can say what no library would.

Addresses are "tcp://127.0.0.1:PORT", "ipc:///PATH" and "door:///PATH" (a SOCK_SEQPACKET socket). Nothing else is connected to:
a siege never leaves its host.
"""
import socket
import struct
import time

MORE, LONG, COMMAND = 1, 2, 4
CONNECT_SECONDS = 2


def greeting(mechanism=b"NULL", minor=0):
    return b"\xff" + bytes(8) + b"\x7f\x03" + bytes([minor]) + mechanism.ljust(20, b"\0") + bytes(32)


def frame(body, flags=0):
    if len(body) > 255:
        return bytes([flags | LONG]) + struct.pack(">Q", len(body)) + body
    return bytes([flags, len(body)]) + body


def command(name, body=b""):
    return frame(bytes([len(name)]) + name + body, COMMAND)


def ready(socket_type, **properties):
    body = b""
    for name, value in {"Socket-Type": socket_type, **properties}.items():
        body += bytes([len(name)]) + name.encode() + struct.pack(">I", len(value)) + value
    return command(b"READY", body)


def connect(address, seconds=CONNECT_SECONDS, receive_bytes=None):
    kind, _, place = address.partition("://")
    if kind == "tcp":
        host, port = place.rsplit(":", 1)
        if host != "127.0.0.1":
            raise ValueError(f"{address}: not of this host")
        made, target = socket.socket(socket.AF_INET, socket.SOCK_STREAM), (host, int(port))
    else:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET if kind == "door" else socket.SOCK_STREAM)
        target = place
    try:
        if receive_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.settimeout(seconds)
        made.connect(target)
    except OSError:
        made.close()
        raise
    return made


def reset(made):
    """Closes a connection so that the other side is told of an error, not of an end."""
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    made.close()


class Peer:
    """A connection whose handshake is done. Raises OSError when the other side ends it, or is silent for too long."""

    def __init__(self, address, socket_type=b"DEALER", seconds=CONNECT_SECONDS, receive_bytes=None):
        self.socket = connect(address, seconds, receive_bytes)
        self.received = bytearray()
        self.socket_type = b""
        try:
            self.socket.sendall(greeting() + ready(socket_type))
            if self.take(64)[0] != 0xff:
                raise ConnectionError("no greeting of ZMTP")
            _, body = self.read_frame()
            at = body.find(b"Socket-Type")
            if at >= 0:
                length = struct.unpack_from(">I", body, at + 11)[0]
                self.socket_type = bytes(body[at + 15:at + 15 + length])
        except (OSError, struct.error) as error:
            self.socket.close()
            raise ConnectionError(str(error)) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def take(self, count):
        while len(self.received) < count:
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the other side closed")
            self.received += piece
        taken = bytes(self.received[:count])
        del self.received[:count]
        return taken

    def read_frame(self):
        flags = self.take(1)[0]
        length = struct.unpack(">Q", self.take(8))[0] if flags & LONG else self.take(1)[0]
        if length > 1 << 28:
            raise ConnectionError("a frame that cannot be")
        return flags, self.take(length)

    def send(self, *parts):
        self.socket.sendall(b"".join(frame(part, MORE if i + 1 < len(parts) else 0) for i, part in enumerate(parts)))

    def receive(self, seconds=CONNECT_SECONDS):
        """The next message's parts; pings are answered on the way."""
        until, parts = time.monotonic() + seconds, []
        while True:
            self.socket.settimeout(max(0.01, until - time.monotonic()))
            flags, body = self.read_frame()
            if flags & COMMAND:
                if body.startswith(b"\x04PING"):
                    self.socket.sendall(command(b"PONG", body[7:]))
                continue
            parts.append(body)
            if not flags & MORE:
                return parts

    def reset(self):
        reset(self.socket)
