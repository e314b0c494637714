#!/usr/bin/env python3
"""The `openai` package, as anybody installs it, against `expertflow serve`.

usage: openai_client.py PROGRAM MODEL VENV

Installs the package from PyPI into VENV at the first run. Exit code 77 when that is not possible
(no python3-venv, no network): the test is shown as skipped.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request

PACKAGE = "openai>=1.40,<3"
INSTALL_S = 150
READY_S = 60
QUESTION = [{"role": "user", "content": "Hello!"}]


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def install(venv):
    python = os.path.join(venv, "bin", "python")
    if os.path.exists(python):
        found = subprocess.run([python, "-c", "import openai"], capture_output=True, check=False)
        if found.returncode == 0:
            return python
    try:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, capture_output=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--retries", "1", PACKAGE],
                       check=True, capture_output=True, timeout=INSTALL_S)
    except (subprocess.SubprocessError, OSError) as error:
        skip(f"{PACKAGE} cannot be installed: {error}")
    return python


def start(program, model):
    # A short folder of its own: a socket's path has little room.
    folder = tempfile.TemporaryDirectory(prefix="efc-")
    server = subprocess.Popen([program, "serve", "--model", model, "--listen", "127.0.0.1:0"],
                              stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "XDG_RUNTIME_DIR": folder.name})
    address = server.stdout.readline().split()[-1]
    signal.alarm(READY_S)  # readline() has no time-out
    if server.stdout.readline().strip() != "ready":
        raise SystemExit("the server did not get ready")
    signal.alarm(0)
    return server, address, folder


def check(condition, what):
    if not condition:
        raise SystemExit("failed: " + what)
    print("ok:", what)


def check_completions(client, model):
    whole = client.completions.create(model=model, prompt="The lighthouse keeper", max_tokens=24,
                                      temperature=0)
    check(whole.usage.completion_tokens == 24 and whole.choices[0].finish_reason == "length",
          "completion with usage")
    pieces = list(client.completions.create(model=model, prompt="The lighthouse keeper",
                                            max_tokens=24, temperature=0, stream=True,
                                            stream_options={"include_usage": True}))
    text = "".join(piece.choices[0].text for piece in pieces if piece.choices)
    check(text == whole.choices[0].text, "stream equals whole")
    check(pieces[-1].usage.completion_tokens == 24, "usage ends the stream")
    many = client.completions.create(model=model, prompt=["a", "b"], n=2, max_tokens=3, seed=1)
    check([choice.index for choice in many.choices] == [0, 1, 2, 3], "prompts times n")


def check_chats(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=16,
                                           temperature=0)
    check(whole.choices[0].message.role == "assistant", "chat")
    stream = client.chat.completions.create(model=model, messages=QUESTION,
                                            max_completion_tokens=16, temperature=0, stream=True)
    text = "".join(piece.choices[0].delta.content or "" for piece in stream)
    check(text == whole.choices[0].message.content, "chat stream equals whole")


def post(address, path, body):
    request = urllib.request.Request(address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def check_sampling(client, model, address):
    def text(**options):
        return client.completions.create(model=model, prompt="The lighthouse keeper", max_tokens=24,
                                         **options).choices[0].text

    plain = text(temperature=0)
    check(text(temperature=0, frequency_penalty=2, presence_penalty=1) != plain, "penalties")
    check(text(temperature=0, extra_body={"repetition_penalty": 1.5}) != plain, "a penalty")
    check(text(temperature=1.5, seed=3, extra_body={"min_p": 1}) == plain, "min_p 1 is greedy")
    [token] = post(address, "/tokenize", {"prompt": " sea"})["tokens"]
    check(text(temperature=0, logit_bias={str(token): 100}) == " sea" * 24, "logit_bias")
    check(post(address, "/detokenize", {"tokens": [token]}) == {"prompt": " sea"}, "detokenize")


def check_errors(openai, client, model):
    try:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=9)
    except openai.BadRequestError as error:
        check(error.param == "temperature", "a bad parameter is named")
    else:
        raise SystemExit("failed: temperature 9 was taken")
    try:
        client.chat.completions.create(model="another", messages=QUESTION)
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", "an unknown model is not found")
    else:
        raise SystemExit("failed: an unknown model was served")


async def check_async(openai, address, model):
    async with openai.AsyncOpenAI(base_url=address + "/v1", api_key="none") as client:
        answers = await asyncio.gather(*[
            client.completions.create(model=model, prompt="#if", max_tokens=8, temperature=0)
            for _ in range(20)])
    check(len({answer.choices[0].text for answer in answers}) == 1, "20 at once, the same text")


def run_checks(address):
    import openai
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        check_completions(client, model)
        check_chats(client, model)
        check_sampling(client, model, address)
        check_errors(openai, client, model)
        asyncio.run(check_async(openai, address, model))
    print("openai", openai.__version__)


def main():
    if sys.argv[1] == "--checks":
        run_checks(sys.argv[2])
        return
    program, model, venv = sys.argv[1:]
    python = install(venv)
    server, address, folder = start(program, model)
    try:
        checks = subprocess.run([python, os.path.abspath(__file__), "--checks", address],
                                check=False, timeout=120)
        server.send_signal(signal.SIGTERM)
        ended = server.wait(timeout=30)
        check(ended == 0, "the server ends with 0")
        sys.exit(checks.returncode)
    finally:
        server.kill()
        folder.cleanup()


main()
