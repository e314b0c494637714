#!/usr/bin/env python3
"""What the scripts of launch/ promise without a build: command lines, refusals, exit codes."""

import os
import shlex
import signal
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


    def test_relative_paths_are_those_of_the_callers_folder(self):
        result = subprocess.run([os.path.join(ROOT, "launch", "mpmd"), "--dry-run", "--model", "m",
                                 "--job-dir", "j", "--", "--tokenizer", "t/tokenizer.json"],
                                text=True, capture_output=True, check=True, cwd="/usr")
        for context in contexts(result.stdout):
            for option, path in (("--model", "/usr/m"), ("--job-dir", "/usr/j"),
                                 ("--tokenizer", "/usr/t/tokenizer.json")):
                self.assertEqual(context[context.index(option) + 1], path)


# What mpmd and the batch script do with mpirun and Slurm, with stand-ins for both: these say how
# they were called.
FAKES = {
    "scontrol": """#!/bin/bash
[[ $1 == show && $2 == hostnames && $3 == 'node[1-2]' ]] && printf 'node1\\nnode2\\n'
""",
    "mpirun": """#!/bin/bash
printf '%q ' "$0" "$@" && echo
[[ -z ${WAIT_FOR_SIGNAL:-} ]] || {
  trap 'echo "got SIGTERM"; exit 3' TERM
  echo waiting
  for ((i = 0; i < 400; ++i)); do sleep 0.05; done
}
exit "${MPIRUN_CODE:-0}"
"""}


class EmulatedClusterTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for name, text in FAKES.items():
            path = os.path.join(self.folder.name, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(path, 0o755)
        self.environment = {"PATH": self.folder.name + ":" + os.environ["PATH"]}
        self.slurm = {**self.environment, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7",
                      "SLURM_SUBMIT_DIR": ROOT}
        self.options = ("--model", "/m", "--executable", "/bin/true")

    def test_the_batch_script_starts_a_store_and_workers_on_each_node(self):
        result = run("expertflow.sbatch", *self.options, "--workers", "2", **self.slurm)
        self.assertEqual(result.returncode, 0, result.stderr)
        line = result.stdout.replace("/bin/true", "/bin/expertflow")
        self.assertEqual([placement(c) for c in contexts(line)],
                         [("coordinator", "node1:1", "1"), ("store", "node1:1", "1"),
                          ("store", "node2:1", "1"), ("worker", "node1:2", "2"),
                          ("worker", "node2:2", "2")])
        self.assertIn("--job expertflow-7 ", line)

    def test_the_batch_script_says_what_is_missing(self):
        for words, change in (("not in a Slurm allocation", {"SLURM_JOB_NODELIST": ""}),
                              ("set EXPERTFLOW_ROOT", {"SLURM_SUBMIT_DIR": "/usr"})):
            result = run("expertflow.sbatch", *self.options, **{**self.slurm, **change})
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr)

    def test_slurm_signals_the_batch_script_itself(self):
        with open(os.path.join(ROOT, "launch", "expertflow.sbatch"), encoding="utf-8") as file:
            self.assertIn("#SBATCH --signal=B:TERM@", file.read())

    def test_the_exit_code_is_that_of_mpirun(self):
        result = run("mpmd", *self.options, MPIRUN_CODE="5", **self.environment)
        self.assertEqual(result.returncode, 5)

    def test_signals_end_mpirun_in_an_orderly_way(self):
        for script, environment in (("mpmd", self.environment), ("expertflow.sbatch", self.slurm)):
            for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
                with subprocess.Popen([os.path.join(ROOT, "launch", script), *self.options],
                                      text=True, stdout=subprocess.PIPE,
                                      env={**os.environ, **environment,
                                           "WAIT_FOR_SIGNAL": "1"}) as process:
                    for line in process.stdout:
                        if line == "waiting\n":
                            break
                    process.send_signal(number)
                    self.assertIn("got SIGTERM", process.stdout.read())
                    self.assertEqual(process.wait(), code)

    def test_mpirun_ends_when_the_script_is_killed(self):
        with subprocess.Popen([os.path.join(ROOT, "launch", "mpmd"), *self.options], text=True,
                              stdout=subprocess.PIPE, env={**os.environ, **self.environment,
                                                           "WAIT_FOR_SIGNAL": "1"}) as process:
            for line in process.stdout:
                if line == "waiting\n":
                    break
            process.kill()
            self.assertIn("got SIGTERM", process.stdout.read())


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
