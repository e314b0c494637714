#!/usr/bin/env python3
"""Compares renderings of published models' chat templates with Jinja2's.

usage: check_published.py TEST_PROGRAM FOLDER

The templates are those that llama-cpp-python's sources on PyPI have with them; they are put into
FOLDER at the first run (77 MB are loaded). Exit code 77 when they cannot be had, or without Jinja2.
"""

import glob
import os
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "llama-cpp-python==0.3.36"
LOAD_S = 400
TEMPLATES_MIN = 60
# An object whose keys are numbers.
NOT_SUPPORTED = ["ByteDance-Seed-OSS.jinja"]


def load(folder):
    with tempfile.TemporaryDirectory() as sources:
        try:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--no-binary", ":all:", "--dest", sources, PACKAGE],
                           check=True, capture_output=True, timeout=LOAD_S)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"skipped: {PACKAGE} cannot be loaded: {error}")
            sys.exit(77)
        [archive] = glob.glob(os.path.join(sources, "*.tar.gz"))
        with tarfile.open(archive) as files:
            for member in files:
                name = os.path.basename(member.name)
                if "/models/templates/" in member.name and name.endswith(".jinja"):
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(files.extractfile(member).read())


def main():
    program, folder = sys.argv[1:]
    os.makedirs(folder, exist_ok=True)
    if not glob.glob(os.path.join(folder, "*.jinja")):
        load(folder)
    for name in NOT_SUPPORTED:
        if os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))
    count = len(glob.glob(os.path.join(folder, "*.jinja")))
    if count < TEMPLATES_MIN:
        sys.exit(f"only {count} templates in {PACKAGE}")
    print(count, "templates")
    check = os.path.join(os.path.dirname(os.path.abspath(__file__)), "check_real.py")
    sys.exit(subprocess.run([sys.executable, check, program, folder], check=False).returncode)


main()
