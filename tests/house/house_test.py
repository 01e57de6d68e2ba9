#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house tests can fail: each checker finds what is wrong in a tree that is made wrong here."""
import contextlib
import io
import os
import sys
import tempfile
import unittest

import arrows
import classes
import headers
import tidy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import list_suites
import sources_of_suites
import summarize_tests

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


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
        self.write("tests/support/b.h", "#pragma once\n")
        self.write("benchmarks/tests/a_test.cc", '#include "benchmarks/a.h"\n#include "tests/support/b.h"\n')
        self.write("tests/core/a_test.cc", '#include "benchmarks/a.h"\n')
        self.assertEqual(arrows.violations(self.root), ['tests/core/a_test.cc: tests must not see "benchmarks/a.h"'])

    def test_arrows_find_folders_that_include_each_other(self):
        self.write("repo/a/one.h", '#pragma once\n#include "repo/b/two.h"\n')
        self.write("repo/b/two.h", '#pragma once\n')
        self.write("repo/b/two.cc", '#include "repo/c/three.h"\n')
        self.write("repo/c/three.h", '#pragma once\n#include "repo/a/one.h"\n')
        self.assertEqual(arrows.circles(self.root), [
            'folders include each other: repo/a/one.h "repo/b/two.h", repo/b/two.cc "repo/c/three.h", repo/c/three.h "repo/a/one.h"'])

    def test_arrows_let_a_folder_put_together_what_implements_its_headers(self):
        self.write("repo/face.h", '#pragma once\n')
        self.write("repo/repo.h", '#pragma once\n#include "repo/a/one.h"\n')
        self.write("repo/face.cc", '#include "repo/a/one.h"\n')
        self.write("repo/a/one.h", '#pragma once\n#include "repo/face.h"\n')
        self.assertEqual(arrows.circles(self.root), [])
        self.write("repo/face.h", '#pragma once\n#include "repo/a/one.h"\n')
        self.assertEqual(len(arrows.circles(self.root)), 1)

    def test_arrows_find_a_path_that_is_not_from_the_root(self):
        self.write("core/a.h", '#include "b.h"\n')
        self.write("core/b.h", '#include "core/c_generated.h"\n')
        self.write("core/c.fbs", "")
        self.assertEqual(arrows.violations(self.root), ['core/a.h: "b.h" is no path from the root of the tree'])

    def test_tidy_is_content_with_a_tidy_tree(self):
        self.write("core/a.h", LICENCE + "#pragma once\n\nint a();  // TO" + "DO(cleanup): return more.\n")
        self.write("scripts/a.py", "#!/usr/bin/env python3\n#" + LICENCE[2:])
        self.assertEqual(tidy.violations(self.root), [])

    def test_tidy_finds_each_fault(self):
        self.write("core/long.cc", LICENCE + "int a;\n" * 500)
        self.write("core/open.h", LICENCE + "int a;\n")
        self.write("core/faults.cc", LICENCE + "int a; \n\tint b;\n// TO" + "DO later\n// see /ro" + "ot/notes\nstd::mut" + "ex m;")
        self.write("core/free.cc", "int a;\n" + LICENCE)
        self.write("core/third.cc", "int a;\nint b;\n" + LICENCE)
        self.write("tests/core/lost_test.cc", LICENCE)
        self.write("tests/CMakeLists.txt", "#" + LICENCE[2:])
        self.write("tests/repo/CMakeLists.txt", "#" + LICENCE[2:])
        self.write("tests/repo/match/found_test.cc", LICENCE)
        self.write("benchmarks/tests/CMakeLists.txt", "#" + LICENCE[2:])
        self.write("benchmarks/tests/found_test.cc", LICENCE)
        found = tidy.violations(self.root)
        self.assertEqual([finding.split(": ")[0] for finding in found],
                         ["core/faults.cc:6", "core/faults.cc:2", "core/faults.cc:3", "core/faults.cc:4", "core/faults.cc:5",
                          "core/faults.cc:6", "core/long.cc:501", "core/open.h:1", "core/third.cc:1", "tests/core/lost_test.cc:1"])

    def test_tidy_finds_a_crowded_folder_and_a_crowded_interface(self):
        for number in range(tidy.FILES_MAX + 1):
            self.write(f"repo/a/f{number}.cc", LICENCE)
        calls = "".join(f"  virtual int f{number}() = 0;\n" for number in range(tidy.VIRTUALS_MAX + 1))
        guarded = LICENCE + "#pragma once\n"
        self.write("repo/wide.h", guarded + "class Narrow {\n  virtual int f() = 0;\n};\nclass Wide : public Narrow {\n" + calls + "};\n")
        found = tidy.violations(self.root)
        self.assertEqual(len(found), 2)
        self.assertTrue(found[0].startswith("repo/a: 27 source files"))
        self.assertTrue(found[1].startswith("repo/wide.h:6: Wide has 29 virtual calls"), found[1])

    def test_classes_count_what_a_class_declares(self):
        self.write("transport/a.h", """
// class NotThis { void f(); };
namespace a {
template <typename T> class Outer final : public Base<T> {
 public:
  explicit Outer(std::function<int(int)> f, Options options = {}) : f_(std::move(f)), on_{true} {}
  Outer(const Outer&) = delete;
  ~Outer();
  bool operator()(int a) const noexcept { if (a) { return true; } return false; }
  bool operator==(const Outer&) const = default;
  template <typename M, typename = std::enable_if_t<(sizeof(M) > 1)>> static int made() REQUIRES(m_) { return 1; }
  auto later() -> std::pair<int, int>;
  using Call = std::function<void()>;
  enum class Kind { one, two };
  struct Data { int a = 0; std::vector<int> b{1, 2}; };
  friend class Friend;
 private:
  struct Other;
  static constexpr int kMax = 3;
  static int count_;
  std::function<void(int)> f_ FRESHET_GUARDED_BY(m_);
  std::map<int, std::pair<int, int>> map_;
  bool on_ = f(1, 2);
  const std::array<int, 2> two_{1, 2}, three_;
  struct { int x; } place_;
  std::size_t max_ = std::numeric_limits<std::size_t>::max();
};
}
struct a::Outer::Other { int f(); class Deep { void g(); }; Deep deep; };
""")
        found = {each.name: (each.methods, each.fields) for each in classes.classes_in(self.root, ["transport"])}
        self.assertEqual(found, {"Outer": (6, 7), "Outer::Data": (0, 2), "Outer::(unnamed)": (0, 1), "a::Outer::Other": (1, 1),
                                 "a::Outer::Other::Deep": (1, 0)})

    def test_classes_find_one_that_is_two(self):
        fields = "".join(f"  int f{number}_;\n" for number in range(classes.FIELDS_MAX + 1))
        methods = "".join(f"  void m{number}();\n" for number in range(classes.METHODS_MAX))
        self.write("transport/wide.cc", "struct Row {\n" + fields + "};\nclass Wide {\n  Wide();\n" + methods + fields + "};\n")
        self.write("repo/wide.h", "class Wide {\n" + methods + "  void m();\n};\n")
        found = classes.violations(list(classes.classes_in(self.root, ["transport"])))
        self.assertEqual([line.split(": ")[0:2] for line in found], [
            ["transport/wide.cc:34", "Wide has 41 methods, more than 40"], ["transport/wide.cc:34", "Wide has 31 fields, more than 30"]])
        self.assertEqual(len(classes.violations(list(classes.classes_in(self.root, ["repo"])))), 1)

    def test_classes_that_are_larger_must_not_grow(self):
        (path, name), (methods_max, _) = next(iter(classes.LARGER.items()))
        for methods, lines in ((methods_max, 0), (methods_max + 1, 1)):
            self.write(path, f"class {name} {{\n" + "".join(f"  void m{i}();\n" for i in range(methods)) + "};\n")
            self.assertEqual(len(classes.violations(list(classes.classes_in(self.root, ["repo"])))), lines)

    def test_headers_find_one_that_leans_on_another(self):
        self.write("core/alone.h", "#pragma once\n#include <string>\nstd::string a();\n")
        self.write("core/leans.h", "#pragma once\nstd::string b();\n")
        found = headers.violations(self.root, self.root, [*sys.argv[1:], "-I", self.root])
        self.assertEqual(len(found), 1)
        self.assertTrue(found[0].startswith("core/leans.h: "))

    def summarize(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = summarize_tests.main([*arguments])
        return code, said.getvalue().splitlines()

    def test_summary_counts_what_a_runner_wrote(self):
        self.write("results.xml", """<testsuite>
          <testcase name="a" status="run"/>
          <testcase name="b" status="fail"><failure message=""/><system-out>b.cc:1: Failure\nof b\n</system-out></testcase>
          <testcase name="d" status="notrun"><skipped message="Unable to find executable: d"/></testcase>
          <testcase name="e"><skipped message="not on this Python"/></testcase>
        </testsuite>""")
        results = os.path.join(self.root, "results.xml")
        code, said = self.summarize(f"x={results}", f"y={results}.missing")
        self.assertEqual(code, 1)
        self.assertEqual([line for line in said if not line.startswith("longest: ")], [
            "-- x: b ended with", "b.cc:1: Failure", "of b", "-- x: d ended with", "no output",
            "failed: x: b", "failed: x: d", "skipped: x: e: not on this Python",
            "failed: y: left no results (its build or its runner failed)", "1 passed, 3 failed, 1 skipped"])

    def test_summary_counts_the_cases_of_a_suite(self):
        self.write("results.xml", """<testsuite>
          <testcase name="core.A" status="fail" time="9"><failure message=""/><system-out>[ RUN      ] A.good
[       OK ] A.good (1 ms)
[ RUN      ] A.bad
a.cc:1: Failure
[  FAILED  ] A.bad (2 ms)
</system-out></testcase>
          <testcase name="core.X/B" status="run" time="1"/>
          <testcase name="core.Died" status="fail"><failure message=""/><system-out>[ RUN      ] Died.here\n</system-out></testcase>
          <testcase name="core.Leaks" status="fail"><failure message=""/><system-out>leaked 8 bytes\n</system-out></testcase>
        </testsuite>""")
        self.write("test-results/core.A.xml", """<testsuites><testsuite>
          <testcase name="good" classname="A" status="run" result="completed" time="0.5"/>
          <testcase name="bad" classname="A" status="run" result="completed" time="40"><failure message="x"/></testcase>
          <testcase name="off" classname="A" status="notrun" result="suppressed" time="0"/>
        </testsuite></testsuites>""")
        self.write("test-results/core.X-B.xml", """<testsuites><testsuite>
          <testcase name="c/0" classname="X/B" status="run" result="skipped" time="0"><skipped message="b.cc:7&#x0A;no such
machine&#x0A;"/></testcase></testsuite></testsuites>""")
        self.write("test-results/core.Leaks.xml", """<testsuites><testsuite>
          <testcase name="one" classname="Leaks" status="run" result="completed" time="0"/></testsuite></testsuites>""")
        self.write("times", "x build 100\nx tests 50.5\n")
        self.write("budget", '{"minutes": {"x": 2}, "test_seconds": 30}')
        code, said = self.summarize("--times", os.path.join(self.root, "times"), "--budget", os.path.join(self.root, "budget"),
                                    f"x={os.path.join(self.root, 'results.xml')}")
        self.assertEqual(code, 1)
        self.assertEqual(said[:4], ["-- x: A.bad ended with", "[ RUN      ] A.bad", "a.cc:1: Failure", "[  FAILED  ]"])
        self.assertIn("time: x: build 100 s, tests 50 s (budget 120 s)", said)
        self.assertIn("time: in all 2.5 minutes", said)
        self.assertIn("longest:   40.0 s x: A.bad", said)
        self.assertIn("warning: x took 2.5 minutes, its budget is 2", said)
        self.assertIn("warning: x: A.bad took 40 s, the budget of one test is 30", said)
        self.write("times", "x build 100\nx tests 50.5\neverything took 120\n")
        self.write("budget", '{"minutes": {"x": 3, "everything": 1}}')
        _, beside = self.summarize("--times", os.path.join(self.root, "times"), "--budget", os.path.join(self.root, "budget"),
                                   f"x={os.path.join(self.root, 'results.xml')}")
        self.assertIn("time: in all 2.0 minutes", beside)
        self.assertIn("warning: everything took 2.0 minutes, its budget is 1", beside)
        self.assertEqual(said[-5:], ["failed: x: A.bad", "skipped: x: X/B.c/0: no such machine", "failed: x: core.Died",
                                     "failed: x: core.Leaks", "2 passed, 3 failed, 1 skipped"])

    def test_suites_are_listed_with_their_labels(self):
        listing = "main\nA.\n  one\n  two  # comment\nX/B.  # TypeParam = int\n  c/0  # GetParam() = 3\n"
        suites = list_suites.suites_of(listing)
        self.assertEqual(suites, {"A": ["one", "two"], "X/B": ["c/0"]})
        self.assertEqual(list_suites.parts_of("A", suites["A"], 1), [("A", "A.*")])
        self.assertEqual(list_suites.parts_of("A", suites["A"], 3), [("A-1of3", "A.one"), ("A-2of3", "A.two")])
        rules = list_suites.rules_of(["storm=X/.*", "slow=.*B"])
        self.assertEqual(list_suites.labels_of("X/B", ["core"], rules), ["core", "storm", "slow"])
        self.assertEqual(list_suites.labels_of("A", ["core"], rules), ["core", "quick"])
        self.assertGreater(list_suites.cost_of(["core", "storm", "slow"]), list_suites.cost_of(["core", "slow"]))
        self.assertEqual(list_suites.cost_of(["core", "quick"]), 0)
        self.assertEqual(list_suites.unmeant(suites, ["X/.*", "A", "Old"]), ["Old"])

    def test_sources_are_told_by_their_suites(self):
        texts = {
            "plain": "TEST(A, one) {\nTEST_F(B, two) {\n",
            "with_values": "TEST_P(C, three) {\n",
            "elsewhere": "INSTANTIATE_TEST_SUITE_P(Every, C, testing::Values(1));\n",
            "typed": "TYPED_TEST(D, four) {\n",
            "no_instance": "TEST_P(E, five) {\n",
            "strange": "OWN_TEST(A, one) {\n",
        }
        wanted = lambda only, but=(): sources_of_suites.wanted_sources(texts, only, but)
        untold = ["no_instance", "strange"]
        self.assertEqual(wanted(["B"]), ["plain", *untold])
        self.assertEqual(wanted(["Every/.*"]), ["with_values", "elsewhere", *untold])
        self.assertEqual(wanted(["D/0"]), ["typed", *untold])
        self.assertEqual(wanted([".*"]), list(texts))
        self.assertEqual(wanted([".*"], ["A", "Every/C"]), ["plain", "typed", *untold])
        self.assertEqual(wanted([".*"], ["A", "B", "Every/C"]), ["typed", *untold])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
