#!/usr/bin/env python3
"""Renders chat templates with Jinja2, set up as transformers does, and writes what came out.

usage: make_vectors.py own > vectors.jsonl
       make_vectors.py FOLDER... > real.jsonl

A line is {"name", "template", "variables", "rendered"} or, where the template itself refuses,
{"name", "template", "variables", "error"}. `own` are the cases below; a FOLDER is searched for
tokenizer_config.json and templates (*.jinja). Exit code 77: Jinja2 is not installed.
"""

import datetime
import glob
import json
import os
import sys

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("Jinja2 is not installed", file=sys.stderr)
    sys.exit(77)

NOW = 1_700_000_000
USER = {"role": "user", "content": "Hello, \"wörld\" <b>&\n日本"}
CHAT = [{"role": "system", "content": "Be brief."}, USER,
        {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "2+2?"}]
TOOL = {"type": "function", "function": {
    "name": "weather", "description": "The weather's state", "parameters": {
        "type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "where"},
            "days": {"type": "integer", "default": 3, "nullable": True},
            "units": {"type": "string", "enum": ["C", "F"]}}}}}
CALL = [{"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "id": "call00001",
             "function": {"name": "weather", "arguments": {"city": "Bern", "days": 1.5}}}]},
        {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "wet"},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nYes."},
        {"role": "user", "content": "And now?"}]

OWN = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
              "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "white space": "  a\n  {% if true %}\n    b\n  {% endif %}\n  {%- if true -%}  c  {%- endif %}"
                   "\nd {{ 'e' }} \n{{- 'f' -}}\n g\n  {# note #}\nh\n  {%+ if true "
                   "%} i{% endif +%}"
                   "\n"
                   "{# x -#}   j\n\n",
    "loops": "{% for a, b in [(1, 2), (3, 4)] %}{{ loop.index }}/{{ loop.length }}:{{ a + b }}"
             "{% if not loop.last %}, {% endif %}{% endfor %}|{% for x in [] %}{% else %}none"
             "{% endfor %}|{% for x in range(9) if x is odd %}{% if x == 5 %}{% continue %}"
             "{% endif %}{% if x > 7 %}{% break %}{% endif %}{{ x }}{{ loop.cycle('a', 'b') }}"
             "{% endfor %}|{% for m in messages %}{{ loop.previtem.role if loop.previtem "
             "else '-' }}"
             ">{{ (loop.nextitem or {}).role }};{% endfor %}",
    "scopes": "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}"
              "{% set ns = namespace(x=1, y='a') %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}"
              "{% endfor %}{{ ns.x }}{{ ns.y }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}"
              "{% set t %}block {{ x }}{% endset %}{{ t }}{% set a, b = 'p', 'q' %}{{ b ~ a }}",
    "macros": "{% macro show(m, mark='*', end=none) %}{{ mark }}{{ m.role }}{% if end %}{{ end }}"
              "{% endif %}{% endmacro %}{% for m in messages %}{{ show(m) }}"
              "{{ show(m, end='!', mark='#') }}{% endfor %}"
              "{% macro deep(n) %}{{ n }}{% if n > 0 %}{{ deep(n - 1) }}{% endif %}{% endmacro %}"
              "{{ deep(3) }}",
    "numbers": "{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 * 3 + 1 }} "
               "{{ 0.1 + 0.2 }} {{ 1.5 if false else 3.0 }} {{ '12' | int + 1 }} "
               "{{ 'x' | int(5) }} "
               "{{ 3.7 | int }} {{ -3 | abs }} {{ [3, 1, 2] | sort }} {{ [1, 2] | sum }} "
               "{{ [1, 5, 2] | max }} {{ 10 is divisibleby 5 }} {{ 'ab' * 2 }}",
    "strings": "{{ ' a b '.strip() }}|{{ 'xxabxx'.strip('x') }}|{{ 'a,b,c'.split(',')[-1] }}|"
               "{{ 'a  b'.split() }}|{{ 'a-b-c'.split('-', 1) }}|{{ 'Abc'[::-1] }}|{{ 'wörld'[1] }}"
               "|{{ 'wörld' | length }}|{{ 'a' in 'cat' }}|{{ 'x' not in 'cat' }}|{{ 'abc'[:2] }}|"
               "{{ 'abc'[-2:] }}|{{ 'a b'.title() }}|{{ 'aB' | upper }}|{{ 'hi' | capitalize }}|"
               "{{ 'a\nb' | indent(2) }}|{{ 'aXbX' | replace('X', '-') }}|{{ 'a'.startswith('a') }}"
               "|{{ 'ab'.endswith(('x', 'b')) }}|{{ ['a', 'b'] | join('+') }}|{{ 'it''s' }}|"
               "{{ \"q\\\"\" }}|{{ 'b\\\\n\\t' }}|{{ 'a' 'b' }}|{{ '<' | e }}|{{ ' t ' | trim }}",
    "values": "{{ none }} {{ true }} {{ [1, 'a', none, true, 1.5] }} "
              "{{ {'a': 'b\\'c', 'd': [1]} }} "
              "{{ missing }}{{ missing is defined }}{{ missing | default('d') }}"
              "{{ '' | default('e', true) }}{{ missing or 'f' }}{{ 0 or none }}"
              "{{ 1 == 1.0 }}{{ 'a' == missing }}{{ 'k' in missing }}"
              "{% for x in missing %}{% endfor %}"
              "{{ messages[0].nothing is defined }}{{ messages[9] is defined }}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}"
            "{{ tools | tojson(indent=4) }}"
            "{{ 1.0 | tojson }}{{ none | tojson }}{{ [] | tojson(indent=2) }}",
    "filters": "{{ messages | map(attribute='role') | list }}"
               "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
               "{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') "
               "| join(' ') }}{{ [1, 0, 2] | select | list }}{{ [3, 1] | reverse | list }}"
               "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}"
               "{% for k, v in {'b': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ [1, 1, 2] | unique "
               "| list }}{{ ['a', 'B'] | sort }}{{ ['b', 'a'] | map('upper') | list }}"
               "{{ [1, 2] | first }}{{ [1, 2] | last }}{{ {'a': 1}.get('z', 5) }}"
               "{{ {'a': 1}.keys() | list }}{{ {'a': 1}.values() | list }}",
    "tests": "{{ 1 is number }}{{ 'a' is string }}{{ [] is iterable }}{{ {} is mapping }}"
             "{{ [] is sequence }}{{ none is none }}{{ true is true }}{{ 1 is not none }}"
             "{{ 1.5 is float }}{{ 1 is integer }}{{ true is boolean }}{{ 2 is in [1, 2] }}"
             "{{ 3 is even }}{{ messages is not string and messages is iterable }}",
    "precedence": "{{ not 1 == 2 }}{{ 1 + 2 * 3 - 4 }}{{ (1 + 2) * 3 }}{{ 1 if false else 2 "
                  "if false "
                  "else 3 }}{{ 'a' ~ (1 + 2) }}{{ true or false and false }}{{ -2 + 5 }}"
                  "{{ messages | length - 1 }}{{ 'a' if missing is not defined }}"
                  "{{ messages[0]['role'] + '!' | upper }}{{ 1 in [1] and not 2 in [1] }}",
    "format and filter blocks": "{{ '{}-{}'.format('a', 1) }}{{ '{1}{0}{{x}}'.format(2, none) }}"
                                "{{ '<{name}>'.format(name='n') }}{% filter upper | trim %}  a "
                                "{% for m in messages %}{{ m.role }} {% endfor %}{% filter "
                                "replace('b', 'c') %}bab{% endfilter %}  {% endfilter %}|",
    "the date": "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %B %Y') }}",
    "refusal": "{% for m in messages %}\n{% if m.role == 'system' %}\n"
               "{{ raise_exception('No system role: ' + m.role) }}{% endif %}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
                  "{{ m.content }}"
                  "{% endgeneration %}{% endif %}{% endfor %}",
}


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class Refused(Exception):
    pass


