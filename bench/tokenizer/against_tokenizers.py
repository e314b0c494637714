#!/usr/bin/env python3
"""Our tokenizer beside the `tokenizers` package: ids, and processor time on one thread.

usage: against_tokenizers.py BENCH_TOKENIZER TEXT TOKENIZER_JSON...

Needs the package (pip install tokenizers). Prints a line for each file: the text, then texts that
are one word of 1 and 2 MB, which must take about twice as long."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

REPETITIONS = 5


def fnv(ids):
    value = 0xcbf29ce484222325
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def ours(program, tokenizer, text):
    done = subprocess.run([program, tokenizer, text, str(REPETITIONS)], capture_output=True,
                          check=True)
    return json.loads(done.stdout)


def theirs(tokenizer, text):
    """Ids, and the median of the processor time in seconds."""
    from tokenizers import Tokenizer
    loaded = Tokenizer.from_file(tokenizer)
    times = []
    for _ in range(REPETITIONS):
        begin = time.process_time()
        encoded = loaded.encode(text, add_special_tokens=False)
        times.append(time.process_time() - begin)
    return encoded.ids, statistics.median(times)


def main():
    program, text_file, *tokenizers = sys.argv[1:]
    with open(text_file, encoding="utf-8") as file:
        text = file.read()
    print(f"{'file':24} {'ids':>8} {'equal':>5} {'ours MB/s':>9} {'theirs':>7} {'times':>6} "
          f"{'load ms':>8} {'word 1 MB ms':>12} {'2 MB':>7}")
    with tempfile.TemporaryDirectory() as folder:
        words = []
        for size in (1, 2):
            words.append(os.path.join(folder, f"word{size}"))
            with open(words[-1], "w", encoding="ascii") as file:
                file.write("".join(chr(97 + i * i * 7 // 13 % 26) for i in range(size * 1_000_000)))
        for tokenizer in tokenizers:
            found = ours(program, tokenizer, text_file)
            ids, seconds = theirs(tokenizer, text)
            long_words = [ours(program, tokenizer, word)["encode_ns"] / 1e6 for word in words]
            rate = found["bytes"] / found["encode_ns"] * 1e3
            their_rate = found["bytes"] / seconds / 1e6
            equal = found["ids"] == len(ids) and found["hash"] == fnv(ids)
            name = os.path.basename(os.path.dirname(tokenizer)) or tokenizer
            print(f"{name:24} {found['ids']:8} {str(equal):>5} {rate:9.2f} {their_rate:7.2f} "
                  f"{rate / their_rate:6.1f} {found['load_ns'] / 1e6:8.1f} {long_words[0]:12.0f} "
                  f"{long_words[1]:7.0f}", flush=True)


if __name__ == "__main__":
    main()
