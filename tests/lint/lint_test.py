#!/usr/bin/env python3
"""The lint scripts find what they promise: each rule is fed a bad example and a good one."""

import os
import tempfile
import unittest

import check_docs
import check_format
import check_structure
import source_tree


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)


class StructureTest(TreeTest):
    RANKS = {
        "common/ids.h": ("common", 0),
        "common/clock.h": ("common", 0),
        "transport/transport.h": ("transport", 1),
        "device/device.h": ("device", 1),
        "worker/cache/lru.h": ("worker_cache", 1),
        "worker/cache/evict.cpp": ("worker_cache", 1),
        "worker/worker.h": ("worker", 3),
    }
    PURE = {"worker/cache/lru.h", "worker/cache/evict.cpp"}

    def problems(self, path, text, ranks=None):
        for name in self.RANKS:
            self.write(name, "#pragma once\n")
        self.write(path, text)
        return check_structure.Structure(self.root, ranks or self.RANKS, self.PURE).problems()

    def assert_refused(self, path, text, words):
        found = self.problems(path, text)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def assert_accepted(self, path, text):
        self.assertEqual(self.problems(path, text), [])

    def test_lower_rank_is_accepted(self):
        self.assert_accepted("worker/worker.h",
                             '#include "device/device.h"\n#include "worker/cache/lru.h"\n')

    def test_upward_include_is_refused(self):
        self.assert_refused("device/device.h", '#include "worker/worker.h"\n', "rank 3")

    def test_include_of_same_rank_is_refused(self):
        self.assert_refused("device/device.h", '#include "transport/transport.h"\n', "of transport")

    def test_include_within_a_target_is_accepted(self):
        self.assert_accepted("worker/cache/evict.cpp", '#include "worker/cache/lru.h"\n')

    def test_spaces_in_the_directive_do_not_hide_it(self):
        self.assert_refused("device/device.h", '\n  #  include "worker/worker.h"\n', "device.h:2")

    def test_commented_include_is_no_include(self):
        self.assert_accepted("device/device.h",
                             '// #include "worker/worker.h"\n/*\n#include "worker/worker.h"\n*/\n')

    def test_relative_include_is_refused(self):
        self.assert_refused("worker/worker.h", '#include "cache/lru.h"\n', "no header of the tree")

    def test_test_header_in_a_library_is_refused(self):
        self.write("tests/unit/helper.h", "")
        self.assert_refused("worker/worker.h", '#include "tests/unit/helper.h"\n', "no library")

    def test_own_header_comes_first(self):
        ranks = dict(self.RANKS) | {"common/ids.cpp": ("common", 0)}
        for text, count in (('// What it is.\n#include "common/ids.h"\n\n#include <vector>\n', 0),
                            ('#include <vector>\n\n#include "common/ids.h"\n', 1),
                            ("int x();\n", 1)):
            found = self.problems("common/ids.cpp", text, ranks)
            self.assertEqual(len(found), count, text)
            for problem in found:
                self.assertIn('must include "common/ids.h" first', problem)

    def joined_problems(self, one, other):
        ranks = {"worker/one.cpp": ("worker", 3), "worker/other.cpp": ("worker", 3)}
        for path, text in (("worker/one.cpp", one), ("worker/other.cpp", other)):
            self.write(path, f"namespace expertflow {{\nnamespace {{\n\n{text}\n}}\n}}\n")
        return check_structure.Structure(self.root, ranks, set(), set(ranks)).problems()

    def test_names_of_joined_sources_are_unique(self):
        for text in ("constexpr int kMost = 3;", "const std::string kNames[] = {\n    {}};",
                     "struct Row {\n  int a = 0;\n};", "class Loop final : public Base {\n};",
                     "enum class Kind { kOne };",
                     "double Ratio(double a, double b) {\n  return a / b;\n}",
                     "Result<Config> Read(const Json& json,\n                    int depth) {\n}"):
            found = self.joined_problems(text, text)
            self.assertEqual(len(found), 1, text)
            self.assertIn("worker/other.cpp:4: ", found[0])
        self.assertEqual(len(self.joined_problems("using A = int;", "using A = long;")), 1)

    def test_names_of_joined_sources_may_differ_or_mean_the_same(self):
        for one, other in (("constexpr int kMost = 3;", "constexpr int kLeast = 3;"),
                           ("using A = int;", "using A = int;"),
                           ("int F(int a) {\n  const int kMost = a;\n  return kMost;\n}",
                            "int F(long a) {\n  const int kMost = 2;\n  return kMost;\n}"),
                           ("struct A {\n  struct Row {};\n};",
                            "struct B {\n  struct Row {};\n};")):
            self.assertEqual(self.joined_problems(one, other), [], one)

    def test_unlisted_file_is_refused(self):
        self.assert_refused("device/forgotten.cpp", "\n", "expertflow_add_library")

    def test_include_of_an_unlisted_file_is_refused(self):
        self.write("device/forgotten.h", "")
        found = self.problems("worker/worker.h", '#include "device/forgotten.h"\n')
        self.assertEqual(len(found), 2, found)
        self.assertIn("worker.h:1: includes \"device/forgotten.h\", which belongs to no library",
                      found[1])

    def test_program_and_test_may_include_everything(self):
        self.write("tests/unit/worker_test.cpp", '#include "worker/worker.h"\n')
        self.assert_accepted("launch/main.cpp", '#include "worker/worker.h"\n')

    def test_impure_includes_are_refused(self):
        for header in ("chrono", "thread", "mutex", "atomic", "fstream", "iostream", "cstdio",
                       "random", "unordered_map", "unordered_set", "condition_variable",
                       "sys/stat.h", "spdlog/spdlog.h"):
            self.assert_refused("worker/cache/lru.h", f"#include <{header}>\n", f"<{header}>")

    def test_pure_includes_are_accepted(self):
        self.assert_accepted("worker/cache/lru.h",
                             '#include <map>\n#include <vector>\n\n#include "common/ids.h"\n')

    def test_clock_of_ours_is_refused(self):
        self.assert_refused("worker/cache/evict.cpp", '#include "common/clock.h"\n',
                            "common/clock.h")

    def test_clock_behind_another_header_is_refused(self):
        ranks = dict(self.RANKS, **{"common/wait.h": ("common", 0)})
        self.write("common/wait.h", '#include "common/clock.h"\n')
        found = self.problems("worker/cache/evict.cpp", '#include "common/wait.h"\n', ranks)
        self.assertEqual(len(found), 1, found)
        self.assertIn("evict.cpp:1: a pure policy reaches \"common/clock.h\"", found[0])

    def test_system_header_behind_a_header_of_ours_is_refused(self):
        ranks = dict(self.RANKS, **{"common/lock.h": ("common", 0)})
        self.write("common/lock.h", "#include <mutex>\n")
        found = self.problems("worker/cache/evict.cpp", '#include "common/lock.h"\n', ranks)
        self.assertEqual(len(found), 1, found)
        self.assertIn("<mutex> through \"common/lock.h\"", found[0])

    def test_mutable_static_state_is_refused(self):
        for text in ("static int count = 0;\n", "static std::vector<int> seen;\n",
                     "void F() {\n  static int calls = 0;\n}\n",
                     "void F() {\n  static Table table(3);\n}\n",
                     "std::vector<int> g_seen;\n", "int g_count = 0;\n", "int g_count{0};\n",
                     "namespace {\nuint64_t total = 0;\n}\n"):
            self.assert_refused("worker/cache/evict.cpp", text, "mutable static state")
        self.assert_refused("worker/cache/lru.h", "class A {\n  static int count_;\n};\n", "count_")

    def test_constants_and_static_functions_are_accepted(self):
        self.assert_accepted("worker/cache/evict.cpp", "\n".join((
            "static constexpr int kA = 1;", "static const char* const kB = nullptr;",
            "constexpr int kC = 3;", "static int F(int x) { return x; }", "namespace {",
            "struct Slot {", "  int value = 0;", "};", "}", "std::vector<int> G(int x) {",
            "  std::vector<int> out;", "  return out;", "}", "class Lru;", "enum class E { kA };",
            "using V = std::vector<int>;", "")))
        self.assert_accepted("worker/cache/lru.h",
                             "class A {\n  static Result<A> Create(int slots);\n"
                             "  int n_ = 0;\n};\n")

    def test_impure_calls_are_refused(self):
        for text in ("int64_t F() { return NowNs(); }\n", "int F() { return rand(); }\n",
                     "void F() { printf(x); }\n", "size_t F() { return std::hash<int>()(1); }\n"):
            self.assert_refused("worker/cache/evict.cpp", text, "a pure policy uses")

    def test_words_in_comments_and_strings_are_accepted(self):
        self.assert_accepted("worker/cache/evict.cpp",
                             '// never NowNs()\nconst char* const kText = "rand()";\n')

    def test_order_by_address_is_refused(self):
        self.assert_refused("worker/cache/evict.cpp", "void F(std::set<const Slot*> s);\n",
                            "address")


