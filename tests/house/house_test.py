#!/usr/bin/env python3
"""The house tests can fail: each checker finds what is wrong in a tree that is made wrong here."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

import arrows
import headers
import tidy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
import summarize_tests


class Tree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="freshet-house-")
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def test_arrows_find_an_include_that_looks_up(self):
        self.write("core/a.h", '#pragma once\n#include "transport/b.h"\n')
        self.write("transport/b.h", '#pragma once\n#include "core/a.h"\n')
        self.assertEqual(arrows.violations(self.root), ['core/a.h: core must not see "transport/b.h"'])

    def test_arrows_let_only_the_tests_of_benchmarks_see_them(self):
        self.write("benchmarks/a.h", "#pragma once\n")
        self.write("tests/benchmarks/a_test.cc", '#include "benchmarks/a.h"\n')
        self.write("tests/core/a_test.cc", '#include "benchmarks/a.h"\n')
        self.assertEqual(arrows.violations(self.root), ['tests/core/a_test.cc: tests must not see "benchmarks/a.h"'])

    def test_arrows_find_a_path_that_is_not_from_the_root(self):
        self.write("core/a.h", '#include "b.h"\n')
        self.write("core/b.h", '#include "core/c_generated.h"\n')
        self.write("core/c.fbs", "")
        self.assertEqual(arrows.violations(self.root), ['core/a.h: "b.h" is no path from the root of the tree'])

    def test_tidy_is_content_with_a_tidy_tree(self):
        self.write("core/a.h", "#pragma once\n\nint a();  // TO" + "DO(cleanup): return more.\n")
        self.assertEqual(tidy.violations(self.root), [])

    def test_tidy_finds_each_fault(self):
        self.write("core/long.cc", "int a;\n" * 501)
        self.write("core/open.h", "int a;\n")
        self.write("core/faults.cc", "int a; \n\tint b;\n// TO" + "DO later\n// see /ro" + "ot/notes\nstd::mut" + "ex m;")
        self.write("tests/core/lost_test.cc", "")
        found = tidy.violations(self.root)
        self.assertEqual([finding.split(": ")[0] for finding in found],
                         ["core/faults.cc:5", "core/faults.cc:1", "core/faults.cc:2", "core/faults.cc:3", "core/faults.cc:4",
                          "core/faults.cc:5", "core/long.cc:501", "core/open.h:1", "tests/core/lost_test.cc:1"])

    def test_headers_find_one_that_leans_on_another(self):
        self.write("core/alone.h", "#pragma once\n#include <string>\nstd::string a();\n")
        self.write("core/leans.h", "#pragma once\nstd::string b();\n")
        found = headers.violations(self.root, [*sys.argv[1:], "-I", self.root])
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("core/leans.h: "))

    def test_summary_counts_what_a_runner_wrote(self):
        self.write("results.xml", """<testsuite>
          <testcase name="a" status="run"/>
          <testcase name="b" status="fail"><failure message=""/><system-out>b.cc:1: Failure\nof b\n</system-out></testcase>
          <testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
            <system-out>[ RUN      ] c\nc.cc:1: Skipped\nno such machine\n[  SKIPPED ] c (0 ms)\n</system-out></testcase>
          <testcase name="d" status="notrun"><skipped message="Unable to find executable: d"/></testcase>
          <testcase name="e"><skipped message="not on this Python"/></testcase>
        </testsuite>""")
        results = os.path.join(self.root, "results.xml")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = summarize_tests.main([f"x={results}", f"y={results}.missing"])
        self.assertEqual(code, 1)
        self.assertEqual(said.getvalue().splitlines(), [
            "-- x: b ended with", "b.cc:1: Failure", "of b", "-- x: d ended with", "no output",
            "failed: x: b", "skipped: x: c: no such machine", "failed: x: d", "skipped: x: e: not on this Python",
            "failed: y: left no results (its build or its runner failed)", "1 passed, 3 failed, 2 skipped"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
