#!/usr/bin/env python3
"""Holds includes to the rank table of CMake, and pure policies to their promise.

usage: check_structure.py SOURCE_DIR STRUCTURE_DIR

STRUCTURE_DIR has ranks.txt (path=target:rank, one a line), and pure.txt and joined.txt (absolute
paths), which CMake writes when it configures. Rules:
- a file includes headers of its own target and of targets of lower rank only;
- a quoted include is the path from the root of the tree, of a header that belongs to a target;
- a source file includes the header of its name first, which shows that the header stands alone
  (CMake compiles the headers that have no source file);
- a source file belongs to a target (programs in launch/, and tests and benchmarks, need not);
- a pure policy, and our headers that it includes, name no clock, thread, lock, I/O, log, random
  number or hash-ordered container, and it has no mutable static state;
- names in unnamed namespaces are unique within a target, among the files that may be compiled as
  one (EXPERTFLOW_UNITY): which ones are joined changes with every file that is added.
"""

import os
import re
import sys

import source_tree

PROGRAM_FOLDER = "launch/"
PROGRAM_RANK = 6  # above the launch library

IMPURE_SYSTEM_HEADERS = frozenset("""
    atomic barrier chrono condition_variable coroutine ctime cstdio execution filesystem fstream
    future iostream istream latch mutex ostream random semaphore shared_mutex stop_token
    streambuf syncstream thread unordered_map unordered_set
    fcntl.h poll.h pthread.h stdio.h time.h unistd.h""".split())
IMPURE_SYSTEM_PREFIXES = ("sys/", "linux/", "boost/", "spdlog/", "ucp/", "ucs/", "mpi")
IMPURE_OWN_HEADERS = frozenset("""
    common/atomic_file.h common/clock.h common/config.h common/log.h common/mapped_file.h
    common/metrics.h common/process.h common/trace.h common/unique_fd.h""".split())
IMPURE_CALLS = re.compile(
    r"\b(NowNs|getenv|rand|srand|clock_gettime|printf|fprintf|puts|system)\s*\(|"
    r"\bstd::(time|clock|hash|thread|mutex|chrono|cout|cerr)\b|\bthread_local\b")
# Ordered by address: another order in each run.
POINTER_ORDER = re.compile(r"\bstd::(?:set|map|multiset|multimap)<\s*(?:const\s+)?[\w:]+\s*\*")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
STATIC = re.compile(r"^([ \t]*)(?:inline[ \t]+)?static[ \t]+(?:inline[ \t]+)?([^;{=]*?)([;{=])",
                    re.MULTILINE)
GLOBAL = re.compile(r"^(?:inline[ \t]+)?([A-Za-z_][\w:<>,&* \t]*?[ \t&*>])([A-Za-z_]\w*)[ \t]*"
                    r"(?:=|;|\{)", re.MULTILINE)
NOT_A_VARIABLE = re.compile(
    r"^(?:const|constexpr|consteval|class|struct|enum|union|using|typedef|namespace|template|"
    r"friend|return|extern|public|private|protected|case|goto|else|do|static|concept)\b")

# At the beginning of a line within an unnamed namespace.
LOCAL_NAME = re.compile(
    r"(?:inline )?(?:constexpr|const) [^;(=]*?\b(k\w+)\s*(?:=|\[|\{)|"
    r"(?:struct|class|union|enum class|enum) (\w+)\s*(?:final\s*)?[:{]|"
    r"(using \w+ = [^;]*);|"
    r"(?!template|namespace|static_assert|return)[A-Za-z_][^;={}()]*?[ *&>](\w+\([^{;]*\))\s*\{")


def strip_comments_and_strings(text):
    """Blanks comments and literals but keeps every line where it is; includes are left alone."""
    def blank(match):
        token = match.group(0)
        if token.lstrip().startswith("#"):
            return token
        return re.sub(r"[^\n]", " ", token)
    return re.sub(r'^[ \t]*#[ \t]*include[^\n]*|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
                  r"(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])'", blank, text,
                  flags=re.DOTALL | re.MULTILINE)


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def includes(text):
    """(line, quoted path or None, system header or None) of each include."""
    return [(line_of(text, match.start(1) if match.group(1) else match.start(2)),
             match.group(1), match.group(2)) for match in INCLUDE.finditer(text)]


def local_names(text):
    """(line, name) of what unnamed namespaces declare; of functions with their parameters, as
    they may be overloaded, and of aliases with their type, as they may be repeated."""
    found = []
    for begin in re.finditer(r"^namespace \{$", text, re.MULTILINE):
        depth, at = 1, begin.end()
        while depth > 0 and at < len(text):
            if text[at] == "\n" and depth == 1:
                match = LOCAL_NAME.match(text, at + 1)
                if match:
                    name = next(group for group in match.groups() if group)
                    found.append((line_of(text, at + 1), re.sub(r"\s+", " ", name)))
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
    return found


