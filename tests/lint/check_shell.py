#!/usr/bin/env python3
"""Every shell script can be parsed and passes shellcheck, stops at errors and is executable.

usage: check_shell.py SOURCE_DIR SHELLCHECK
"""

import os
import subprocess
import sys

import source_tree


def shell_scripts(root):
    found = []
    for path in source_tree.walk(root, ("launch", ".ci", "tests", "bench")):
        with open(os.path.join(root, path), "rb") as file:
            first = file.readline(100)
        if first.startswith(b"#!") and b"sh" in first or path.endswith((".sh", ".sbatch")):
            found.append(path)
    return found


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    root, shellcheck = sys.argv[1:]
    scripts = shell_scripts(root)
    found = []
    for path in scripts:
        parsed = subprocess.run(["bash", "-n", path], cwd=root, text=True, capture_output=True,
                                check=False)
        if parsed.returncode != 0:
            found.append(f"{path}: {parsed.stderr.strip()}")
        text = source_tree.read(root, path)
        if not text.startswith("#!"):
            continue  # sourced: its caller has set the options
        if "set -euo pipefail" not in text:
            found.append(f"{path}: lacks 'set -euo pipefail'")
        if not os.access(os.path.join(root, path), os.X_OK):
            found.append(f"{path}: is not executable")
    if found:
        return source_tree.report(found)
    if not os.path.exists(shellcheck):
        print("skipped: no shellcheck (launch/install-dependencies --with-tests)")
        return source_tree.SKIPPED_TEST
    return subprocess.run([shellcheck, "-x", *scripts], cwd=root, check=False).returncode and 1


if __name__ == "__main__":
    sys.exit(main())
