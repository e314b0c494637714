#!/usr/bin/env python3
"""A whole benchmark of guidellm against `expertflow serve`.

    guidellm_client.py PROGRAM MODEL VENV

Installs it from PyPI into VENV at the first run (6 GB, as it brings PyTorch); exits 77 (skipped)
when that is not possible. One stream after the other, then several at once: every request must be
done, with as many tokens as it asked for.
"""
import json
import os
import subprocess
import sys
import tempfile

import pypi
from server import Server, check

PACKAGES = ["guidellm>=0.8,<0.9"]
REQUESTS = 20
STREAMS = [1, 4]
PROMPT_TOKENS, OUTPUT_TOKENS = 32, 16
INSTALL_S = 1200


def main():
    program, model, venv = sys.argv[1:]
    python = pypi.install(venv, PACKAGES, ["guidellm"], INSTALL_S)
    with tempfile.TemporaryDirectory() as folder, Server(program, model) as server:
        report = os.path.join(folder, "report.json")
        done = subprocess.run(
            [python, "-m", "guidellm", "run",
             "--backend", f"kind=openai_http,target={server.address},model=tiny-moe",
             "--profile", json.dumps({"kind": "concurrent", "streams": STREAMS}),
             "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--tokenizer", json.dumps({"kind": "huggingface_auto", "model": model}),
             "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},"
                       f"output_tokens={OUTPUT_TOKENS}",
             "--output", f"kind=json,path={report}", "--disable-console-interactive"],
            check=False, timeout=400, cwd=folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"})
        check(done.returncode == 0, "guidellm ends well")
        with open(report, encoding="utf-8") as file:
            benchmarks = json.load(file)["benchmarks"]
    check(len(benchmarks) == len(STREAMS), "a benchmark for each number of streams")
    for streams, benchmark in zip(STREAMS, benchmarks):
        requests = benchmark["requests"]
        tokens = {request["output_metrics"]["text_tokens"] for request in requests["successful"]}
        check(len(requests["successful"]) == REQUESTS and not requests["errored"],
              f"{streams} streams: all {REQUESTS} requests are done")
        check(tokens == {OUTPUT_TOKENS}, f"{streams} streams: {OUTPUT_TOKENS} tokens each")


main()
