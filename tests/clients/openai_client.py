#!/usr/bin/env python3
"""The `openai` package, as anybody installs it, against `expertflow serve`.

usage: openai_client.py PROGRAM MODEL VENV

Installs the package from PyPI into VENV at the first run. Exit code 77 when that is not possible
(no python3-venv, no network): the test is shown as skipped.
"""

import array
import asyncio
import json
import math
import os
import ssl
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import pypi
from server import Server, check, make_certificate

PACKAGES = ["openai>=1.92,<3", "jsonschema>=4,<5"]
TEMPLATE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tools_template.jinja")
QUESTION = [{"role": "user", "content": "Hello!"}]


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


def reference_logits(folder):
    """What transformers computed for the bundled model: (prompt, rows of logits)."""
    with open(os.path.join(folder, "reference.json"), encoding="utf-8") as file:
        prompts = json.load(file)["prompts"]
    with open(os.path.join(folder, "reference.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    for i, prompt in enumerate(prompts):
        tensor = header.get(f"p{i}.logits")
        if tensor is None:
            continue  # a long prompt
        begin, end = tensor["data_offsets"]
        values = array.array("f", data[begin:end])
        vocab = tensor["shape"][1]
        yield prompt["text"], [values[at:at + vocab] for at in range(0, len(values), vocab)]


def check_logprobs(client, model, address, folder):
    worst = 0
    for prompt, logits in reference_logits(folder):
        ids = post(address, "/tokenize", {"prompt": prompt})["tokens"]
        answer = client.completions.create(model=model, prompt=prompt, echo=True, max_tokens=1,
                                           logprobs=1, temperature=0)
        found = answer.choices[0].logprobs
        check(len(found.tokens) == len(ids) + 1 and found.token_logprobs[0] is None,
              "a log probability for each token of prompt and text but the first")
        check("".join(found.tokens[:-1]) == prompt and found.text_offset[-1] == len(prompt),
              "tokens and offsets are those of the prompt")
        for row, (token, logprob, likeliest) in zip(logits, zip(
                ids[1:] + [None], found.token_logprobs[1:], found.top_logprobs[1:])):
            log_sum = max(row) + math.log(sum(math.exp(x - max(row)) for x in row))
            expected = (max(row) if token is None else row[token]) - log_sum
            worst = max(worst, abs(logprob - expected), abs(max(likeliest.values()) -
                                                            max(row) + log_sum))
        only = client.completions.create(model=model, prompt=ids, echo=True, max_tokens=0,
                                         logprobs=1)
        check(only.choices[0].logprobs.token_logprobs == found.token_logprobs[:-1] and
              only.choices[0].text == prompt and only.usage.completion_tokens == 0,
              "the prompt alone, as token ids, the same")
    check(worst < 1e-3, f"log probabilities are those of transformers (worst {worst:.1e})")
    chat = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=5,
                                          temperature=0, logprobs=True, top_logprobs=3)
    content = chat.choices[0].logprobs.content
    check(len(content) == 5 and all(len(token.top_logprobs) == 3 and
                                    token.top_logprobs[0].token == token.token
                                    for token in content), "logprobs of a chat")
    check(bytes(sum((token.bytes for token in content), [])).decode() ==
          chat.choices[0].message.content, "their bytes are the text")


SCHEMAS = [
    {"type": "object", "properties": {
        "colour": {"enum": ["red", "green", None]}, "size": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "deep": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}]}},
     "required": ["colour", "tags"], "additionalProperties": False,
     "$defs": {"pair": {"type": "array", "items": {"type": "boolean"},
                        "minItems": 2, "maxItems": 2}}},
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 4},
    {"enum": ["a", "b", 3, {"x": []}]},
    {"type": "object", "properties": {
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
        "day": {"type": "string", "format": "date"},
        "share": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
        "count": {"type": "integer", "minimum": -12, "maximum": 340}},
     "required": ["code", "day", "share", "count"], "additionalProperties": False},
]


def check_formats(client, model):
    import jsonschema

    def content(schema, **options):
        choice = client.chat.completions.create(
            model=model, messages=QUESTION, max_tokens=200, response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            **options).choices[0]
        check(choice.finish_reason == "stop", "the text ends where the schema does")
        return choice.message.content

    for schema in SCHEMAS:
        for options in [{"temperature": 0}, {"temperature": 2, "seed": 1},
                        {"temperature": 2, "seed": 2}]:
            text = content(schema, **options)
            jsonschema.validate(json.loads(text), schema,
                                format_checker=jsonschema.FormatChecker())
            check(text == content(schema, **options), "valid, and the same again: " + text)
    any_object = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=60, temperature=1.5, seed=5,
        response_format={"type": "json_object"}).choices[0]
    check(any_object.message.content.startswith("{"), "json_object")
    if any_object.finish_reason == "stop":
        json.loads(any_object.message.content)


def check_parse(client, model):
    import typing

    import pydantic

    class Step(pydantic.BaseModel):
        done: bool
        kind: typing.Literal["read", "write"]

    class Plan(pydantic.BaseModel):
        """What the client's own parser makes of an answer."""

        steps: typing.Annotated[list[Step], pydantic.Field(max_length=2)]
        count: typing.Optional[int]

    parsed = client.chat.completions.parse(model=model, messages=QUESTION, max_tokens=200,
                                           temperature=1, seed=7, response_format=Plan)
    check(isinstance(parsed.choices[0].message.parsed, Plan), "parse gives an object")


