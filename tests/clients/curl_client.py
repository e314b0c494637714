#!/usr/bin/env python3
"""The server as curl meets it: over TLS, with keys, streamed, and refused.

    curl_client.py PROGRAM MODEL

Exits 77 (skipped) where there is no curl or no openssl.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pypi
from server import Server, check, make_certificate

KEY = "key-of-a-friend"
ADMIN = "key-of-the-admin"
POSTS_A_MINUTE = 8
SYSTEMS = "/etc/ssl/certs/ca-certificates.crt"
# curl's exit codes
TLS_FAILED = 35
NOT_TRUSTED = 60


class Curl:
    def __init__(self, address, trusted):
        self.address = address
        self.trusted = trusted

    def run(self, path, *options, key=KEY):
        """(exit code, answer, its status)"""
        arguments = ["curl", "--silent", "--show-error", "--max-time", "60", "--cacert",
                     self.trusted, "--write-out", "\n%{http_code}", *options]
        if key:
            arguments += ["--header", "Authorization: Bearer " + key]
        done = subprocess.run([*arguments, self.address + path], capture_output=True, text=True,
                              check=False, timeout=120)
        body, _, status = done.stdout.rpartition("\n")
        return done.returncode, body, status

    def post(self, path, body, *options, key=KEY):
        return self.run(path, "--header", "Content-Type: application/json", "--data-binary",
                        body if isinstance(body, str) else json.dumps(body), *options, key=key)


def check_tls(curl):
    code, _, _ = Curl(curl.address, SYSTEMS).run("/health")
    check(code == NOT_TRUSTED, "a certificate that nobody vouches for is not trusted")
    code, _, _ = curl.run("/health", "--tls-max", "1.1", "--ciphers", "DEFAULT:@SECLEVEL=0")
    check(code == TLS_FAILED, "TLS 1.1 is refused")
    for version in ("1.2", "1.3"):
        code, body, status = curl.run("/health", "--tlsv" + version, "--tls-max", version)
        check(code == 0 and status == "200" and json.loads(body)["ready"], "TLS " + version)
    plain = Curl(curl.address.replace("https:", "http:"), curl.trusted)
    _, body, status = plain.run("/health")
    check(status == "400" and "https://" in body, "plain HTTP is told to use https")
    # Each answer is followed by how many connections it took.
    _, body, connects = curl.run("/health/live", curl.address + "/health/live", "--write-out",
                                 "\n%{num_connects}")
    check(body.split("\n")[1].startswith("1{") and connects == "0",
          "two requests over one connection")


def check_keys(curl):
    for key in ("", "another-key"):
        _, body, status = curl.run("/v1/models", key=key)
        check(status == "401" and json.loads(body)["error"]["code"] == "invalid_api_key",
              f"the key '{key}' is not let in")
    _, body, status = curl.run("/v1/models")
    check(status == "200" and json.loads(body)["data"][0]["id"] == "tiny-moe", "with a key")


def check_texts(curl):
    request = {"prompt": "The lighthouse keeper", "max_tokens": 24, "temperature": 0}
    _, whole, status = curl.post("/v1/completions", request)
    whole = json.loads(whole)
    check(status == "200" and whole["usage"]["completion_tokens"] == 24, "a completion")
    code, stream, _ = curl.post("/v1/completions", {**request, "stream": True}, "--no-buffer")
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    check(code == 0 and events.pop() == "[DONE]", "a stream ends with [DONE]")
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events)
    check(text == whole["choices"][0]["text"] and len(events) > 1, "a stream, the same text")
    # curl asks before it sends so much ("Expect: 100-continue").
    for size, expected in ((2 << 20, "400"), (9 << 20, "413")):
        with tempfile.NamedTemporaryFile("w") as file:
            json.dump({"prompt": "a " * (size // 2)}, file)
            file.flush()
            _, body, status = curl.post("/v1/completions", "@" + file.name)
        check(status == expected and "error" in json.loads(body), f"{size} bytes: {expected}")


def check_rate(curl):
    # On a slow machine some come free meanwhile.
    for _ in range(10 * POSTS_A_MINUTE):
        _, answer, status = curl.run("/tokenize", "--include", "--header",
                                     "Content-Type: application/json", "--data", '{"prompt": "a"}')
        if status != "200":
            break
    check(status == "429" and "Retry-After: " in answer, "too many: 429 with Retry-After")


def check_reload(curl, folder):
    before = shutil.copy(curl.trusted, os.path.join(folder, "before.pem"))
    _, after = make_certificate(folder)
    old, new = Curl(curl.address, before), Curl(curl.address, after)
    check(new.run("/health")[0] == NOT_TRUSTED, "a new certificate waits to be read")
    _, _, status = old.run("/v1/expertflow/config", "--request", "PATCH", "--header",
                           "Content-Type: application/json", "--data",
                           json.dumps({"reload_certificate": True}), key=ADMIN)
    check(status == "200" and new.run("/health")[2] == "200" and
          old.run("/health")[0] == NOT_TRUSTED, "the certificate is read anew")


def main():
    program, model = sys.argv[1:]
    if shutil.which("curl") is None:
        pypi.skip("there is no curl program")
    with tempfile.TemporaryDirectory() as folder:
        keys, admins = os.path.join(folder, "keys"), os.path.join(folder, "admins")
        for path, key in ((keys, KEY), (admins, ADMIN)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(key + "\n")
        tls, trusted = make_certificate(folder)
        with Server(program, model, *tls, "--api-keys", keys, "--admin-keys", admins,
                    "--rate-limit", str(POSTS_A_MINUTE)) as server:
            curl = Curl(server.address, trusted)
            check_tls(curl)
            check_keys(curl)
            check_texts(curl)
            check_rate(curl)
            check_reload(curl, folder)


main()
