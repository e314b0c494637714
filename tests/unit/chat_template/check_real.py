#!/usr/bin/env python3
"""Compares renderings of real chat templates with Jinja2's.

usage: check_real.py TEST_PROGRAM FOLDER...

Exit code 77 when no folder is there (reference data) or Jinja2 is not installed.
"""

import os
import subprocess
import sys
import tempfile

folders = [folder for folder in sys.argv[2:] if os.path.isdir(folder)]
if not folders:
    print("none of these folders is there:", *sys.argv[2:])
    sys.exit(77)
environment = {**os.environ, "TZ": "UTC"}
with tempfile.NamedTemporaryFile(suffix=".jsonl") as vectors:
    maker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_vectors.py")
    made = subprocess.run([sys.executable, maker, *folders], stdout=vectors, env=environment,
                          check=False)
    if made.returncode != 0:
        sys.exit(made.returncode)
    with open(vectors.name, encoding="utf-8") as file:
        print(sum(1 for _ in file), "renderings")
    environment["EXPERTFLOW_TEMPLATE_VECTORS"] = vectors.name
    sys.exit(subprocess.run([sys.argv[1], "--gtest_filter=*RendersRealTemplates*"],
                            env=environment, check=False).returncode)