def check_tools(openai, client, model):
    import typing

    import pydantic

    class Weather(pydantic.BaseModel):
        """The weather of a place."""

        place: typing.Literal["Oslo", "Rome"]
        days: typing.Literal[1, 2, 3]

    tools = [openai.pydantic_function_tool(Weather, name="weather"),
             {"type": "function", "function": {"name": "now"}}]
    tools[1]["function"]["parameters"] = {"type": "object", "properties": {},
                                          "additionalProperties": False}
    named = {"type": "function", "function": {"name": "weather"}}
    parsed = client.chat.completions.parse(model=model, messages=QUESTION, tools=tools[:1],
                                           tool_choice=named, max_tokens=100, temperature=0)
    choice = parsed.choices[0]
    call = choice.message.tool_calls[0]
    check(choice.finish_reason == "tool_calls" and
          isinstance(call.function.parsed_arguments, Weather), "a named function is called")
    stream = client.chat.completions.create(model=model, messages=QUESTION, tools=tools,
                                            tool_choice="required", max_tokens=100, seed=4,
                                            stream=True)
    calls = [call for piece in stream for call in piece.choices[0].delta.tool_calls or []]
    check(len(calls) == 1 and calls[0].function.name in ("weather", "now") and
          isinstance(json.loads(calls[0].function.arguments), dict), "a streamed call")
    after = client.chat.completions.create(
        model=model, max_tokens=5, temperature=0, tools=tools, messages=QUESTION + [
            {"role": "assistant", "tool_calls": [call.model_dump(exclude={"parsed_arguments"})]},
            {"role": "tool", "tool_call_id": call.id, "content": "rain"}])
    check(after.choices[0].message.content is not None, "a tool's answer goes back")


def check_errors(openai, client, model):
    try:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=9)
    except openai.BadRequestError as error:
        check(error.param == "temperature", "a bad parameter is named")
    else:
        raise SystemExit("failed: temperature 9 was taken")
    try:
        client.chat.completions.create(model=model, messages=QUESTION, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "integer", "multipleOf": 2}}})
    except openai.BadRequestError as error:
        check("multipleOf is not supported" in error.message, "an unsupported keyword is named")
    else:
        raise SystemExit("failed: multipleOf was taken")
    try:
        client.chat.completions.create(model="another", messages=QUESTION)
    except openai.NotFoundError as error:
        check(error.code == "model_not_found", "an unknown model is not found")
    else:
        raise SystemExit("failed: an unknown model was served")


def check_description(address):
    with urllib.request.urlopen(address + "/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    for path, methods in paths.items():
        for method in methods:
            request = urllib.request.Request(
                address + path.replace("{model}", "tiny-moe"), method=method.upper(),
                data=None if method == "get" else b"[]",
                headers={"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request) as answer:
                    status = answer.status
            except urllib.error.HTTPError as error:
                status = error.code
            check(status == {"get": 200, "post": 400, "patch": 403}[method],
                  f"the description's {method} {path} is there")


async def check_async(openai, address, model):
    async with openai.AsyncOpenAI(base_url=address + "/v1", api_key="none") as client:
        answers = await asyncio.gather(*[
            client.completions.create(model=model, prompt="#if", max_tokens=8, temperature=0)
            for _ in range(20)])
    check(len({answer.choices[0].text for answer in answers}) == 1, "20 at once, the same text")


def check_tls(openai, address, trusted):
    import httpx
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0,
                       http_client=httpx.Client(verify=ssl.create_default_context(
                           cafile=trusted))) as client:
        model = client.models.list().data[0].id
        check_completions(client, model)
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        try:
            client.models.list()
        except openai.APIConnectionError:
            check(True, "a certificate that nobody vouches for is not trusted")
        else:
            raise SystemExit("failed: an unknown certificate was trusted")


def run_checks(address, folder):
    import openai
    with openai.OpenAI(base_url=address + "/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        check_completions(client, model)
        check_chats(client, model)
        check_sampling(client, model, address)
        check_logprobs(client, model, address, folder)
        check_formats(client, model)
        check_parse(client, model)
        check_tools(openai, client, model)
        check_errors(openai, client, model)
        check_description(address)
        asyncio.run(check_async(openai, address, model))
    print("openai", openai.__version__)


def run_inside(python, *arguments):
    checks = subprocess.run([python, os.path.abspath(__file__), *arguments], check=False,
                            timeout=240)
    if checks.returncode != 0:
        sys.exit(checks.returncode)


def main():
    if sys.argv[1] == "--checks":
        run_checks(*sys.argv[2:])
        return
    if sys.argv[1] == "--tls":
        import openai
        check_tls(openai, *sys.argv[2:])
        return
    program, model, venv = sys.argv[1:]
    python = pypi.install(venv, PACKAGES, ["openai", "jsonschema"])
    with Server(program, model, "--workers", "2", "--chat-template", TEMPLATE) as server:
        run_inside(python, "--checks", server.address, model)
    with tempfile.TemporaryDirectory() as folder:
        tls, trusted = make_certificate(folder)
        with Server(program, model, *tls) as server:
            run_inside(python, "--tls", server.address, trusted)


main()
