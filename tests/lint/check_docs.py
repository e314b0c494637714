#!/usr/bin/env python3
"""The documents tell the truth about the tree.

usage: check_docs.py SOURCE_DIR STRUCTURE_DIR

- every relative link of a Markdown file leads to a file, and to a heading where it names one;
- every path in `code` that starts with one of our folders exists (<placeholders>, globs and build/
  aside);
- the rank table of docs/design.md has each target of ranks.txt at its rank;
- no file names a folder of somebody's own machine, or leaves a to-do without an issue number.
"""

import os
import re
import sys

import source_tree

DOCUMENT_FOLDERS = ("docs", "models", "tests", "bench", "launch")
DOCUMENTS_AT_TOP = ("README.md", "CHANGELOG.md")
TABLE = "docs/design.md"

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```[^\n]*$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)
RANK_ROW = re.compile(r"^\|\s*(\d)\s*\|([^|]*)\|", re.MULTILINE)
PRIVATE_PATH = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/[\w.-]+")
TO_DO = re.compile(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))")


def anchor(heading):
    text = re.sub(r"[`*_]", "", heading.strip().lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def documents(root):
    nested = [path for path in source_tree.walk(root, DOCUMENT_FOLDERS) if path.endswith(".md")]
    return [path for path in DOCUMENTS_AT_TOP if os.path.exists(os.path.join(root, path))] + nested


def link_problems(root, path, text):
    found = []
    prose = FENCE.sub(lambda match: "\n" * match.group(0).count("\n"), text)
    for match in LINK.finditer(prose):
        target, _, fragment = match.group(1).partition("#")
        if re.match(r"\w+:", target):
            continue
        where = f"{path}:{line_of(prose, match.start())}: link to {match.group(1)}"
        file = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
        if not os.path.exists(os.path.join(root, file)):
            found.append(f"{where}: there is no such file")
        elif fragment and file.endswith(".md"):
            headings = HEADING.findall(source_tree.read(root, file))
            if fragment not in map(anchor, headings):
                found.append(f"{where}: there is no such heading")
    return found


def code_span_problems(root, path, text):
    found = []
    folders = source_tree.CODE_FOLDERS + ("cmake", "docs", "models", ".ci")
    for match in CODE_SPAN.finditer(text):
        word = match.group(1).split()[0].removeprefix("./")
        if "/" not in word or word.split("/")[0] not in folders or re.search(r"[<>*{}$,]", word):
            continue
        if not os.path.exists(os.path.join(root, word.split(":")[0])):
            found.append(f"{path}:{line_of(text, match.start())}: `{word}` does not exist")
    return found


def rank_table_problems(ranks_text, table_text):
    documented = {}
    for rank, names in RANK_ROW.findall(table_text):
        for name in re.findall(r"`(\w+)`", names):
            documented[name] = int(rank)
    actual = {}
    for entry in ranks_text.split():
        target, rank = entry.split("=")[1].split(":")
        actual[target] = int(rank)
    return [f"{TABLE}: the rank table has {target} at {documented.get(target, 'no rank')}, "
            f"CMake at {rank}"
            for target, rank in sorted(actual.items()) if documented.get(target) != rank]


def text_problems(path, text):
    found = []
    for pattern, what in ((PRIVATE_PATH, "a path of one machine"),
                          (TO_DO, "a to-do without (#issue)")):
        for match in pattern.finditer(text):
            found.append(f"{path}:{line_of(text, match.start())}: {what}: {match.group(0)}")
    return found


def all_texts(root):
    """What people wrote; data sets and this folder, which spells the words out, aside."""
    folders = source_tree.CODE_FOLDERS + ("cmake", "docs", ".ci")
    top = [name for name in os.listdir(root)
           if name.endswith((".md", ".txt", ".json")) and os.path.isfile(os.path.join(root, name))]
    for path in sorted(top) + source_tree.walk(root, folders):
        if path.startswith("tests/lint/") or "/corpus/" in path or "/checkpoints/" in path:
            continue
        try:
            yield path, source_tree.read(root, path)
        except UnicodeDecodeError:
            continue


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, structure = sys.argv[1:]
    found = []
    for path in documents(root):
        text = source_tree.read(root, path)
        found += link_problems(root, path, text) + code_span_problems(root, path, text)
    found += rank_table_problems(source_tree.read(structure, "ranks.txt"),
                                 source_tree.read(root, TABLE))
    for path, text in all_texts(root):
        found += text_problems(path, text)
    return source_tree.report(found)


if __name__ == "__main__":
    sys.exit(main())
