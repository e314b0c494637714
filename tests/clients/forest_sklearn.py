#!/usr/bin/env python3
"""Our random forest against scikit-learn's, with the same settings on the same rows.

usage: forest_sklearn.py PROGRAM VENV

Two problems, one smooth and one of steps. The forests are random, so they are not equal; but the
share of the variance that they explain on rows that neither saw must be as good, and their
predictions must agree with each other better than with the noisy truth.
Exit code 77 when scikit-learn cannot be had: the test is shown as skipped.
"""

import os
import subprocess
import sys

import pypi

PACKAGES = ["scikit-learn>=1.3,<2"]
ROWS = 6000
UNSEEN = 2000
EXPLAINED_LESS_MAX = 0.015


def problems(numpy):
    random = numpy.random.default_rng(7)
    x = random.random((ROWS + UNSEEN, 10)).astype(numpy.float32)
    noise = random.normal(size=len(x))
    smooth = (10 * numpy.sin(numpy.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 +
              10 * x[:, 3] + 5 * x[:, 4] + noise)
    steps = 3.0 * (x[:, 0] > 0.3) + 2.0 * (x[:, 1] + x[:, 2] > 1) * (x[:, 3] > 0.5) + 0.3 * noise
    return {"smooth": (x, smooth), "steps": (x, steps)}


def ours(numpy, program, x, y):
    rows = numpy.column_stack([x, y])
    rows[ROWS:, -1] = 0
    text = f"{x.shape[1]} {ROWS} {UNSEEN}\n" + "\n".join(
        " ".join(f"{value:.9g}" for value in row) for row in rows)
    found = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return numpy.array([float(line) for line in found.stdout.split()])


def compare(program):
    import numpy
    from sklearn.ensemble import RandomForestRegressor
    failed = False
    for name, (x, y) in problems(numpy).items():
        theirs = RandomForestRegressor(n_estimators=60, max_depth=8, min_samples_leaf=5,
                                       max_features=4, bootstrap=True, max_samples=0.6,
                                       random_state=1, n_jobs=2)
        theirs.fit(x[:ROWS], y[:ROWS])
        unseen = y[ROWS:]
        predicted = {"ours": ours(numpy, program, x, y), "scikit-learn": theirs.predict(x[ROWS:])}
        explained = {who: 1 - ((p - unseen) ** 2).mean() / unseen.var()
                     for who, p in predicted.items()}
        apart = ((predicted["ours"] - predicted["scikit-learn"]) ** 2).mean()
        error = ((predicted["scikit-learn"] - unseen) ** 2).mean()
        good = (explained["ours"] > explained["scikit-learn"] - EXPLAINED_LESS_MAX and
                apart < error / 2)
        print(f"{name}: explained on unseen rows {explained['ours']:.4f}, scikit-learn "
              f"{explained['scikit-learn']:.4f}; mean square apart {apart:.4f}, of the error "
              f"{error:.4f}: {'ok' if good else 'NOT AS GOOD'}")
        failed = failed or not good
    return 1 if failed else 0


def main():
    if os.environ.get("FOREST_IN_VENV"):
        sys.exit(compare(sys.argv[1]))
    python = pypi.install(sys.argv[2], PACKAGES, ["sklearn"])
    environment = {**os.environ, "FOREST_IN_VENV": "1"}
    sys.exit(subprocess.run([python, *sys.argv], env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
