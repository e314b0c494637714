#!/usr/bin/env python3
"""The server's page in headless Chromium.

    browser_page.py PROGRAM MODEL VENV PICTURES

Needs Chromium (Debian: chromium) and installs playwright from PyPI into VENV at the first run;
exits 77 (skipped) where they cannot be had. Looks at the page in both colour schemes, at 1280 and
400 pixels, while the server works, uses it by keyboard, and leaves pictures in PICTURES.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request

import pypi
from server import Server, check

PACKAGES = ["playwright>=1.49,<2"]
KEY = "key-of-a-friend"
BROWSERS = ["chromium", "chromium-browser", "google-chrome"]
WAIT_MS = 60_000
LOOK_MS = 100
WIDTHS = {"wide": 1280, "narrow": 400}


def ask(address, tokens):
    body = {"prompt": "The lighthouse keeper", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        address + "/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


class Load:
    """Requests one after the other, until the end of the `with`."""

    def __init__(self, address):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(address,))

    def run(self, address):
        while not self.ended.is_set():
            ask(address, 40)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


class Page:
    """A tab, with what it complains about."""

    def __init__(self, browser, address, scheme, width):
        self.tab = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.problems = []
        self.foreign = []
        self.expects_401 = True  # until the key is given
        self.tab.on("console", self.on_console)
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("request", lambda request: self.on_request(request, address))
        self.tab.goto(address)

    def on_console(self, message):
        if message.type not in ("error", "warning"):
            return
        if self.expects_401 and "401" in message.text:
            return
        self.problems.append(message.text)

    def on_request(self, request, address):
        if not request.url.startswith((address, "data:")):
            self.foreign.append(request.url)

    def text(self, selector):
        return self.tab.locator(selector).inner_text()

    def wait(self, condition):
        # wait_for_function() would need a policy that lets the page make code of text.
        for _ in range(WAIT_MS // LOOK_MS):
            if self.tab.evaluate(condition):
                return
            self.tab.wait_for_timeout(LOOK_MS)
        raise SystemExit("failed: waited for " + condition)


def give_key(page):
    page.wait("!document.getElementById('keyForm').hidden")
    page.tab.locator("#key").focus()
    page.tab.keyboard.type(KEY)
    page.tab.keyboard.press("Enter")
    page.wait("document.getElementById('state').textContent.includes('ready')")
    page.expects_401 = False


def check_figures(page):
    page.wait("document.querySelectorAll('#load dd').length >= 12")
    page.wait("parseFloat(document.querySelector('#load dd').textContent) > 0")
    page.wait("document.querySelectorAll('.worker').length === 2")
    for name in ("hit", "miss", "slots ready", "stride", "recall", "link used"):
        check(name in page.text("#workers"), f"a worker shows '{name}'")
    check("the job takes requests" in page.text("#events"), "events are listed")
    page.wait("document.getElementById('cell').textContent.includes('layers of')")


def check_heat(page):
    page.tab.locator("#heat").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.tab.keyboard.press(key)
    check(page.text("#cell").startswith("layer 1, expert 1: "), "arrow keys move in the heat map")
    for choice in ("states", "recent", "uses"):
        page.tab.locator("#heatWhat").select_option(choice)
    page.tab.locator("#heatWorker").select_option(index=1)
    coloured = page.tab.evaluate("""() => {
      const canvas = document.getElementById("heat");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const found = new Set();
      for (let i = 0; i < data.length; i += 4) found.add(data.slice(i, i + 3).join());
      return found.size;
    }""")
    check(coloured > 10, f"the heat map has {coloured} colours")


def check_chat(page):
    page.tab.locator("#question").focus()
    page.tab.keyboard.type("Hello!")
    page.tab.keyboard.press("Enter")
    page.wait("document.querySelector('#talk .assistant')?.textContent.length > 0")
    page.wait("!document.getElementById('send').hidden")
    check(page.tab.locator("#talk .bad").count() == 0, "a chat streams an answer")


def check_keyboard(page):
    """Everything that can be used is reached by Tab."""
    page.tab.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(20):
        page.tab.keyboard.press("Tab")
        reached.add(page.tab.evaluate("document.activeElement.id"))
    wanted = {"heat", "heatWorker", "heatWhat", "events", "talk", "question", "send", "forget"}
    check(wanted <= reached, "all is reached by the Tab key")


def look(browser, address, pictures):
    for scheme in ("light", "dark"):
        for name, width in WIDTHS.items():
            page = Page(browser, address, scheme, width)
            give_key(page)
            check_figures(page)
            check_heat(page)
            check_chat(page)
            check_keyboard(page)
            wide = page.tab.evaluate("document.documentElement.scrollWidth")
            check(wide <= width, f"{scheme}, {width} pixels: nothing sticks out")
            page.tab.wait_for_timeout(3000)  # some points for the curves
            page.tab.screenshot(path=os.path.join(pictures, f"page-{scheme}-{name}.png"),
                                full_page=True)
            check(page.problems == [], f"{scheme}, {width} pixels: no complaint {page.problems}")
            check(page.foreign == [], f"nothing is asked of others {page.foreign}")
            page.tab.close()


def run_checks(address, browser_program, pictures):
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_program,
                                             args=["--no-sandbox", "--disable-gpu"])
        with Load(address):
            look(browser, address, pictures)
        browser.close()


def main():
    if sys.argv[1] == "--checks":
        run_checks(*sys.argv[2:])
        return
    program, model, venv, pictures = sys.argv[1:]
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pypi.skip("there is no Chromium (Debian: apt-get install chromium)")
    python = pypi.install(venv, PACKAGES, ["playwright"])
    os.makedirs(pictures, exist_ok=True)
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write(KEY + "\n")
        keys.flush()
        with Server(program, model, "--workers", "2", "--expert-memory", "30%", "--link",
                    "2GB/s", "--api-keys", keys.name) as server:
            done = subprocess.run([python, os.path.abspath(__file__), "--checks", server.address,
                                   browser, pictures], check=False, timeout=240)
            check(done.returncode == 0, "the page in the browser")


main()