def refuse(message):
    raise Refused(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, \
        sort_keys=False: json.dumps(x, ensure_ascii=ensure_ascii, indent=indent,
                                    separators=separators, sort_keys=sort_keys)
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = lambda format: datetime.datetime.fromtimestamp(
        NOW, datetime.timezone.utc).strftime(format)
    return env


def vector(name, template, variables):
    entry = {"name": name, "template": template, "variables": variables}
    try:
        entry["rendered"] = environment().from_string(template).render(**variables)
    except (Refused, jinja2.UndefinedError) as error:
        entry["error"] = str(error)
    except (jinja2.TemplateError, TypeError):
        return None  # neither does Jinja2: what comes of it is nobody's business
    return entry


def own():
    for name, template in OWN.items():
        yield vector(name, template, {"messages": CHAT, "add_generation_prompt": True,
                                      "tools": [TOOL]})


def special_tokens(config):
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    values = {name: config.get(name) for name in names}
    return {name: value["content"] if isinstance(value, dict) else value
            for name, value in values.items() if value}


def templates(folder):
    for path in sorted(glob.glob(os.path.join(folder, "**"), recursive=True)):
        config = {}
        if os.path.basename(path) == "tokenizer_config.json":
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            template = config.get("chat_template")
        elif path.endswith(".jinja"):
            with open(path, encoding="utf-8") as file:
                template = file.read()
        else:
            continue
        if isinstance(template, str):
            yield path, template, special_tokens(config)


def real(folders):
    chats = [("one", {"messages": [USER]}), ("chat", {"messages": CHAT}),
             ("tools", {"messages": CHAT, "tools": [TOOL]}),
             ("call", {"messages": CALL, "tools": [TOOL]}), ("open", {"messages": CHAT[:3]})]
    for folder in folders:
        for path, template, tokens in templates(folder):
            for name, variables in chats:
                for prompt in (True, False):
                    yield vector(f"{os.path.relpath(path, folder)} {name} {prompt}", template,
                                 {**tokens, **variables, "add_generation_prompt": prompt})


def main(arguments):
    if not arguments:
        sys.exit(__doc__)
    for entry in filter(None, own() if arguments == ["own"] else real(arguments)):
        print(json.dumps(entry, ensure_ascii=False))


main(sys.argv[1:])
