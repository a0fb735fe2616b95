"""Reads the logs that are named and tells what came of it: the reading of `ddpdoctor diagnose-log` alone, for its benchmark."""

from __future__ import annotations

import sys

from ddpdoctor.checks.catalogue import catalogue
from ddpdoctor.logs.match.wanted_signs import vocabulary
from ddpdoctor.logs.reading import read_logs

if __name__ == "__main__":
    log = read_logs(sys.argv[1:], stdin=sys.stdin.buffer, vocabulary=vocabulary(catalogue()))
    print(sum(file.lines for file in log.files), len(log.sightings), len(log.raised))
