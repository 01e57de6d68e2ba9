# SPDX-License-Identifier: Apache-2.0
"""The ledger of the run over many hosts finds what is lost and what is wrong."""
import json
import os
import tempfile
import unittest

from ledger import Ledger, read_tensors, sum_of, write_tensors


class LedgerTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.ledger = Ledger(self.folder.name)
        with open(self.path("w1.ledger"), "w", encoding="utf-8") as file:
            for name in ("a@1", "b@1"):
                self.write(name, name.encode())
                print(json.dumps({"stored": name, "sha256": sum_of({"t": name.encode(), "u": b""})}), file=file)
            print(json.dumps({"retiring": "b@1"}), file=file)
        self.write("client@1", b"1")
        self.ledger.put["client@1"] = sum_of({"u": b"", "t": b"1"})

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, version, data):
        write_tensors(self.path(version + ".safetensors"), {"t": data, "u": b""})

    def problems(self):
        return list(self.ledger.problems(self.folder.name))

    def test_a_file_comes_back_as_it_was_written(self):
        self.assertEqual(read_tensors(self.path("client@1.safetensors")), {"t": b"1", "u": b""})

    def test_nothing_is_lost(self):
        self.assertEqual(self.problems(), [])

    def test_a_version_that_is_being_retired_may_be_gone(self):
        os.remove(self.path("b@1.safetensors"))
        self.assertEqual(self.problems(), [])

    def test_a_lost_version_is_found(self):
        for version in ("a@1", "client@1"):
            os.remove(self.path(version + ".safetensors"))
        self.assertEqual(self.problems(), ["a@1 was acknowledged, and is lost", "client@1 was acknowledged, and is lost"])

    def test_wrong_bytes_are_found(self):
        self.write("b@1", b"b@2")
        write_tensors(self.path("a@1.safetensors"), {"t": b"a@1"})
        self.assertEqual(self.problems(), ["a@1 has other bytes than were put", "b@1 has other bytes than were put"])


if __name__ == "__main__":
    unittest.main()
