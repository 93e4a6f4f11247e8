#!/bin/sh
# Builds libmtlq for arm64 with Debian's cross compiler and runs C programs against it under qemu.
# Usage: tests/cross/run_arm64.sh [PYTHON]
set -eu
cd "$(dirname "$0")/../.."
python=${1:-python3}
cross=aarch64-linux-gnu-gcc
out=build/arm64
flags="-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -pthread"

mkdir -p $out
CC=$cross $python setup.py -q build_mtlq --object-dir $out/objects --output $out/libmtlq.so
ln -sf libmtlq.so $out/libmtlq.so.1
$cross $flags tests/cross/smoke.c -L$out -lmtlq -lm -o $out/smoke
$cross $flags tests/shim/shim_test.c shim/*.c shim/cpu/*.c -lm -o $out/shim_test

emulate() {
    qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$out "$@"
}
emulate $out/smoke portable neon
emulate $out/shim_test 3 5

# A processor without sdot runs the portable kernels and refuses the others.
emulate -cpu cortex-a57 $out/smoke portable
if emulate -cpu cortex-a57 $out/smoke neon 2> $out/refusal; then
    echo "arm64: neon runs where sdot is missing" >&2
    exit 1
fi
grep -q "this machine runs portable" $out/refusal
echo "arm64: passed"
