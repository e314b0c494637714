#!/usr/bin/env python3
"""transformers' generate(), all prompts as one batch: the naive line.

    transformers_batch.py MODEL THREADS

Jobs and answers as in llama_cpp_batch.py. Needs the packages torch and transformers.
"""
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402


class Peer:
    def __init__(self, path, threads):
        torch.set_num_threads(threads)
        transformers.utils.logging.set_verbosity_error()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path, padding_side="left")
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        self.model.eval()

    def run(self, texts, new_tokens):
        begin = time.perf_counter()
        batch = self.tokenizer(texts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = self.model.generate(**batch, max_new_tokens=new_tokens,
                                      min_new_tokens=new_tokens, do_sample=False,
                                      pad_token_id=self.tokenizer.pad_token_id)
        return {"seconds": time.perf_counter() - begin,
                "prompt_tokens": int(batch["attention_mask"].sum()),
                "tokens": ids[:, batch["input_ids"].shape[1]:].tolist()}


def main():
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(peer.run(job["prompts"], job["new_tokens"])), flush=True)


main()
