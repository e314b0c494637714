#!/usr/bin/env python3
"""lm-eval against `expertflow serve`, and against transformers with the same model.

    lm_eval_client.py PROGRAM MODEL VENV

Installs both from PyPI into VENV at the first run (6 GB, as they bring PyTorch); exits 77 (skipped)
when that is not possible. A task of multiple choice runs in full through `local-completions`, which
asks for the log probabilities of each choice, and through `hf`: each must be the same to 1e-3.
"""
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

import pypi
from server import Server, check

PACKAGES = ["lm-eval[api,hf]>=0.4.9,<0.5"]
INSTALL_S = 1200
QUESTIONS = 20
TOLERANCE = 1e-3
WORDS = ("the keeper of the lighthouse walked down to the sea and saw that a ship had come in from "
         "the north with a crew of nine men who wanted bread water and news about the war").split()
TASK = """task: continuation
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""


def write_task(folder):
    """Random texts of known words, each with four ways to go on."""
    choose = random.Random(1)
    data = os.path.join(folder, "continuation.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        for _ in range(QUESTIONS):
            choices = [" ".join(choose.choices(WORDS, k=choose.randint(1, 4))) for _ in range(4)]
            print(json.dumps({"text": " ".join(choose.choices(WORDS, k=12)), "choices": choices,
                              "answer": choose.randrange(4)}), file=file)
    with open(os.path.join(folder, "continuation.yaml"), "w", encoding="utf-8") as file:
        file.write(TASK.format(data=data))


def run(python, folder, name, kind, arguments):
    """The log probabilities of all choices, by question."""
    output = os.path.join(folder, name)
    done = subprocess.run(
        [python, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks",
         "continuation", "--include_path", folder, "--output_path", output, "--log_samples",
         "--batch_size", "8", "--device", "cpu"],
        check=False, timeout=500, cwd=folder, env={**os.environ, "HF_HUB_OFFLINE": "1",
                                                   "HF_DATASETS_OFFLINE": "1",
                                                   "TOKENIZERS_PARALLELISM": "false"})
    check(done.returncode == 0, name + " ends well")
    [samples] = glob.glob(os.path.join(output, "**", "samples_*.jsonl"), recursive=True)
    with open(samples, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["doc_id"]: [float(part[0]) for part in line["filtered_resps"]] for line in lines}


def main():
    program, model, venv = sys.argv[1:]
    python = pypi.install(venv, PACKAGES, ["lm_eval", "accelerate"], INSTALL_S)
    with tempfile.TemporaryDirectory() as folder:
        write_task(folder)
        with Server(program, model) as server:
            ours = run(python, folder, "server", "local-completions",
                       f"base_url={server.address}/v1/completions,model=tiny-moe,"
                       f"tokenizer={model},tokenized_requests=False,num_concurrent=4")
        theirs = run(python, folder, "transformers", "hf", f"pretrained={model},dtype=float32")
    check(len(ours) == QUESTIONS and ours.keys() == theirs.keys(), f"{QUESTIONS} questions")
    worst = max(abs(a - b) for question, choices in ours.items()
                for a, b in zip(choices, theirs[question], strict=True))
    check(worst < TOLERANCE, f"log probabilities are those of transformers (worst {worst:.1e})")


main()
