"""Which files of the source tree are ours, shared by the lint scripts."""

import os

CODE_FOLDERS = ("common", "device", "transport", "model", "predictor", "expert_store", "worker",
                "coordinator", "serving", "sim", "launch", "bench", "tests")
# Folders whose files may include anything of ours and belong to no library.
OPEN_FOLDERS = ("bench", "tests")
CODE_ENDINGS = (".h", ".cpp", ".cu", ".cuh")
SKIPPED_TEST = 77


def walk(root, folders):
    """Paths relative to `root`, sorted, hidden folders and build/ left out."""
    found = []
    for folder in folders:
        for where, subfolders, files in os.walk(os.path.join(root, folder)):
            subfolders[:] = [name for name in subfolders
                             if name not in ("build", "__pycache__") and not name.startswith(".")]
            found += [os.path.relpath(os.path.join(where, name), root) for name in files]
    return sorted(found)


def code_files(root):
    return [path for path in walk(root, CODE_FOLDERS) if path.endswith(CODE_ENDINGS)]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def report(problems):
    """Prints the findings; returns the exit status."""
    for problem in problems:
        print(problem)
    return 1 if problems else 0
