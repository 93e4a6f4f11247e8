"""Every operation of the model and its drafter, every shape of their matrices, and every type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import metal_geometry
from ..gguf import TensorType
from ..kernels import LOGIT_ROWS
from ..plan import Value
from ..weights import AttentionMixer, DeltaMixer, Tensor
from .workbench import MAX_CONTEXT, Array, Operation, Workbench

EXACT = 0.0
ROUNDED = 1e-4  # another order of additions, another exponential
HALVES = 4e-3  # products of half precision: weights of a tile, keys and values
SELECTOR_RANK = 16
RANDOM_SHAPE = (192, 512)
WEIGHT_TYPES = [TensorType[name.upper()] for name in metal_geometry.TYPES]
Results = Sequence[Value | Array]


@dataclass(frozen=True)
class Case:
    """An operation, and by how much its results may differ, in units of their root mean square."""

    name: str
    tolerance: float
    operation: Operation


def all_cases(bench: Workbench) -> list[Case]:
    """The cases, small operations first."""
    found = [
        Case(f"embed_{bench.weights.embedding.type.name.lower()}", ROUNDED, _embed),
        Case("rmsnorm", ROUNDED, _rmsnorm),
        Case("gather", EXACT, _gather),
        Case("swiglu", ROUNDED, _swiglu),
        Case("gated_norm", ROUNDED, _gated_norm),
        Case("argmax", EXACT, _argmax),
        Case("rotary", HALVES, _rotary),
        Case("attention", HALVES, _attention),
        Case("conv", ROUNDED, _conv),
        Case("delta", ROUNDED, _delta),
        Case("conv of drafts", ROUNDED, _verifying(_conv)),
        Case("delta of drafts", ROUNDED, _verifying(_delta)),
        Case("tap", EXACT, _tap),
        Case("gather of features", EXACT, _gather_features),
        Case("rotary of a drafter", HALVES, _drafter_rotary),
        Case("rotary of its context", HALVES, _inject),
        Case("scatter_ids", EXACT, _scatter_ids),
        Case("block_conv", ROUNDED, _block_conv),
        Case("select_path_f32", EXACT, _select_path),
    ]
    for index in range(bench.drafter_config.num_layers):
        found.append(Case(f"attention of drafter layer {index}", HALVES, _drafter_attention(index)))
    seen = set()
    for index, matrix in enumerate(_matrices(bench)):
        name = f"linear_{matrix.type.name.lower()} {matrix.shape[0]}x{matrix.shape[1]}"
        if name not in seen:
            seen.add(name)
            found.append(Case(name, HALVES, _linear(index)))
    for weight_type in WEIGHT_TYPES:
        name = weight_type.name.lower()
        found.append(Case(f"embed_{name}, random", ROUNDED, _random_embed(weight_type)))
        found.append(Case(f"linear_{name}, random", HALVES, _random_linear(weight_type)))
    return found


def _matrices(b: Workbench) -> list[Tensor]:
    found = [b.weights.output, b.drafter.fusion]
    for layer in b.weights.layers:
        mixer = layer.mixer
        found += [layer.ffn_gate, layer.ffn_up, layer.ffn_down, mixer.output]
        if isinstance(mixer, AttentionMixer):
            found += [mixer.query, mixer.key, mixer.value]
        else:
            found += [mixer.qkv, mixer.gate, mixer.alpha, mixer.beta]
    for block in b.drafter.layers:
        heads = block.attention
        found += [heads.query, heads.key, heads.value, heads.output]
        found += [block.ffn_gate, block.ffn_up, block.ffn_down]
    return found


def _linear(index: int) -> Operation:
    def product_and_sum(b: Workbench) -> Results:
        matrix = _matrices(b)[index]
        x, total = b.value(matrix.shape[1]), b.value(matrix.shape[0])
        return b.kernels.linear(x, matrix), b.kernels.linear(x, matrix, add_to=total)

    return product_and_sum


def _random_embed(weight_type: TensorType) -> Operation:
    def embed(b: Workbench) -> Results:
        return (b.kernels.embed(b.matrix(weight_type, b.config.num_tokens, RANDOM_SHAPE[1])),)

    return embed


def _random_linear(weight_type: TensorType) -> Operation:
    def multiply(b: Workbench) -> Results:
        return (b.kernels.linear(b.value(RANDOM_SHAPE[1]), b.matrix(weight_type, *RANDOM_SHAPE)),)

    return multiply


# ---- the model ---------------------------------------------------------------------------------


def _attention_mixer(b: Workbench) -> AttentionMixer:
    return next(x.mixer for x in b.weights.layers if isinstance(x.mixer, AttentionMixer))


def _delta_mixer(b: Workbench) -> DeltaMixer:
    return next(x.mixer for x in b.weights.layers if isinstance(x.mixer, DeltaMixer))


def _embed(b: Workbench) -> Results:
    return (b.kernels.embed(b.weights.embedding),)


def _rmsnorm(b: Workbench) -> Results:
    return (b.kernels.rmsnorm(b.value(b.config.hidden_dim), b.weights.output_norm),)


def _gather(b: Workbench) -> Results:
    return (b.kernels.gather_logit_rows(b.value(b.config.hidden_dim)),)


def _swiglu(b: Workbench) -> Results:
    return (b.kernels.swiglu(b.value(b.config.ffn_dim), b.value(b.config.ffn_dim)),)


def _gated_norm(b: Workbench) -> Results:
    dim = b.config.num_value_heads * b.config.value_dim
    return (b.kernels.gated_norm(b.value(dim), b.value(dim), _delta_mixer(b).norm),)


def _argmax(b: Workbench) -> Results:
    b.kernels.argmax(b.logits.memory, b.config.num_vocab_rows, b.ids.memory)
    return (b.ids.view,)


def _rotary(b: Workbench) -> Results:
    c = b.config
    queries = b.value(2 * c.num_heads * c.head_dim)
    keys, values = (b.value(c.num_kv_heads * c.head_dim) for _ in range(2))
    mixer = _attention_mixer(b)
    q = b.kernels.rotary(queries, keys, values, mixer, b.rope, b.cache.layer)
    return q, b.cache.view


def _attention(b: Workbench) -> Results:
    num_lanes = b.config.num_heads * b.config.head_dim
    q, gates = b.value(num_lanes), b.value(2 * num_lanes)
    return (b.kernels.attention(q, gates, b.cache.layer),)


def _conv(b: Workbench) -> Results:
    y = b.kernels.conv(b.value(b.config.num_channels), _delta_mixer(b), b.delta_state)
    return y, b.tails.view, b.tape.view


def _delta(b: Workbench) -> Results:
    c = b.config
    qkv = b.value(c.num_channels, scale=0.9 * c.key_dim**-0.5)  # keys no longer than 1
    alpha, beta = (b.value(c.num_value_heads) for _ in range(2))
    o = b.kernels.delta(qkv, alpha, beta, _delta_mixer(b), b.delta_state)
    return o, b.states.view, b.tape.view


# ---- speculation -------------------------------------------------------------------------------


def _verifying(operation: Operation) -> Operation:
    def verify(b: Workbench) -> Results:
        b.verify_drafts()
        return operation(b)

    return verify


def _tap(b: Workbench) -> Results:
    num_taps = len(b.drafter_config.taps)
    b.kernels.tap(b.value(b.config.hidden_dim), b.features.memory, num_taps - 1, num_taps)
    return (b.features.view,)


def _gather_features(b: Workbench) -> Results:
    dim = b.features.view.shape[1]
    return (b.kernels.gather_features(b.features.memory, dim, b.target_rows.memory),)


def _drafter_rotary(b: Workbench) -> Results:
    d, mixer = b.drafter_config, b.drafter.layers[0].attention
    queries = b.value(d.num_heads * d.head_dim)
    keys, values = (b.value(d.num_kv_heads * d.head_dim) for _ in range(2))
    norms, layer = (mixer.query_norm, mixer.key_norm), b.drafter_cache.layer
    q = b.kernels.plain_rotary(b.drafter_heads, queries, keys, values, norms, b.drafter_rope, layer)
    return q, b.drafter_cache.view


def _inject(b: Workbench) -> Results:
    d, mixer = b.drafter_config, b.drafter.layers[0].attention
    keys, values = (b.value(d.num_kv_heads * d.head_dim) for _ in range(2))
    layer = b.drafter_cache.layer
    b.kernels.inject(b.drafter_heads, keys, values, mixer.key_norm, b.drafter_rope, layer)
    return (b.drafter_cache.view,)


def _drafter_attention(index: int) -> Operation:
    def attend(b: Workbench) -> Results:
        d = b.drafter_config
        q = b.value(d.num_heads * d.head_dim)
        window = min(d.windows[index], MAX_CONTEXT // 4)  # narrow enough to leave something out
        is_causal, layer = d.causal[index], b.drafter_cache.layer
        o = b.kernels.plain_attention(b.drafter_heads, q, layer, is_causal=is_causal, window=window)
        return (o,)

    return attend


def _scatter_ids(b: Workbench) -> Results:
    b.kernels.scatter_ids(b.ids.memory, b.target_rows.memory, b.target_ids.memory)
    return (b.target_ids.view,)


def _block_conv(b: Workbench) -> Results:
    dim = b.config.hidden_dim
    base = b.floats(b.small_numbers(2, 2, dim))
    x, taps, total = b.value(dim), b.value(4 * dim // 16), b.value(dim)
    y = b.kernels.block_conv(x, taps, base, side=0)
    return y, b.kernels.block_conv(x, taps, base, side=1, add_to=total)


def _select_path(b: Workbench) -> Results:
    b.draft_blocks()
    num_tokens = b.config.num_vocab_rows
    books = [b.floats(b.small_numbers(num_tokens, SELECTOR_RANK)) for _ in range(2)]
    h = b.value(SELECTOR_RANK, rows=LOGIT_ROWS)
    b.kernels.select_path(b.logits.memory, num_tokens, h, books[0], books[1], b.ids.memory)
    return (b.ids.view,)
