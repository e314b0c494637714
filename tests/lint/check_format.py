#!/usr/bin/env python3
"""Every source file is as clang-format 14 leaves it, and every text file ends its lines cleanly.

usage: check_format.py SOURCE_DIR CLANG_FORMAT
"""

import os
import subprocess
import sys

import source_tree

TEXT_ENDINGS = source_tree.CODE_ENDINGS + (".py", ".sh", ".cmake", ".md", ".txt", ".sbatch")
COLUMN_LIMIT = 100  # clang-format sees to it in C++
LIMITED_ENDINGS = (".py", ".sh", ".sbatch")
TEXT_FOLDERS = source_tree.CODE_FOLDERS + ("cmake", "docs", ".ci")


def whitespace_problems(path, text):
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            found.append(f"{path}:{number}: white space at the end of the line")
        if "\t" in line:
            found.append(f"{path}:{number}: a tab")
        if len(line) > COLUMN_LIMIT and path.endswith(LIMITED_ENDINGS):
            found.append(f"{path}:{number}: {len(line)} columns, {COLUMN_LIMIT} are the limit")
    if text and not text.endswith("\n"):
        found.append(f"{path}: no newline at the end")
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, clang_format = sys.argv[1:]
    found = []
    for path in source_tree.walk(root, TEXT_FOLDERS):
        if path.endswith(TEXT_ENDINGS) and "/corpus/" not in path and "/checkpoints/" not in path:
            found += whitespace_problems(path, source_tree.read(root, path))
    if found:
        return source_tree.report(found)
    if not os.path.exists(clang_format):
        print("skipped: no clang-format-14 (launch/install-dependencies --with-tests)")
        return source_tree.SKIPPED_TEST
    return subprocess.run([clang_format, "--dry-run", "-Werror", *source_tree.code_files(root)],
                          cwd=root, check=False).returncode and 1


if __name__ == "__main__":
    sys.exit(main())
