#!/usr/bin/env python3
"""litellm and langchain-openai, as anybody installs them, against `expertflow serve`.

    libraries_client.py PROGRAM MODEL VENV

Installs the packages from PyPI into VENV at the first run; exits 77 (skipped) when that is not
possible.
"""
import asyncio
import os
import subprocess
import sys

import pypi
from server import Server, check

PACKAGES = ["litellm>=1.60", "langchain-openai>=1,<2"]
QUESTION = [{"role": "user", "content": "Hello!"}]


def check_litellm(address):
    import litellm
    litellm.telemetry = False
    to = {"model": "openai/tiny-moe", "api_base": address + "/v1", "api_key": "none",
          "max_retries": 0, "temperature": 0}

    def text_of(pieces):
        return "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)

    whole = litellm.completion(messages=QUESTION, max_tokens=12, **to)
    text = whole.choices[0].message.content
    check(text and whole.usage.completion_tokens == 12, "litellm: a chat with usage")
    check(text_of(litellm.completion(messages=QUESTION, max_tokens=12, stream=True, **to)) == text,
          "litellm: streamed, the same text")

    async def many():
        return await asyncio.gather(*[litellm.acompletion(messages=QUESTION, max_tokens=12, **to)
                                      for _ in range(8)])

    check({one.choices[0].message.content for one in asyncio.run(many())} == {text},
          "litellm: eight at once, the same text")
    plain = litellm.text_completion(prompt="The lighthouse keeper", max_tokens=5,
                                    **{**to, "model": "text-completion-openai/tiny-moe"})
    check(plain.choices[0].text, "litellm: a completion")
    try:
        litellm.completion(messages=QUESTION, **{**to, "temperature": 9})
    except litellm.BadRequestError as error:
        check("temperature" in str(error), "litellm: a bad parameter is named")
    else:
        raise SystemExit("failed: temperature 9 was taken")
    try:
        litellm.completion(messages=QUESTION, **{**to, "model": "openai/another"})
    except litellm.NotFoundError:
        check(True, "litellm: an unknown model is not found")
    else:
        raise SystemExit("failed: an unknown model was served")


def check_langchain(address):
    import pydantic
    from langchain_openai import ChatOpenAI, OpenAI

    class Answer(pydantic.BaseModel):
        """A short answer."""

        sure: bool
        score: int

    to = {"model": "tiny-moe", "base_url": address + "/v1", "api_key": "none", "max_retries": 0,
          "temperature": 0}
    chat = ChatOpenAI(max_tokens=12, **to)
    whole = chat.invoke("Hello!")
    check(whole.content and whole.usage_metadata["output_tokens"] == 12, "langchain: invoke")
    check("".join(piece.content for piece in chat.stream("Hello!")) == whole.content,
          "langchain: stream, the same text")
    check([one.content for one in chat.batch(["Hello!"] * 4)] == [whole.content] * 4,
          "langchain: batch, the same text")
    check(asyncio.run(chat.ainvoke("Hello!")).content == whole.content, "langchain: ainvoke")
    check(OpenAI(max_tokens=5, **to).invoke("The lighthouse keeper"), "langchain: a completion")
    answer = ChatOpenAI(max_tokens=100, **to).with_structured_output(
        Answer, method="json_schema", strict=True).invoke("Hello!")
    check(isinstance(answer, Answer), "langchain: structured output")


def main():
    if sys.argv[1] == "--checks":
        check_litellm(sys.argv[2])
        check_langchain(sys.argv[2])
        return
    program, model, venv = sys.argv[1:]
    python = pypi.install(venv, PACKAGES, ["litellm", "langchain_openai"])
    with Server(program, model) as server:
        done = subprocess.run([python, os.path.abspath(__file__), "--checks", server.address],
                              check=False, timeout=300,
                              env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
        check(done.returncode == 0, "both libraries")


main()
