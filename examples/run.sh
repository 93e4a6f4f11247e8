#!/bin/sh
# Builds the programs of this folder against the library installed under PREFIX, and runs them.
# A language whose compiler is not installed is skipped, and named. Usage: examples/run.sh PREFIX
set -eu
cd "$(dirname "$0")"
command -v pkg-config > /dev/null || { echo "examples: pkg-config is not installed" >&2; exit 1; }
export PKG_CONFIG_PATH="$1/lib/pkgconfig"
libdir=$(pkg-config --variable=libdir mtlq)
flags=$(pkg-config --cflags --libs mtlq)
rpath="-Wl,-rpath,$libdir"
out=$1/examples
mkdir -p "$out"

is_there() {
    command -v "$1" > /dev/null || { echo "examples/$2: skipped, $1 is not installed"; return 1; }
}

if is_there cc c; then
    cc -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror c/swapped_pages.c $flags "$rpath" -lm -o "$out/c"
    "$out/c"
fi
if is_there rustc rust; then
    rustc --edition 2021 -O -D warnings rust/swapped_pages.rs $(pkg-config --libs mtlq) \
        -C link-arg="$rpath" -o "$out/rust"
    "$out/rust"
fi
if is_there go go; then
    CGO_LDFLAGS="$rpath" go build -o "$out/go" go/swapped_pages.go
    "$out/go"
fi
