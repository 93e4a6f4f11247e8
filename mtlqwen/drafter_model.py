"""The network of a DFlash drafter, written once for every device: context, and blocks of drafts.

Norms are plain: w * x / rms(x). Context rows have no input norm, no residual and no MLP: they are
nothing but keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .drafter import BlockConv, DrafterConfig, DrafterWeights
from .kernels import CpuKernels
from .operands import AttentionCache, AttentionHeads
from .plan import Memory, Value
from .weights import Tensor

_Taps = tuple[Value, Tensor]  # of a convolution: what each row adds, and to what


@dataclass(frozen=True)
class DrafterMemory:
    """What the drafter reads and writes beside activations."""

    rope: Memory  # f32 [max_context, head_dim]: cosines then sines
    caches: Sequence[AttentionCache]
    features: Memory  # f32 [.., taps * hidden]: what the target left
    feature_rows: Memory  # i32 [R]: where the features of each row to inject lie
    logits: Memory  # f32 [max_logit_rows, num_vocab_rows]
    argmax: Memory  # i32 [max_logit_rows]
    target_rows: Memory  # i32 [max_logit_rows]: where each draft goes in target_ids
    target_ids: Memory  # i32: the input ids of the target's step


def inject_context(
    k: CpuKernels, w: DrafterWeights, c: DrafterConfig, memory: DrafterMemory
) -> None:
    """Keys and values of each layer at the positions of a batch of features."""
    dim = len(c.taps) * c.hidden_dim
    features = k.gather_features(memory.features, dim, memory.feature_rows)
    f = k.rmsnorm(k.linear(features, w.fusion), w.fusion_norm, eps=c.norm_eps)
    for layer, cache in zip(w.layers, memory.caches, strict=True):
        mixer = layer.attention
        key, value = k.linear(f, mixer.key), k.linear(f, mixer.value)
        k.inject(_heads(c), key, value, mixer.key_norm, memory.rope, cache)


def draft_blocks(
    k: CpuKernels,
    w: DrafterWeights,
    c: DrafterConfig,
    embedding: Tensor,
    head: Tensor,
    memory: DrafterMemory,
) -> None:
    """From blocks of ids, last known token and masks, to the likeliest token of each mask, or with
    a selector to those that fit best behind each other.

    head: the target's, or its first rows: then only those tokens are drafted.
    """
    x = k.embed(embedding)
    for index, layer in enumerate(w.layers):
        mixer, cache = layer.attention, memory.caches[index]
        h = k.rmsnorm(x, layer.attention_norm, eps=c.norm_eps)
        h, taps = _convolve(k, h, layer.attention_conv)
        q, key, value = k.linear(h, mixer.query), k.linear(h, mixer.key), k.linear(h, mixer.value)
        norms = (mixer.query_norm, mixer.key_norm)
        q = k.plain_rotary(_heads(c), q, key, value, norms, memory.rope, cache)
        window, is_causal = c.windows[index], c.causal[index]
        o = k.plain_attention(_heads(c), q, cache, is_causal=is_causal, window=window)
        _add(k, x, o, mixer.output, taps)
        h = k.rmsnorm(x, layer.ffn_norm, eps=c.norm_eps)
        h, taps = _convolve(k, h, layer.ffn_conv)
        gated = k.swiglu(k.linear(h, layer.ffn_gate), k.linear(h, layer.ffn_up))
        _add(k, x, gated, layer.ffn_down, taps)
    last = k.rmsnorm(k.gather_logit_rows(x), w.output_norm, eps=c.norm_eps)
    k.linear(last, head, out=memory.logits)
    if w.selector is None:
        k.argmax(memory.logits, head.shape[0], memory.argmax)
    else:
        h, books = k.linear(last, w.selector.hidden), (w.selector.predecessor, w.selector.successor)
        k.select_path(memory.logits, head.shape[0], h, *books, memory.argmax)
    k.scatter_ids(memory.argmax, memory.target_rows, memory.target_ids)


def _convolve(k: CpuKernels, h: Value, conv: BlockConv | None) -> tuple[Value, _Taps | None]:
    """What a sublayer reads, and the taps on both its sides."""
    if conv is None:
        return h, None
    taps = k.linear(h, conv.projection), conv.base
    return k.block_conv(h, *taps, side=0), taps


def _add(k: CpuKernels, x: Value, y: Value, output: Tensor, taps: _Taps | None) -> None:
    """x += what a sublayer gives: y times `output`, convolved."""
    if taps is None:
        k.linear(y, output, add_to=x)
    else:
        k.block_conv(k.linear(y, output), *taps, side=1, add_to=x)


def _heads(c: DrafterConfig) -> AttentionHeads:
    return AttentionHeads(c.num_heads, c.num_kv_heads, c.head_dim, c.head_dim, c.norm_eps)
