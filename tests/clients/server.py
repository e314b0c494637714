"""`expertflow serve` as a child of a test, and what its checks print."""

import os
import shutil
import signal
import subprocess
import tempfile

import pypi

READY_S = 60
END_S = 30


def check(condition, what):
    if not condition:
        raise SystemExit("failed: " + what)
    print("ok:", what)


class Server:
    """Takes requests from its making until the end of the `with`, which is SIGTERM."""

    def __init__(self, program, model, *options):
        # A short folder of its own: a socket's path has little room.
        self.folder = tempfile.TemporaryDirectory(prefix="efc-")
        self.process = subprocess.Popen(
            [program, "serve", "--model", model, "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "XDG_RUNTIME_DIR": self.folder.name})
        signal.alarm(READY_S)  # readline() has no time-out
        self.address = self.process.stdout.readline().split()[-1]
        ready = self.process.stdout.readline().strip() == "ready"
        signal.alarm(0)
        if not ready:
            self.close()
            raise SystemExit("the server did not get ready")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.close()

    def stop(self):
        try:
            self.process.send_signal(signal.SIGTERM)
            check(self.process.wait(timeout=END_S) == 0, "the server ends with 0")
        finally:
            self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()


def make_certificate(folder):
    """Options of a server with a certificate for 127.0.0.1, and the file that clients trust."""
    if shutil.which("openssl") is None:
        pypi.skip("there is no openssl program")
    certificate = os.path.join(folder, "certificate.pem")
    key = os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return ["--tls-cert", certificate, "--tls-key", key], certificate
