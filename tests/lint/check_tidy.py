#!/usr/bin/env python3
"""Runs clang-tidy 14 (checks in .clang-tidy) over every source file of ours that is compiled.

usage: check_tidy.py SOURCE_DIR BUILD_DIR RUN_CLANG_TIDY [FILE ...]
"""

import json
import os
import re
import subprocess
import sys

import source_tree


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    root, build, run_clang_tidy = sys.argv[1:4]
    if not os.path.exists(run_clang_tidy):
        print("skipped: clang-tidy-14 is not installed (launch/install-dependencies --with-tidy)")
        return source_tree.SKIPPED_TEST
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        compiled = {os.path.relpath(entry["file"], root) for entry in json.load(file)}
    wanted = sys.argv[4:] or [path for path in source_tree.code_files(root) if path in compiled]
    names = ["^" + re.escape(os.path.join(root, path)) + "$" for path in wanted]
    headers = "^" + re.escape(root) + "/(" + "|".join(source_tree.CODE_FOLDERS) + ")/"
    # The commands are GCC's, which knows other warnings.
    command = [run_clang_tidy, "-quiet", "-p", build, "-header-filter", headers,
               "-extra-arg=-Wno-unknown-warning-option", *names]
    return subprocess.run(command, check=False).returncode and 1


if __name__ == "__main__":
    sys.exit(main())