class DocsTest(TreeTest):
    def link_problems(self, path):
        return check_docs.link_problems(self.root, path, source_tree.read(self.root, path))

    def test_broken_link_is_found(self):
        self.write("docs/a.md", "x\n[b](b.md)\n")
        found = self.link_problems("docs/a.md")
        self.assertEqual(found, ["docs/a.md:2: link to b.md: there is no such file"])

    def test_links_to_files_headings_and_sites_are_accepted(self):
        self.write("docs/a.md", "# The `b` part\n[x](#the-b-part) [y](https://example.org/z)\n"
                   "[z](../README.md#top)\n```\n[no](link.md)\n```\n")
        self.write("README.md", "# Top\n")
        self.assertEqual(self.link_problems("docs/a.md"), [])

    def test_missing_heading_is_found(self):
        self.write("docs/a.md", "# One\n[x](#two)\n")
        found = self.link_problems("docs/a.md")
        self.assertIn("no such heading", found[0])

    def test_path_in_code_must_exist(self):
        self.write("launch/test", "")
        text = "`./launch/test --all` `launch/gone` `launch/<name>` `common/*.h` `a/b`"
        found = check_docs.code_span_problems(self.root, "README.md", text)
        self.assertEqual(found, ["README.md:1: `launch/gone` does not exist"])

    def test_rank_table_must_match(self):
        table = "| rank | target |\n|---|---|\n| 0 | `common` |\n| 1 | `device`, `worker` |\n"
        ranks = "common/a.h=common:0\ndevice/d.h=device:1\nworker/w.h=worker:3\nsim/s.h=sim:3\n"
        found = check_docs.rank_table_problems(ranks, table)
        self.assertEqual(len(found), 2, found)
        self.assertIn("sim at no rank, CMake at 3", found[0])
        self.assertIn("worker at 1, CMake at 3", found[1])

    def test_private_paths_and_to_dos_are_found(self):
        for text in ("see /home/somebody/notes", "// TODO: later", "# FIXME"):
            self.assertEqual(len(check_docs.text_problems("a.h", text)), 1, text)

    def test_public_paths_and_numbered_to_dos_are_accepted(self):
        text = "/dev/shm /usr/include ../work/x a/root/b // TODO(#12): later"
        self.assertEqual(check_docs.text_problems("a.h", text), [])


class FormatTest(unittest.TestCase):
    def test_stray_white_space_is_found(self):
        self.assertEqual(len(check_format.whitespace_problems("a.h", "x \n\ty\nz")), 3)

    def test_long_line_of_a_script_is_found(self):
        self.assertEqual(len(check_format.whitespace_problems("a.py", "x" * 101 + "\n")), 1)
        self.assertEqual(check_format.whitespace_problems("a.py", "x" * 100 + "\n"), [])

    def test_clean_text_is_accepted(self):
        self.assertEqual(check_format.whitespace_problems("a.h", "x\n\ny\n"), [])


if __name__ == "__main__":
    unittest.main()
