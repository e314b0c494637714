#!/usr/bin/env python3
"""schemathesis, which makes requests from /openapi.json, against `expertflow serve`.

    schemathesis_client.py PROGRAM MODEL VENV

Installs it from PyPI into VENV at the first run; exits 77 (skipped) when that is not possible. It
must find nothing: no crash, no answer that the description does not have, no bad request that is
taken, nothing without its key. That good requests are taken is not among the checks: a description
cannot say that prompt and text together must fit the context.
"""
import os
import subprocess
import sys
import tempfile

import pypi
from server import Server, check

PACKAGES = ["schemathesis>=4,<5"]
EXAMPLES = 60  # for each path and method
KEY = "key-of-a-friend"


def main():
    program, model, venv = sys.argv[1:]
    python = pypi.install(venv, PACKAGES, ["schemathesis"])
    # Where it keeps what it saw is its working folder.
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys")
        with open(keys, "w", encoding="utf-8") as file:
            file.write(KEY + "\n")
        with Server(program, model, "--api-keys", keys, "--admin-keys", keys) as server:
            done = subprocess.run(
                [os.path.abspath(os.path.join(os.path.dirname(python), "schemathesis")), "run",
                 server.address + "/openapi.json", "--max-examples", str(EXAMPLES),
                 "--generation-deterministic", "--request-timeout", "60", "--continue-on-failure",
                 "--exclude-checks", "positive_data_acceptance",
                 "--header", "Authorization: Bearer " + KEY],
                check=False, timeout=1200, cwd=folder, env={**os.environ, "NO_COLOR": "1"})
            check(done.returncode == 0, "schemathesis finds nothing")


main()
