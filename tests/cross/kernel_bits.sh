#!/bin/sh
# Every kernel gives the same bits on each instruction set of this machine and, under qemu, of arm64.
# Usage: tests/cross/kernel_bits.sh [PYTHON]
set -eu
cd "$(dirname "$0")/../.."
python=${1:-python3}
cross=aarch64-linux-gnu-gcc
flags="-std=c11 -O2 -Wall -Wextra -Werror"
out=build/kernel_bits
mkdir -p $out/x86_64 $out/arm64

isas=portable
grep -qw avx2 /proc/cpuinfo && isas="$isas avx2"
grep -qw avx512_vnni /proc/cpuinfo && isas="$isas avx512"

$python setup.py -q build_mtlq --output $out/x86_64/libmtlq.so.1
cc $flags tests/cross/kernel_bits.c $out/x86_64/libmtlq.so.1 -lm -o $out/x86_64/kernel_bits
LD_LIBRARY_PATH=$out/x86_64 $out/x86_64/kernel_bits $isas > $out/x86_64/bits

CC=$cross $python setup.py -q build_mtlq --object-dir build/arm64/objects --output $out/arm64/libmtlq.so.1
$cross $flags tests/cross/kernel_bits.c $out/arm64/libmtlq.so.1 -lm -o $out/arm64/kernel_bits
qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$out/arm64 \
    $out/arm64/kernel_bits portable neon > $out/arm64/bits

diff $out/x86_64/bits $out/arm64/bits
echo "kernel_bits: $(wc -l < $out/arm64/bits) cases are equal on x86-64 ($isas) and arm64 (portable neon)"
