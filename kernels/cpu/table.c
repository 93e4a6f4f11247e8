/* table.c: the kernels of one instruction set, by the names and argument structs of args.h. */
#include <stddef.h>

#include "isa.h"

/* KERNEL(name, argument struct, number of bindings). */
#define WEIGHT_TYPES(KERNEL, kernel, args, num_bindings) \
    KERNEL(kernel##_f32, args, num_bindings)             \
    KERNEL(kernel##_f16, args, num_bindings)             \
    KERNEL(kernel##_bf16, args, num_bindings)            \
    KERNEL(kernel##_q8_0, args, num_bindings)            \
    KERNEL(kernel##_q4_0, args, num_bindings)            \
    KERNEL(kernel##_q4_1, args, num_bindings)            \
    KERNEL(kernel##_q5_0, args, num_bindings)            \
    KERNEL(kernel##_q5_1, args, num_bindings)            \
    KERNEL(kernel##_q2_k, args, num_bindings)            \
    KERNEL(kernel##_q3_k, args, num_bindings)            \
    KERNEL(kernel##_q4_k, args, num_bindings)            \
    KERNEL(kernel##_q5_k, args, num_bindings)            \
    KERNEL(kernel##_q6_k, args, num_bindings)            \
    KERNEL(kernel##_iq4_nl, args, num_bindings)          \
    KERNEL(kernel##_iq4_xs, args, num_bindings)          \
    KERNEL(kernel##_mxfp4, args, num_bindings)

#define KERNELS(KERNEL)                                   \
    WEIGHT_TYPES(KERNEL, embed, mtlq_embed_args, 4)       \
    WEIGHT_TYPES(KERNEL, linear, mtlq_linear_args, 4)     \
    KERNEL(quantize, mtlq_quantize_args, 3)               \
    KERNEL(rmsnorm, mtlq_rmsnorm_args, 4)                 \
    KERNEL(gather, mtlq_gather_args, 4)                   \
    KERNEL(swiglu, mtlq_swiglu_args, 4)                   \
    KERNEL(rotary, mtlq_rotary_args, 13)                  \
    KERNEL(attention, mtlq_attention_args, 10)            \
    KERNEL(conv, mtlq_conv_args, 12)                      \
    KERNEL(delta, mtlq_delta_args, 15)                    \
    KERNEL(delta_chunk, mtlq_delta_args, 15)              \
    KERNEL(gated_norm, mtlq_gated_norm_args, 5)           \
    KERNEL(argmax, mtlq_argmax_args, 3)                   \
    KERNEL(tap, mtlq_tap_args, 3)                         \
    KERNEL(scatter_ids, mtlq_scatter_ids_args, 4)         \
    KERNEL(block_conv, mtlq_block_conv_args, 6)           \
    KERNEL(select_path_f32, mtlq_select_path_args, 9)     \
    KERNEL(select_path_f16, mtlq_select_path_args, 9)     \
    KERNEL(select_path_bf16, mtlq_select_path_args, 9)

#define DECLARE(kernel, args, num_bindings) void MTLQ_NAME(kernel)(const mtlq_call *call);
#define RECORD(kernel, args, num_bindings) {#kernel, num_bindings, sizeof(args), MTLQ_NAME(kernel)},

KERNELS(DECLARE)

const mtlq_kernel MTLQ_NAME(mtlq_kernels)[] = {KERNELS(RECORD){NULL, 0, 0, NULL}};
