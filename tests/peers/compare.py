#!/usr/bin/env python3
"""expertflow beside other engines from PyPI: the same model, prompts and threads, in one run.

    compare.py PROGRAM MODEL FOLDER [--peer NAME] [--threads N,N] [--batches N,N] [--repetitions N]
               [--prompt-tokens N] [--new-tokens N] [--serve-options "..."] [--check] [--json FILE]

Peers: llama-cpp-python (the default), openvino-genai, transformers. Makes an environment with the
peer below FOLDER at the first run (5 GB for the last two; llama-cpp-python's source is built for
this CPU, which takes 10 to 30 minutes), and exits 77 (skipped) when that is not possible. The model
is given to llama-cpp-python as GGUF in BF16 and F16, to openvino-genai as its graph with F16
weights, to transformers as it is. All arms answer the same prompts greedily and take turns; ours
always through its server, peers without any server through an API that takes all prompts at once,
and llama-cpp-python also through its server, one request at a time. --check compares texts with
llama-cpp-python's and measures nothing.

Ratios are taken within a repetition, against the fastest of the peer's arms; medians are shown. The
processor time of ours is that of all its processes.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "clients"))
import pypi  # noqa: E402
from server import Server, check  # noqa: E402

# Environment, packages, modules that are there when it is complete.
LLAMA_CPP = ("venv", ["llama-cpp-python[server]==0.3.36", "gguf>=0.17,<1", "numpy>=1.26"],
             ["llama_cpp.server.app", "gguf", "numpy"])
OTHERS = ("others", ["optimum-intel[openvino]>=1.27,<3", "openvino-genai>=2026.0,<2027"],
          ["torch", "transformers", "openvino_genai", "optimum.intel"])
INSTALL_S = 3600
READY_S = 60
REQUEST_S = 600
TYPES = ("bf16", "f16")
# A token each in the bundled model's vocabulary.
WORDS = (" the of a in to and is was it sea on for as at by he his with that from".split())
HERE = pathlib.Path(__file__).resolve().parent


def prompt_text(tokens, seed):
    choose = random.Random(seed)
    return "".join(" " + choose.choice(WORDS) for _ in range(tokens))


def family(pid):
    """The process and all below it."""
    found = [pid]
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text(encoding="ascii").split():
                found += family(int(child))
        except OSError:
            pass
    return found


def cpu_seconds(pid):
    total = 0
    for member in family(pid):
        try:
            fields = pathlib.Path(f"/proc/{member}/stat").read_text(encoding="ascii")
        except OSError:
            continue
        total += sum(map(int, fields.rpartition(")")[2].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def busy_seconds():
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


class Client:
    """A connection to an OpenAI-compatible server."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(urllib.parse.urlparse(address).netloc,
                                                     timeout=REQUEST_S)

    def post(self, prompt, new_tokens, **more):
        body = {"prompt": prompt, "max_tokens": new_tokens, "temperature": 0, **more}
        self.connection.request("POST", "/v1/completions", json.dumps(body),
                                {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {answer.read().decode()}")
        return answer

    def whole(self, prompt, new_tokens, **more):
        answer = json.loads(self.post(prompt, new_tokens, **more).read())
        return answer["choices"][0]["text"], answer["usage"]

    def stream(self, prompt, new_tokens, **more):
        """When each event with a text came, in seconds from the request."""
        begin = time.perf_counter()
        answer = self.post(prompt, new_tokens, stream=True, **more)
        times, events = [], []
        for line in answer:
            if line.startswith(b"data: {"):
                times.append(time.perf_counter() - begin)
                events.append(line)
        texts = [json.loads(event[6:])["choices"][0]["text"] for event in events]
        return [at for at, text in zip(times, texts, strict=True) if text]


def at_once(address, prompts, new_tokens, **more):
    """Texts and usages of requests that are sent at the same time."""
    answers = [None] * len(prompts)

    def ask(at):
        answers[at] = Client(address).whole(prompts[at], new_tokens, **more)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in answers:
        sys.exit("a request failed")
    return answers


class Ours:
    name = "expertflow"

    def __init__(self, program, model, threads, sequences, positions, options):
        # 6 KiB a position of the bundled model; as much again for what is kept of earlier prompts.
        memory = f"--kv-memory={2 * sequences * positions * 6144}"
        self.server = Server(program, model, f"--threads={threads}",
                             f"--sequences-max={sequences}", memory, *options)
        self.pid = self.server.process.pid
        self.address = self.server.address

    def generate(self, prompts, new_tokens):
        answers = at_once(self.address, prompts, new_tokens, ignore_eos=True)
        return (sum(usage["prompt_tokens"] for _, usage in answers),
                sum(usage["completion_tokens"] for _, usage in answers))

    def stream(self, prompt, new_tokens):
        return Client(self.address).stream(prompt, new_tokens, ignore_eos=True)

    def texts(self, prompts, new_tokens):
        return [text for text, _ in at_once(self.address, prompts, new_tokens, ignore_eos=True)]

    def close(self):
        self.server.stop()


class PeerServer:
    """One request at a time: that is how it works. Knows no ignore_eos."""

    PLAIN = {"repeat_penalty": 1.0}  # its default is 1.1, also when greedy

    def __init__(self, python, model, kind, threads, positions):
        self.name = f"llama-cpp-python's server, {kind}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        # logits_all keeps the logits of all positions, which only log probabilities need.
        self.process = subprocess.Popen(
            [python, "-m", "llama_cpp.server", "--model", model, "--port", str(port), "--n_ctx",
             str(positions), "--n_threads", str(threads), "--n_threads_batch", str(threads),
             "--logits_all", "false", "--verbose", "false"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self.process.pid
        deadline = time.monotonic() + READY_S
        while not self.ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.close()
                sys.exit("the peer's server did not get ready")
            time.sleep(0.1)

    def ready(self):
        client = Client(self.address).connection
        try:
            client.request("GET", "/v1/models")
            return client.getresponse().status == 200
        except OSError:
            return False

    def generate(self, prompts, new_tokens):
        prompt_tokens = completion_tokens = 0
        for prompt in prompts:
            _, usage = Client(self.address).whole(prompt, new_tokens, **self.PLAIN)
            prompt_tokens += usage["prompt_tokens"]
            completion_tokens += usage["completion_tokens"]
        return prompt_tokens, completion_tokens

    def stream(self, prompt, new_tokens):
        return Client(self.address).stream(prompt, new_tokens, **self.PLAIN)

    def texts(self, prompts, new_tokens):
        return [Client(self.address).whole(prompt, new_tokens, **self.PLAIN)[0]
                for prompt in prompts]

    def close(self):
        self.process.kill()
        self.process.wait()


class PeerBatch:
    """An API that takes all prompts at once, in a process that reads jobs."""

    def __init__(self, name, *command):
        self.name = name
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def run(self, prompts, new_tokens):
        print(json.dumps({"prompts": prompts, "new_tokens": new_tokens}), file=self.process.stdin,
              flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.name} ended with {self.process.wait()}")
        return json.loads(answer)

    def generate(self, prompts, new_tokens):
        answer = self.run(prompts, new_tokens)
        return answer["prompt_tokens"], sum(map(len, answer["tokens"]))

    def close(self):
        self.process.kill()
        self.process.wait()


def percentile(values, share):
    """The smallest value that so many do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def measure(arm, prompts, new_tokens):
    cpu, busy, begin = cpu_seconds(arm.pid), busy_seconds(), time.perf_counter()
    prompt_tokens, completion_tokens = arm.generate(prompts, new_tokens)
    seconds = time.perf_counter() - begin
    cpu, busy = cpu_seconds(arm.pid) - cpu, busy_seconds() - busy
    return {"seconds": seconds, "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "tokens_per_second": (prompt_tokens + completion_tokens) / seconds,
            "cpu_seconds": cpu, "other_cores": max(0.0, busy - cpu) / seconds}


def measure_stream(arm, prompt, new_tokens):
    times = arm.stream(prompt, new_tokens)
    gaps = [1000 * (after - before) for before, after in zip(times, times[1:])]
    return {"ttft_ms": 1000 * times[0], "gaps_ms": gaps}


def row(name, samples):
    rates = [sample["tokens_per_second"] for sample in samples]
    cpu = statistics.median(sample["cpu_seconds"] for sample in samples)
    other = statistics.median(sample["other_cores"] for sample in samples)
    print(f"  {name:42} {min(rates):9.0f} {statistics.median(rates):9.0f} {max(rates):9.0f}"
          f" {cpu:9.2f} {other:7.2f}", flush=True)


def versus(ours, peers, rate):
    """Ours over the best peer, repetition by repetition: the median."""
    return statistics.median(rate(sample) / max(rate(peer[i]) for peer in peers)
                             for i, sample in enumerate(ours))


def tokens_per_cpu_second(sample):
    tokens = sample["prompt_tokens"] + sample["completion_tokens"]
    return tokens / max(sample["cpu_seconds"], 0.01)


def compare_batch(arms, batch, threads, arguments, results):
    print(f"batch {batch}, {threads} threads: total tokens/s (min, median, max), CPU s, cores that"
          " others take")
    samples = {arm.name: [] for arm in arms}
    for repetition in range(-1, arguments.repetitions):  # the first one is a warm-up
        prompts = [prompt_text(arguments.prompt_tokens, (repetition + 1) * 1000 + at)
                   for at in range(batch)]
        for arm in arms:
            sample = measure(arm, prompts, arguments.new_tokens)
            if repetition >= 0:
                samples[arm.name].append(sample)
    for name, of_arm in samples.items():
        row(name, of_arm)
    ours, *peers = samples.values()
    ratio = versus(ours, peers, lambda sample: sample["tokens_per_second"])
    cpu_ratio = versus(ours, peers, tokens_per_cpu_second)
    print(f"  {ratio:.2f} times the fastest peer, {cpu_ratio:.2f} by processor time", flush=True)
    results.append({"batch": batch, "threads": threads, "samples": samples, "ratio": ratio,
                    "cpu_ratio": cpu_ratio})


def compare_streams(arms, threads, arguments, results):
    print(f"one stream, {threads} threads: ms to the first text; between two (p50, p99)")
    samples = {arm.name: [] for arm in arms}
    for repetition in range(-1, arguments.repetitions):
        for arm in arms:
            # None that was asked before: its beginning would be in a cache.
            prompt = prompt_text(arguments.prompt_tokens, f"stream {repetition}")
            sample = measure_stream(arm, prompt, arguments.new_tokens)
            if repetition >= 0:
                samples[arm.name].append(sample)
    rows = {}
    for name, of_arm in samples.items():
        gaps = [gap for sample in of_arm for gap in sample["gaps_ms"]]
        rows[name] = {"ttft_ms": statistics.median(sample["ttft_ms"] for sample in of_arm),
                      "gap_p50_ms": percentile(gaps, 50), "gap_p99_ms": percentile(gaps, 99),
                      "gaps": len(gaps)}
        print(f"  {name:42} {rows[name]['ttft_ms']:9.2f} {rows[name]['gap_p50_ms']:9.3f}"
              f" {rows[name]['gap_p99_ms']:9.3f}", flush=True)
    results.append({"threads": threads, "streams": rows})


def check_texts(program, model, files, python, arguments):
    """The GGUF file is the folder's model, and the peer says nearly the same."""
    prompts = [prompt_text(arguments.prompt_tokens, seed) for seed in range(8)]
    positions = arguments.prompt_tokens + arguments.new_tokens
    texts = {}
    for name in (model, files["bf16"]):
        ours = Ours(program, name, 1, len(prompts), positions, [])
        texts[name] = ours.texts(prompts, arguments.new_tokens)
        ours.close()
    check(texts[model] == texts[files["bf16"]], "expertflow reads the GGUF file as the same model")
    peer = PeerServer(python, files["bf16"], "bf16", 1, positions + 1)
    theirs = peer.texts(prompts, arguments.new_tokens)
    peer.close()
    # It stops at the end-of-text token, where ours was told to go on, and rounds activations.
    shares = [len(os.path.commonprefix([our, their])) / max(1, len(their))
              for our, their in zip(texts[model], theirs, strict=True)]
    check(statistics.median(shares) > 0.1 and max(shares) > 0.5, "the peer's text is ours up to "
          f"{', '.join(f'{100 * share:.0f}' for share in shares)} % of its characters")


class LlamaCpp:
    """What llama-cpp-python takes part with."""

    def __init__(self, arguments):
        self.python = install(arguments.folder, LLAMA_CPP)
        self.files = {}
        for kind in TYPES:
            self.files[kind] = str(arguments.folder / f"model-{kind}.gguf")
            subprocess.run([self.python, HERE / "write_gguf.py", arguments.model, self.files[kind],
                            kind], check=True)

    def servers(self, threads, positions):
        return [PeerServer(self.python, self.files[kind], kind, threads, positions)
                for kind in TYPES]

    def batches(self, threads, sequences, positions):
        return [PeerBatch(f"llama-cpp-python's batched API, {kind}", self.python,
                          HERE / "llama_cpp_batch.py", self.files[kind], threads, sequences,
                          positions) for kind in TYPES]


class OpenVino:
    """What openvino-genai takes part with."""

    def __init__(self, arguments):
        self.python = install(arguments.folder, OTHERS)
        self.model = arguments.model
        self.graph = arguments.folder / "openvino"

    def servers(self, _threads, _positions):
        return []

    def batches(self, threads, sequences, positions):
        return [PeerBatch("openvino-genai's continuous batching, f16", self.python,
                          HERE / "openvino_batch.py", self.model, self.graph, threads, sequences,
                          positions)]


class Transformers:
    """What transformers takes part with."""

    def __init__(self, arguments):
        self.python = install(arguments.folder, OTHERS)
        self.model = arguments.model

    def servers(self, _threads, _positions):
        return []

    def batches(self, threads, _sequences, _positions):
        return [PeerBatch("transformers' generate(), bf16", self.python,
                          HERE / "transformers_batch.py", self.model, threads)]


PEERS = {"llama-cpp-python": LlamaCpp, "openvino-genai": OpenVino, "transformers": Transformers}


def install(folder, environment):
    name, packages, modules = environment
    return pypi.install(str(folder / name), packages, modules, INSTALL_S)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--peer", choices=PEERS, default="llama-cpp-python")
    numbers = lambda text: [int(number) for number in text.split(",")]  # noqa: E731
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--serve-options", type=shlex.split, default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.check:
        peer = LlamaCpp(arguments)
        check_texts(arguments.program, arguments.model, peer.files, peer.python, arguments)
        return
    peer = PEERS[arguments.peer](arguments)
    positions = arguments.prompt_tokens + arguments.new_tokens + 1
    results = []
    for threads in arguments.threads:
        ours = Ours(arguments.program, arguments.model, threads, max(arguments.batches), positions,
                    arguments.serve_options)
        servers = peer.servers(threads, positions)
        for batch in arguments.batches:
            batched = peer.batches(threads, batch, positions)
            compare_batch([ours, *(servers if batch == 1 else []), *batched], batch, threads,
                          arguments, results)
            for arm in batched:
                arm.close()
        compare_streams([ours, *servers], threads, arguments, results)
        for arm in [ours, *servers]:
            arm.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(
            {"version": 1, "peer": arguments.peer, "results": results}, indent=1))


main()
