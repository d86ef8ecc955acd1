#!/bin/sh
# Does autolayers' model still hold for the newest llama.cpp? Fetches that build's source from PyPI, builds what
# measures, records every 10th launch of the fixtures and compares it with what autolayers predicts for that build; the
# last line says it. Ten minutes on two cores.
#
#     tests/follow.sh [BUILD] [options of fixtures/record.py]
set -eu
build=newest
case ${1:-} in [0-9]*) build=$1; shift;; esac
exec "${PYTHON:-python3}" "$(dirname "$0")/../fixtures/record.py" --build "$build" --predict --every 10 "$@"
