#!/usr/bin/env python3
"""What the scripts of launch/ promise without a build: command lines, refusals, exit codes."""

import os
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(script, *arguments, **environment):
    return subprocess.run([os.path.join(ROOT, "launch", script), *arguments], text=True,
                          capture_output=True, check=False, cwd="/", stdin=subprocess.DEVNULL,
                          env={**os.environ, **environment})


def contexts(command_line):
    """The words of each MPMD context of a printed mpirun line."""
    found = [[]]
    for word in shlex.split(command_line):
        if word == ":":
            found.append([])
        else:
            found[-1].append(word)
    return found


def placement(context):
    """(role, host:slots, processes) of a context."""
    executable = next(i for i, word in enumerate(context) if word.endswith("/expertflow"))
    host = context[context.index("-H") + 1]
    return context[executable + 1], host, context[context.index("-n") + 1]


class MpmdTest(unittest.TestCase):
    def dry_run(self, *arguments, **environment):
        result = run("mpmd", "--dry-run", "--model", "/some model", *arguments, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return contexts(result.stdout)

    def assert_refused(self, words, *arguments):
        result = run("mpmd", *arguments)
        self.assertEqual(result.returncode, 2)
        self.assertIn(words, result.stderr)

    def test_one_host_by_default(self):
        self.assertEqual([placement(c) for c in self.dry_run("--workers", "2")],
                         [("coordinator", "localhost:1", "1"), ("store", "localhost:1", "1"),
                          ("worker", "localhost:2", "2")])

    def test_a_store_and_workers_on_each_host(self):
        self.assertEqual([placement(c) for c in self.dry_run("--hosts", "a,b", "--workers", "3")],
                         [("coordinator", "a:1", "1"), ("store", "a:1", "1"), ("store", "b:1", "1"),
                          ("worker", "a:3", "3"), ("worker", "b:3", "3")])

    def test_slots_of_a_hostfile_are_workers(self):
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
            file.write("# two hosts\n\na slots=2 max_slots=9\nb")
            file.flush()
            placed = [placement(c) for c in self.dry_run("--hostfile", file.name)]
        self.assertEqual(placed[3:], [("worker", "a:2", "2"), ("worker", "b:1", "1")])

    def test_the_death_of_a_process_is_survived(self):
        self.assertIn("--enable-recovery", self.dry_run()[0])

    def test_every_process_gets_the_environment_and_the_options(self):
        for context in self.dry_run("--", "--expert-memory", "30%", UCX_TLS="tcp,self"):
            self.assertIn("UCX_TLS", context)
            self.assertIn("UCX_TCP_TX_SEG_SIZE", context)
            self.assertEqual(context[-2:], ["--expert-memory", "30%"])
            self.assertEqual(context[context.index("--model") + 1], "/some model")

    def test_options_of_one_role_stay_there(self):
        for context in self.dry_run("--worker", "--threads", "--worker", "2"):
            self.assertEqual("--threads" in context, placement(context)[0] == "worker")

    def test_bad_options_are_refused(self):
        self.assert_refused("--model is needed")
        self.assert_refused("unknown option --wrokers", "--wrokers", "2")
        self.assert_refused("--workers 0", "--model", "m", "--workers", "0")
        self.assert_refused("/no/such", "--model", "m", "--hostfile", "/no/such")
        self.assert_refused("not a host name", "--model", "m", "--hosts", "a;b")
        self.assert_refused("not both", "--model", "m", "--hosts", "a", "--hostfile", "/dev/null")
        self.assert_refused("names no host", "--model", "m", "--hostfile", "/dev/null")


class SetUpTest(unittest.TestCase):
    def test_help_builds_nothing(self):
        for script in ("quickstart", "test", "install-dependencies", "mpmd"):
            result = run(script, "--help")
            self.assertEqual(result.returncode, 0, script)
            self.assertTrue(result.stdout.startswith(f"usage: launch/{script}"), result.stdout)

    def test_unknown_option_of_install_is_refused(self):
        result = run("install-dependencies", "--with-everything")
        self.assertEqual(result.returncode, 1)
        self.assertIn("unknown option --with-everything", result.stderr)

    def test_other_distributions_are_told_what_to_install(self):
        with tempfile.TemporaryDirectory() as empty:
            bash = "/bin/bash"
            script = os.path.join(ROOT, "launch", "install-dependencies")
            result = subprocess.run([bash, script], text=True, capture_output=True, check=False,
                                    env={"PATH": empty})
        self.assertEqual(result.returncode, 1)
        self.assertIn("libucx-dev", result.stderr)
        self.assertIn("--no-install", result.stderr)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()
