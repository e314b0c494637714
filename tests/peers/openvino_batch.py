#!/usr/bin/env python3
"""openvino-genai with continuous batching, without a server.

    openvino_batch.py MODEL FOLDER THREADS SEQUENCES POSITIONS

Writes MODEL to FOLDER as OpenVINO's graph with F16 weights, once, with the package optimum-intel.
Jobs and answers as in llama_cpp_batch.py. Needs the packages openvino-genai and optimum-intel.
"""
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import openvino_genai  # noqa: E402


def export(model, folder):
    if (folder / "openvino_model.xml").exists():
        return
    tool = pathlib.Path(sys.executable).parent / "optimum-cli"
    done = subprocess.run([tool, "export", "openvino", "--model", model, "--task",
                           "text-generation-with-past", "--weight-format", "fp16", folder],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{tool} failed:\n{done.stderr}")


class Peer:
    def __init__(self, folder, threads, sequences, positions):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs = sequences
        scheduler.cache_size = 1  # GB
        scheduler.max_num_batched_tokens = max(2048, positions)
        scheduler.enable_prefix_caching = False
        self.pipe = openvino_genai.ContinuousBatchingPipeline(
            str(folder), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.tokenizer = self.pipe.get_tokenizer()

    def run(self, texts, new_tokens):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = new_tokens
        config.ignore_eos = True
        begin = time.perf_counter()
        prompts = [self.tokenizer.encode(text).input_ids for text in texts]
        answers = self.pipe.generate(prompts, [config] * len(texts))
        return {"seconds": time.perf_counter() - begin,
                "prompt_tokens": sum(prompt.shape[1] for prompt in prompts),
                "tokens": [list(answer.m_generation_ids[0]) for answer in answers]}


def main():
    model, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    export(model, folder)
    peer = Peer(folder, *map(int, sys.argv[3:]))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(peer.run(job["prompts"], job["new_tokens"])), flush=True)


main()
