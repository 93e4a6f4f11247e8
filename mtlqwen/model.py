"""The network: Qwen 3.5 dense, written once for every device.

Layers 3, 7, 11, ... mix tokens by gated full attention, the others by a gated delta rule. Norm
weights of a GGUF already hold the full factor (1 + w).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .kernels import CpuKernels
from .operands import AttentionCache, DeltaState
from .plan import Memory, Value
from .weights import AttentionMixer, DeltaMixer, Layer, Weights


@dataclass(frozen=True)
class ModelMemory:
    """What the network reads and writes beside activations."""

    rope: Memory  # f32 [max_context, rotary_dim]: cosines then sines
    layers: Sequence[AttentionCache | DeltaState]
    features: Memory | None  # f32 [pass_tokens, taps * hidden]: what a drafter sees of the layers
    logits: Memory  # f32 [max_logit_rows, num_vocab_rows]
    argmax: Memory  # i32 [max_logit_rows]


def forward(k: CpuKernels, w: Weights, memory: ModelMemory, taps: Sequence[int] = ()) -> None:
    """Logits of the batch's logit rows; for a drafter the states behind the layers `taps`, side by
    side, from the header's row of the features on.
    """
    x = k.embed(w.embedding)
    for index, (layer, state) in enumerate(zip(w.layers, memory.layers, strict=True)):
        mix(k, x, layer, state, memory.rope)
        feed_forward(k, x, layer)
        if index in taps and memory.features is not None:
            k.tap(x, memory.features, taps.index(index), len(taps))
    last = k.rmsnorm(k.gather_logit_rows(x), w.output_norm)
    k.linear(last, w.output, out=memory.logits)
    k.argmax(memory.logits, w.output.shape[0], memory.argmax)


def mix(
    k: CpuKernels, x: Value, layer: Layer, state: AttentionCache | DeltaState, rope: Memory
) -> None:
    """x += mixer(norm(x))"""
    h = k.rmsnorm(x, layer.mixer_norm)
    if isinstance(layer.mixer, AttentionMixer) and isinstance(state, AttentionCache):
        mixed = attention(k, h, layer.mixer, state, rope)
    elif isinstance(layer.mixer, DeltaMixer) and isinstance(state, DeltaState):
        mixed = delta_net(k, h, layer.mixer, state)
    else:
        raise TypeError(f"{type(layer.mixer).__name__} with {type(state).__name__}")
    k.linear(mixed, layer.mixer.output, add_to=x)


def attention(
    k: CpuKernels, h: Value, mixer: AttentionMixer, cache: AttentionCache, rope: Memory
) -> Value:
    qg = k.linear(h, mixer.query)
    key = k.linear(h, mixer.key)
    value = k.linear(h, mixer.value)
    q = k.rotary(qg, key, value, mixer, rope, cache)
    return k.attention(q, qg, cache)


def delta_net(k: CpuKernels, h: Value, mixer: DeltaMixer, state: DeltaState) -> Value:
    u = k.linear(h, mixer.qkv)
    z = k.linear(h, mixer.gate)
    a = k.linear(h, mixer.alpha)
    b = k.linear(h, mixer.beta)
    o = k.delta(k.conv(u, mixer, state), a, b, mixer, state)
    return k.gated_norm(o, z, mixer.norm)


def feed_forward(k: CpuKernels, x: Value, layer: Layer) -> None:
    """x += down(silu(gate(norm(x))) * up(norm(x)))"""
    h = k.rmsnorm(x, layer.ffn_norm)
    k.linear(
        k.swiglu(k.linear(h, layer.ffn_gate), k.linear(h, layer.ffn_up)), layer.ffn_down, add_to=x
    )
