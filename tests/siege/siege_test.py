#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The siege can fail: each thing that must hold is named when it does not; and its peers write what they mean to write."""
import copy
import os
import random
import socket
import struct
import threading
import unittest

import flat
import messages
import siege
import sockets
import victims
import zmtp

HELD = {
    "summary": {"failed_requests": 0, "torn_reads": 0, "restarts": 0, "requests": 100, "checked_answers": 100, "versions_served": 5,
                "versions_published": 9},
    "code": siege.INTERRUPTED, "deaths": [], "dead": [], "newest": 9, "strays": [], "damaged": [], "memory": {"trainer": {"grown_bytes": 1000}},
    "attacks": {"fuzz": ({"connections": 3}, [])}}


class Breaches(unittest.TestCase):
    def broken(self, change, ratio=None):
        seen = copy.deepcopy(HELD)
        change(seen)
        return siege.breaches_of(seen, ratio)

    def test_what_held_has_none(self):
        self.assertEqual(siege.breaches_of(HELD, 1.5), [])

    def test_each_is_named(self):
        for change, text in (
                (lambda seen: seen["summary"].update(failed_requests=1), "1 failed requests"),
                (lambda seen: seen["summary"].update(torn_reads=2), "2 torn reads"),
                (lambda seen: seen["summary"].update(restarts=3), "3 restarts"),
                (lambda seen: seen["summary"].update(checked_answers=99), "99 checked answers of 100 requests"),
                (lambda seen: seen["summary"].update(versions_served=1), "nothing new was served"),
                (lambda seen: seen.update(code=1), "live_run ended with 1"),
                (lambda seen: seen.update(summary=None), "live_run left no summary"),
                (lambda seen: seen["deaths"].append("trainer: killed by signal 6; starting it again"), "a role died: trainer"),
                (lambda seen: seen["dead"].append("provider"), "provider died"),
                (lambda seen: seen.update(newest=1 << 60), "the newest version has number"),
                (lambda seen: seen.update(newest=None), "did not answer"),
                (lambda seen: seen["memory"]["trainer"].update(grown_bytes=1 << 30), "trainer grew by 1024 MiB, 384 are allowed"),
                (lambda seen: seen["strays"].append({}), "1 stray files"),
                (lambda seen: seen["damaged"].append("a@1"), "half or torn: a@1"),
                (lambda seen: seen["attacks"]["fuzz"][1].append("got in"), "fuzz: got in")):
            found = self.broken(change)
            self.assertEqual(len(found), 1, found)
            self.assertIn(text, found[0])

    def test_a_slow_loop_is_one(self):
        self.assertIn("2.50 times", siege.breaches_of(HELD, 2.5)[0])


class Messages(unittest.TestCase):
    def test_a_table_reads_back(self):
        inner = {0: "text", 3: ("u64", 1 << 60)}
        root = flat.Table.root(flat.encode({0: ("u8", 7), 1: inner, 2: b"bytes", 4: ("offsets", [inner, inner]), 5: ("u64", 5)}, b"ABCD"))
        self.assertEqual(root.scalar(0, "u8"), 7)
        self.assertEqual(root.table(1).text(0), "text")
        self.assertEqual([table.scalar(3, "u64") for table in root.tables(4)], [1 << 60] * 2)
        self.assertEqual(root.scalar(5, "u64"), 5)
        self.assertEqual(root.scalar(6, "u64", 3), 3)

    def test_scalars_are_aligned(self):
        buffer = flat.encode({0: ("u8", 1), 1: ("u64", 2), 2: ("u32", 3), 3: ("words", [4, 5])})
        root = flat.Table.root(buffer)
        self.assertEqual(root.at(1) % 8, 0)
        self.assertEqual(root.at(2) % 4, 0)
        self.assertEqual((root.target(root.at(3)) + 4) % 8, 0)

    def test_mutations_follow_from_the_seed_and_differ(self):
        message = messages.hello(1)
        first, again = ([messages.mutated(message, generator) for _ in range(50)] for generator in (random.Random(7), random.Random(7)))
        self.assertEqual(first, again)
        self.assertGreater(len(set(first) - {message}), 25)

    def test_a_siege_stays_on_its_host(self):
        with self.assertRaises(ValueError):
            zmtp.connect("tcp://192.0.2.1:80")


class Peers(unittest.TestCase):
    """Against a server of a few lines, which says what a library's ROUTER says."""

    def serve(self, talk):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def run():
            made, _ = listener.accept()
            with made:
                talk(made)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def test_a_handshake_tells_the_other_sides_type(self):
        def talk(made):
            made.sendall(zmtp.greeting() + zmtp.ready(b"ROUTER"))
            made.recv(1000)
        with zmtp.Peer(self.serve(talk)) as peer:
            self.assertEqual(peer.socket_type, b"ROUTER")

    def test_parts_and_pings_are_told_apart(self):
        said = []

        def talk(made):
            made.sendall(zmtp.greeting() + zmtp.ready(b"ROUTER") + zmtp.command(b"PING", b"\0\x01abc") + zmtp.frame(b"a" * 300, zmtp.MORE)
                         + zmtp.frame(b"b"))
            while b"PONG" not in b"".join(said):
                said.append(made.recv(1000))
                if not said[-1]:
                    return
            made.sendall(zmtp.frame(b"heard"))
        with zmtp.Peer(self.serve(talk)) as peer:
            self.assertEqual(peer.receive(), [b"a" * 300, b"b"])
            self.assertEqual(peer.receive(), [b"heard"])
        self.assertIn(b"\x04PONGabc", b"".join(said))

    def test_what_is_not_zmtp_is_an_error(self):
        with self.assertRaises(ConnectionError):
            zmtp.Peer(self.serve(lambda made: made.sendall(b"H" * 64)))


class Kernel(unittest.TestCase):
    def test_finds_where_a_process_listens(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
            self.assertIn(address, sockets.listening(os.getpid()))
        self.assertNotIn(address, sockets.listening(os.getpid()))

    def test_safetensors_have_the_length_that_they_say(self):
        content = victims.safetensors({"a": 3, "b": 5}, 1)
        header_bytes = struct.unpack_from("<Q", content)[0]
        self.assertEqual(len(content), 8 + header_bytes + 4 * 8)


if __name__ == "__main__":
    unittest.main()
