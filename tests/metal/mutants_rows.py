"""Faults planted in the kernels that work row by row."""

from __future__ import annotations

from .mutant import BARRIER, Mutant

MUTANTS = [
    # ---- barriers ----
    Mutant(
        "rmsnorm reads partial sums before they are written",
        "rmsnorm.metal",
        BARRIER,
        "",
        "rmsnorm",
        "tsan",
    ),
    Mutant(
        "argmax merges before its SIMD groups are done",
        "argmax.metal",
        "        partial[simdgroup] = best;\n" + BARRIER,
        "        partial[simdgroup] = best;\n",
        "argmax",
        "tsan",
    ),
    Mutant(
        "linear_mm overwrites a tile that others still read",
        "linear_mm.metal",
        "        Format::decode(w, k / 16 + half_step, decoded);\n    " + BARRIER,
        "        Format::decode(w, k / 16 + half_step, decoded);\n",
        "linear_mm q8_0",
        "tsan",
    ),
    Mutant(
        "linear_mm multiplies before the tiles are complete",
        "linear_mm.metal",
        "        }\n    " + BARRIER + "        UNROLL\n",
        "        }\n        UNROLL\n",
        "linear_mm q8_0",
        "tsan",
    ),
    Mutant(
        "linear_mm stores y over tiles that are still read",
        "linear_mm.metal",
        BARRIER + "    UNROLL\n    for (int t = 0; t < TOKENS / 8; ++t)\n        UNROLL",
        "    UNROLL\n    for (int t = 0; t < TOKENS / 8; ++t)\n        UNROLL",
        "linear_mm q8_0",
        "tsan",
    ),
    Mutant(
        "linear_mv of IQ4_XS uses the table before it is filled",
        "linear_mv.metal",
        "    " + BARRIER,
        "",
        "linear_mv iq4_xs",
        "tsan",
    ),
    # ---- threadgroups that write the same memory ----
    Mutant(
        "argmax writes the best of every block to one place",
        "argmax.metal",
        "best_of_block[group.y * num_groups.x + group.x] = all",
        "best_of_block[group.y * num_groups.x] = all",
        "argmax",
        "values",
    ),
    # ---- bounds ----
    Mutant(
        "swiglu runs one vector too far",
        "swiglu.metal",
        "position.x >= num_vectors",
        "position.x > num_vectors",
        "swiglu",
        "asan",
    ),
    Mutant(
        "gather ignores the number of rows",
        "gather.metal",
        "row >= header[args.rows] || ",
        "",
        "gather",
        "asan",
    ),
    Mutant(
        "embed decodes a chunk behind the row",
        "embed.metal",
        "chunk >= args.dim / 16",
        "chunk > args.dim / 16",
        "embed q4_k",
        "values",
    ),
    Mutant(
        "linear_mv does not clamp the last rows of W",
        "linear_mv.metal",
        "min(uint(r), args.out_dim - 1 - first_out) * uint(args.row_bytes)",
        "uint(r) * uint(args.row_bytes)",
        "linear_mv q4_0",
        "asan",
    ),
    Mutant(
        "linear_mm does not clamp the last rows of W",
        "linear_mm.metal",
        "min(first_out + row, args.out_dim - 1) * args.row_bytes",
        "(first_out + row) * args.row_bytes",
        "linear_mm q8_0",
        "asan",
    ),
    Mutant(
        "linear_mm reads rows of x that the step does not have",
        "linear_mm.metal",
        "first_token + token < num_tokens ? source[column] : float4(0.0f)",
        "source[column]",
        "linear_mm q8_0",
        "asan",
    ),
    Mutant(
        "linear_mm has threadgroup memory for weights and x of seven rows",
        "linear_mm.metal",
        "WEIGHT_FLOATS + TOKENS * TOKEN_STRIDE,",
        "WEIGHT_FLOATS + (TOKENS - 1) * TOKEN_STRIDE,",
        "linear_mm q8_0",
        "asan",
    ),
    # ---- alignment ----
    Mutant(
        "Q6_K is read in aligned words",
        "formats.h",
        "    device const ushort *halves = (device const ushort *)p;\n"
        "    return uint(halves[0]) | uint(halves[1]) << 16;",
        "    return *(device const uint *)p;",
        "linear_mv q6_k",
        "asan",
    ),
    # ---- strides and places ----
    Mutant(
        "linear_mv strides by the wrong row",
        "linear_mv.metal",
        "ulong(min(first_token + t, num_tokens - 1)) * args.in_dim",
        "ulong(min(first_token + t, num_tokens - 1)) * (args.in_dim - 64)",
        "linear_mv q6_k",
        "values",
    ),
    Mutant(
        "linear_mm swaps two columns of a tile",
        "linear_mm.metal",
        "column[8] = T(w[i].y);\n        column[16] = T(w[i].z);",
        "column[16] = T(w[i].y);\n        column[8] = T(w[i].z);",
        "linear_mm q8_0",
        "values",
    ),
    Mutant(
        "Q4_K mixes the scales of its upper sub-blocks",
        "formats.h",
        "first >> 2 & 0x30303030",
        "first >> 4 & 0x30303030",
        "linear_mv q4_k",
        "values",
    ),
    Mutant(
        "Q5_K takes the fifth bit of the neighbour",
        "units.h",
        "fifth << (4 - part)",
        "fifth << (3 - part)",
        "linear_mv q5_k",
        "values",
    ),
    Mutant(
        "gated_norm gives every head the weights of the first row",
        "gated_norm.metal",
        "(ulong(row) * args.num_heads + head) * num_vectors",
        "(ulong(row) * args.num_heads + row) * num_vectors",
        "gated_norm",
        "values",
    ),
]
