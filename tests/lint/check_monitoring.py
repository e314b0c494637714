#!/usr/bin/env python3
"""The dashboard and the alerts of launch/monitoring ask for metrics that there are.

usage: check_monitoring.py SOURCE_DIR

- the dashboard is JSON, its panels have titles of their own and at least one query each;
- every alert has an expression and a summary;
- every metric that they name stands in docs/metrics.md, a histogram's parts by its name.
"""

import json
import os
import re
import sys

METRIC = re.compile(r"\bexpertflow_[a-z0-9_]+")
DOCUMENTED = re.compile(r"^\| `(expertflow_[a-z0-9_]+)` \| (\w+) \|", re.MULTILINE)
ALERT = re.compile(r"- alert: (\w+)\n(.*?)(?=\n\s*- alert:|\Z)", re.DOTALL)
FOLDER = os.path.join("launch", "monitoring")


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def documented(source):
    names = set()
    for name, kind in DOCUMENTED.findall(read(source, "docs", "metrics.md")):
        names.add(name)
        if kind == "histogram":
            names.update(f"{name}_{part}" for part in ("bucket", "sum", "count"))
    return names


def check_dashboard(text, findings):
    titles = set()
    for panel in json.loads(text)["panels"]:
        title = panel["title"]
        if title in titles:
            findings.append(f"dashboard: the title {title} is there twice")
        titles.add(title)
        if not any(target["expr"] for target in panel["targets"]):
            findings.append(f"dashboard: {title} asks for nothing")
    return METRIC.findall(text)


def check_alerts(text, findings):
    alerts = ALERT.findall(text)
    if not alerts:
        findings.append("alerts: there are none")
    for name, body in alerts:
        for field in ("expr:", "summary:", "severity:"):
            if field not in body:
                findings.append(f"alerts: {name} has no {field}")
    return METRIC.findall(text)


def main():
    source = sys.argv[1]
    findings = []
    known = documented(source)
    asked = check_dashboard(read(source, FOLDER, "grafana-dashboard.json"), findings)
    asked += check_alerts(read(source, FOLDER, "alerts.yml"), findings)
    for name in sorted(set(asked) - known):
        findings.append(f"{FOLDER}: {name} is no metric of docs/metrics.md")
    for finding in findings:
        print(finding)
    sys.exit(1 if findings else 0)


main()
