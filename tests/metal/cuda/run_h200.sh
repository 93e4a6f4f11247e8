#!/bin/bash
# run_h200.sh OUT_DIR: the Metal kernels on an NVIDIA H200, as text files in OUT_DIR.
# Needs nvcc, g++, compute-sanitizer, python3 with NumPy; no network. At most eight minutes on 16 cores, half of it
# to compile.
set -u
[ $# -eq 1 ] || { echo "usage: $0 OUT_DIR" >&2; exit 2; }
mkdir -p "$1" && out=$(cd "$1" && pwd) || exit 2
root=$(cd "$(dirname "$0")/../../.." && pwd)
export PYTHONPATH="$root:$root/tests" PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

{ date -u +%FT%TZ; nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; nvcc --version | tail -2; } > "$out/machine.txt"
status=0
for step in build table bandwidth memcheck racecheck; do
    begin=$SECONDS
    timeout $([ $step = build ] && echo 180 || echo 70) python3 -m metal.cuda.measure "$step" "$work" > "$out/$step.txt" 2>&1
    code=$?
    echo "$step: status $code, $((SECONDS - begin)) s" | tee -a "$out/summary.txt"
    [ $code -eq 0 ] || status=1
    [ $step != build ] || [ $code -eq 0 ] || break
done
exit $status
