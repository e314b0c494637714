#!/usr/bin/env python3
"""The batched decode API of llama-cpp-python, without a server.

    llama_cpp_batch.py GGUF THREADS SEQUENCES POSITIONS

Reads a line of JSON for each job, {"prompts": [text], "new_tokens": N}, and answers with a line
{"seconds", "first_seconds", "prompt_tokens", "tokens": [[id]]}: all prompts are computed, then one
token of each sequence in a step, the likeliest one. Needs the packages llama-cpp-python and numpy.
"""
import json
import sys
import time

import llama_cpp
import numpy

BATCH_TOKENS = 2048  # of one call; the library cuts it into n_ubatch = 512, both its defaults


def check(code, what):
    if code != 0:
        sys.exit(f"{what} failed with {code}")


class Peer:
    def __init__(self, path, threads, sequences, positions):
        llama_cpp.llama_log_set(SILENT, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"{path} cannot be loaded")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        # Each sequence attends to its own part of the cache only. Of the settings of this and of
        # flash attention, these are the fastest here.
        params.kv_unified = False
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.n_ctx = sequences * positions
        params.n_seq_max = sequences
        params.n_batch = BATCH_TOKENS
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        # Views of the batch's arrays: filled at once, not one by one through ctypes.
        views = [numpy.ctypeslib.as_array(field, shape=(BATCH_TOKENS,))
                 for field in (self.batch.token, self.batch.pos, self.batch.logits)]
        self.token, self.pos, self.logits = views
        numpy.ctypeslib.as_array(self.batch.n_seq_id, shape=(BATCH_TOKENS,))[:] = 1
        self.seq_id = [self.batch.seq_id[i] for i in range(BATCH_TOKENS)]

    def tokenize(self, text):
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, True)
        return list(ids[:count])

    def decode(self, count, rows):
        """The likeliest next token of each of the last `rows` entries that ask for logits."""
        self.batch.n_tokens = count
        check(llama_cpp.llama_decode(self.context, self.batch), "llama_decode")
        if rows == 0:
            return numpy.empty(0, dtype=numpy.int32)
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context),
                                          shape=(rows, self.vocab_size))
        return logits.argmax(axis=1).astype(numpy.int32)

    def prompts(self, prompts):
        """The first token of each sequence."""
        entries = [(token, at, sequence, at + 1 == len(ids)) for sequence, ids in enumerate(prompts)
                   for at, token in enumerate(ids)]
        tokens = []
        for first in range(0, len(entries), BATCH_TOKENS):
            part = entries[first:first + BATCH_TOKENS]
            for i, (token, at, sequence, last) in enumerate(part):
                self.token[i], self.pos[i], self.logits[i] = token, at, last
                self.seq_id[i][0] = sequence
            tokens.append(self.decode(len(part), sum(entry[3] for entry in part)))
        return numpy.concatenate(tokens)

    def run(self, texts, new_tokens):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        begin = time.perf_counter()
        prompts = [self.tokenize(text) for text in texts]
        count = len(prompts)
        steps = [self.prompts(prompts)]
        first_seconds = time.perf_counter() - begin
        self.pos[:count] = [len(ids) for ids in prompts]
        self.logits[:count] = 1
        for i in range(count):
            self.seq_id[i][0] = i
        for _ in range(new_tokens - 1):
            self.token[:count] = steps[-1]
            steps.append(self.decode(count, count))
            self.pos[:count] += 1
        seconds = time.perf_counter() - begin
        return {"seconds": seconds, "first_seconds": first_seconds,
                "prompt_tokens": sum(len(ids) for ids in prompts),
                "tokens": numpy.stack(steps, axis=1).tolist()}


@llama_cpp.llama_log_callback
def SILENT(_level, _text, _data):
    pass


def main():
    path, threads, sequences, positions = sys.argv[1], *map(int, sys.argv[2:])
    peer = Peer(path, threads, sequences, positions)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(peer.run(job["prompts"], job["new_tokens"])), flush=True)


main()
