"""The network of a DFlash drafter, written once for every device: context, and blocks of drafts.

Norms are plain: w * x / rms(x). Context rows have no input norm, no residual and no MLP: they are
nothing but keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .drafter import DrafterConfig, DrafterWeights
from .kernels import AttentionCache, AttentionHeads, CpuKernels
from .plan import Memory
from .weights import AttentionMixer, Layer, Tensor


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
        mixer = _mixer(layer)
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
    """From blocks of ids, last known token and masks, to the likeliest token of each mask."""
    x = k.embed(embedding)
    for index, layer in enumerate(w.layers):
        mixer, cache = _mixer(layer), memory.caches[index]
        h = k.rmsnorm(x, layer.mixer_norm, eps=c.norm_eps)
        q, key, value = k.linear(h, mixer.query), k.linear(h, mixer.key), k.linear(h, mixer.value)
        norms = (mixer.query_norm, mixer.key_norm)
        q = k.plain_rotary(_heads(c), q, key, value, norms, memory.rope, cache)
        window, is_causal = c.windows[index], c.causal[index]
        o = k.plain_attention(_heads(c), q, cache, is_causal=is_causal, window=window)
        k.linear(o, mixer.output, add_to=x)
        h = k.rmsnorm(x, layer.ffn_norm, eps=c.norm_eps)
        gated = k.swiglu(k.linear(h, layer.ffn_gate), k.linear(h, layer.ffn_up))
        k.linear(gated, layer.ffn_down, add_to=x)
    last = k.rmsnorm(k.gather_logit_rows(x), w.output_norm, eps=c.norm_eps)
    k.linear(last, head, out=memory.logits)
    k.argmax(memory.logits, memory.argmax)
    k.scatter_ids(memory.argmax, memory.target_rows, memory.target_ids)


def _mixer(layer: Layer) -> AttentionMixer:
    if not isinstance(layer.mixer, AttentionMixer):
        raise TypeError(f"a drafter's layer with {type(layer.mixer).__name__}")
    return layer.mixer


def _heads(c: DrafterConfig) -> AttentionHeads:
    return AttentionHeads(c.num_heads, c.num_kv_heads, c.head_dim, c.head_dim, c.norm_eps)