class Structure:
    def __init__(self, root, ranks, pure, joined=frozenset()):
        self.root = root
        self.ranks = ranks  # path -> (target, rank)
        self.pure = pure    # set of paths
        self.joined = joined  # the same
        self.texts = {path: strip_comments_and_strings(source_tree.read(root, path))
                      for path in source_tree.code_files(root)}

    def problems(self):
        found = []
        for path in self.texts:
            found += self._layer_problems(path)
            found += self._own_header_problems(path)
        for path in sorted(self.pure):
            if path in self.texts:
                found += self._purity_problems(path)
        return found + self._joined_problems()

    def _joined_problems(self):
        found, first = [], {}
        for path in sorted(self.joined & self.texts.keys()):
            target = self.ranks[path][0]
            for line, name in local_names(self.texts[path]):
                if name.startswith("using "):
                    alias = name.split()[1]
                    known = first.setdefault((target, "using " + alias), (path, line, name))
                    clash = known[2] != name
                else:
                    known = first.setdefault((target, name), (path, line, name))
                    clash = known[0] != path
                if clash:
                    found.append(f"{path}:{line}: '{name}' is also in {known[0]}:{known[1]}, and "
                                 f"sources of {target} are joined: give one another name")
        return found

    def _owner(self, path):
        if path in self.ranks:
            return self.ranks[path]
        if path.startswith(PROGRAM_FOLDER):
            return ("program", PROGRAM_RANK)
        return None

    def _layer_problems(self, path):
        if path.split("/")[0] in source_tree.OPEN_FOLDERS:
            return []
        owner = self._owner(path)
        if owner is None:
            return [f"{path}:1: belongs to no expertflow_add_library(); list it in CMakeLists.txt"]
        target, rank = owner
        found = []
        for line, quoted, _ in includes(self.texts[path]):
            if quoted is None:
                continue
            where = f"{path}:{line}: includes \"{quoted}\""
            if quoted not in self.texts:
                found.append(f"{where}, no header of the tree (give its path from the root)")
                continue
            included = self._owner(quoted)
            if quoted.split("/")[0] in source_tree.OPEN_FOLDERS or included is None:
                found.append(f"{where}, which belongs to no library")
            elif included[0] != target and included[1] >= rank:
                found.append(f"{where} of {included[0]} (rank {included[1]}), but {target} has "
                             f"rank {rank}: a target may only use lower ranks")
        return found

    def _own_header_problems(self, path):
        stem, extension = os.path.splitext(path)
        own = f"{stem}.h"
        if extension != ".cpp" or own not in self.texts:
            return []
        first = next(iter(includes(self.texts[path])), (1, None, None))
        return [] if first[1] == own else [f"{path}:{first[0]}: must include \"{own}\" first"]

    def _closure(self, path):
        """(reached header, the line of `path` that leads there), our own headers only."""
        seen, queue = {}, [(path, None)]
        while queue:
            current, via = queue.pop()
            for line, quoted, _ in includes(self.texts[current]):
                if quoted in self.texts and quoted not in seen:
                    seen[quoted] = via or line
                    queue.append((quoted, via or line))
        return seen

    def _purity_problems(self, path):
        text = self.texts[path]
        found = self._impure_includes(path, path, None)
        for header, line in sorted(self._closure(path).items()):
            if header in IMPURE_OWN_HEADERS:
                found.append(f"{path}:{line}: a pure policy reaches \"{header}\"")
            elif header not in self.pure:
                found += self._impure_includes(path, header, line)
        for pattern, what in ((IMPURE_CALLS, "uses"), (POINTER_ORDER, "orders by address with")):
            for match in pattern.finditer(text):
                found.append(f"{path}:{line_of(text, match.start())}: a pure policy {what} "
                             f"'{match.group(0).rstrip('( ')}'")
        for line, name in mutable_statics(path, text):
            found.append(f"{path}:{line}: a pure policy has mutable static state '{name}'")
        return found

    def _impure_includes(self, path, header, via_line):
        found = []
        for line, _, system in includes(self.texts[header]):
            if system and (system in IMPURE_SYSTEM_HEADERS or
                           system.startswith(IMPURE_SYSTEM_PREFIXES)):
                through = "" if via_line is None else f" through \"{header}\""
                found.append(
                    f"{path}:{via_line or line}: a pure policy includes <{system}>{through}")
        return found


def mutable_statics(path, text):
    found = []
    for match in STATIC.finditer(text):
        indent, declaration, _ = match.groups()
        if re.match(r"const(?:expr|eval)?\b", declaration):
            continue
        # `static T Name(...)` declares a function, unless it stands inside a function.
        is_call = "(" in declaration
        if is_call and (path.endswith(".h") or not indent):
            continue
        found.append((line_of(text, match.start(2)), declaration.split("(")[0].split()[-1]))
    for match in GLOBAL.finditer(text):
        if not NOT_A_VARIABLE.match(match.group(1).lstrip()):
            found.append((line_of(text, match.start(1)), match.group(2)))
    return found


def load(root, structure):
    ranks = {}
    with open(os.path.join(structure, "ranks.txt"), encoding="utf-8") as file:
        for entry in file.read().split():
            path, owner = entry.split("=")
            target, rank = owner.split(":")
            ranks[os.path.normpath(path)] = (target, int(rank))
    listed = {}
    for name in ("pure", "joined"):
        with open(os.path.join(structure, f"{name}.txt"), encoding="utf-8") as file:
            listed[name] = {os.path.relpath(path, root) for path in file.read().split()}
    return Structure(root, ranks, listed["pure"], listed["joined"])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    return source_tree.report(load(sys.argv[1], sys.argv[2]).problems())


if __name__ == "__main__":
    sys.exit(main())
