"""Faults planted in our own kernels, each of which a check must catch.

A mutant replaces `old`, which must occur exactly once in `file`, by `new`. `caught_by` names what
must see it: "values" (wrong or unwritten output in a plain run), "tsan", "asan", or "error" (the
emulator's own report).
"""

from __future__ import annotations

from dataclasses import dataclass

BARRIER = "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    case: str  # key of small_cases(), with a word to pick some of them: "linear_mm q8_0"
    caught_by: str


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
    Mutant(
        "attention_decode overwrites weights that are still read",
        "attention_decode.metal",
        "    " + BARRIER + "    }\n\n    device float4 *partial",
        "    }\n\n    device float4 *partial",
        "attention",
        "tsan",
    ),
    Mutant(
        "attention_decode makes values before the corrections are known",
        "attention_decode.metal",
        "    " + BARRIER + "\n        device const half *v",
        "\n        device const half *v",
        "attention",
        "tsan",
    ),
    Mutant(
        "attention_prefill takes maxima of scores before all are made",
        "attention_prefill.metal",
        "                    scores + 16 * simdgroup);\n    " + BARRIER,
        "                    scores + 16 * simdgroup);\n",
        "attention",
        "tsan",
    ),
    Mutant(
        "attention_prefill starts a step while values of the last are made",
        "attention_prefill.metal",
        "num_positions - first), lane);\n    " + BARRIER,
        "num_positions - first), lane);\n",
        "attention",
        "tsan",
    ),
    Mutant(
        "delta_chunk inverts tiles that are not complete",
        "delta_chunk.metal",
        "    " + BARRIER + "        for (uint i = simdgroup; i < TILES;",
        "        for (uint i = simdgroup; i < TILES;",
        "delta",
        "tsan",
    ),
    Mutant(
        "delta_chunk starts a chunk while the last is still read",
        "delta_chunk.metal",
        "        update_state(rows, gates, state, n, lane);\n    " + BARRIER,
        "        update_state(rows, gates, state, n, lane);\n",
        "delta",
        "tsan",
    ),
    Mutant(
        "delta_chunk has a barrier that one SIMD group misses",
        "delta_chunk.metal",
        "? sigmoid(b[gate]) : 0.0f;\n        }\n    " + BARRIER,
        "? sigmoid(b[gate]) : 0.0f;\n        " + BARRIER + "        }\n",
        "delta",
        "error",
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
        "min(first_out + r, args.out_dim - 1) * args.row_bytes",
        "(first_out + r) * args.row_bytes",
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
    Mutant(
        "attention_decode reads V behind the last position",
        "attention_decode.metal",
        "for (; place + 4 <= count; place += 4)",
        "for (; place < count; place += 4)",
        "attention",
        "values",
    ),
    Mutant(
        "attention_prefill reads V behind the last position",
        "attention_prefill.metal",
        "if (p + 8 <= num_valid)",
        "if (true)",
        "attention",
        "values",
    ),
    Mutant(
        "delta_chunk reads k and v of the next sequence",
        "matrix.h",
        "is_row = row < num_rows;\n    m.thread_elements()[0] = is_row ? p[0] : 0.0f;",
        "is_row = true;\n    m.thread_elements()[0] = is_row ? p[0] : 0.0f;",
        "delta",
        "asan",
    ),
    Mutant(
        "delta_chunk writes rows of the next sequence",
        "delta_chunk.metal",
        "if (matrix_row(lane) < num_rows) {",
        "if (true) {",
        "delta",
        "asan",
    ),
    Mutant(
        "conv takes the tail of a fresh sequence",
        "conv.metal",
        "else if (batched_kv_valid[sequence] > 0)",
        "else",
        "conv",
        "values",
    ),
    Mutant(
        "delta takes the state of a fresh sequence",
        "delta.metal",
        "is_fresh ? float4(0.0f) : ",
        "",
        "delta",
        "values",
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
        "(rest & 0x0F0F) | (s >> 2 & 0x3030)",
        "(rest & 0x0F0F) | (s >> 4 & 0x3030)",
        "linear_mv q4_k",
        "values",
    ),
    Mutant(
        "Q5_K takes the fifth bit of the neighbour",
        "units.h",
        ">> unit % 8 / 2 * 2;",
        ">> unit % 8 / 2;",
        "linear_mv q5_k",
        "values",
    ),
    Mutant(
        "rotary appends keys as if positions were outermost",
        "rotary.metal",
        "k_cache[tile + (ulong(head) * dim + i) * block + place]",
        "k_cache[tile + (ulong(head) * block + place) * dim + i]",
        "rotary",
        "values",
    ),
    Mutant(
        "rotary turns the other way",
        "rotary.metal",
        "(is_first ? -partner : partner)",
        "(is_first ? partner : -partner)",
        "rotary",
        "values",
    ),
    Mutant(
        "attention_prefill lets a row see its successor",
        "attention_prefill.metal",
        "limit[r] = kv_valid + pair / group_size + 1",
        "limit[r] = kv_valid + pair / group_size + 2",
        "attention",
        "values",
    ),
    Mutant(
        "attention_merge forgets that splits have different maxima",
        "attention_decode.metal",
        "const float weight = exp(largest_and_sum[i].x - largest);",
        "const float weight = 1.0f;",
        "attention",
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
    Mutant(
        "conv writes the tail to the bank it reads",
        "conv.metal",
        "bank_offset(1 - current, slot",
        "bank_offset(current, slot",
        "conv",
        "values",
    ),
    Mutant(
        "delta leaves out a part of the sum over keys",
        "delta.metal",
        "return value + simd_shuffle_xor(value, 16);",
        "return value;",
        "delta",
        "values",
    ),
    Mutant(
        "delta_chunk forgets the last factor of an inverse",
        "delta_chunk.metal",
        "for (int i = 0; i < 2; ++i) {",
        "for (int i = 0; i < 1; ++i) {",
        "delta",
        "values",
    ),
]
