"""Packages from PyPI for tests, each in an environment of its own that is made at the first run."""

import os
import subprocess
import sys

INSTALL_S = 150


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def install(venv, packages, modules, timeout_s=INSTALL_S):
    """The environment's Python. The test is skipped, visibly, where the packages cannot be had."""
    python = os.path.join(venv, "bin", "python")
    if os.path.exists(python):
        found = subprocess.run([python, "-c", "import " + ", ".join(modules)],
                               capture_output=True, check=False)
        if found.returncode == 0:
            return python
    try:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, capture_output=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--retries", "1", *packages],
                       check=True, capture_output=True, timeout=timeout_s)
    except (subprocess.SubprocessError, OSError) as error:
        skip(f"{packages} cannot be installed: {error}")
    return python
