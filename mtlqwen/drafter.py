"""DFlash drafters: attention layers that guess a block of tokens from states of the target.

Each committed position of the target leaves the states behind some of its blocks (taps). Fused to
one feature, they become keys and values of every drafter layer at that position: the context. A
draft is one pass over the last known token and masks behind it; each row guesses the token at its
own position. Embedding and head are the target's.

DFlash 2 adds convolutions over a row of the block and the one before it, around each sublayer, and
a selector: of the likeliest tokens of a row it takes the one that fits best behind the token chosen
for the row before. Tensors and keys of both versions are named as in llama.cpp's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from .config import Keys, ModelConfig, is_always_f32
from .device import Device
from .errors import ModelError
from .gguf import GGUF, TensorType
from .gguf_header import StringArray
from .kernels import FLOAT_TYPES, LANES, SELECT_TOP
from .weights import AttentionMixer, MappedTensors, Tensor

MAX_LAYERS = 64
MAX_BLOCK = 64  # rows, which every slot has room for
BLOCK_TAPS = 2  # of a DFlash 2 convolution: a row and the one before it
CODEBOOKS = ("selector_predecessor.weight", "selector_successor.weight")
ABSENT = {  # values of keys as if they were not there, the only ones the network is written for
    "embedding_scale": 1.0,
    "logit_scale": 1.0,
    "final_logit_softcapping": 0.0,
    "rope.scaling.type": "none",
}
VERSION_2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True)
class DrafterConfig:
    """The shape of a DFlash drafter."""

    hidden_dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    num_vocab_rows: int  # of the target's table
    block_size: int  # rows of the block it was trained on
    mask_id: int
    taps: tuple[int, ...]  # blocks of the target whose output it sees, from 0
    windows: tuple[int, ...]  # of each layer, in positions; 0: none
    causal: tuple[bool, ...]  # whether a layer's rows see no row behind them in the block
    conv_group: int = 0  # channels that share what a row adds to its taps; 0: version 1
    selector_rank: int = 0  # columns of the codebooks; 0: version 1

    @classmethod
    def from_gguf(cls, gguf: GGUF) -> DrafterConfig:
        """Reads and checks the config and every tensor. ModelError names what is wrong."""
        if gguf.architecture != "dflash":
            raise ModelError(
                f"{gguf.path} is no DFlash drafter: its architecture is {gguf.architecture!r}"
            )
        keys = Keys(gguf, "dflash")
        num_layers = keys.integer("block_count", high=MAX_LAYERS)
        head_dim = keys.integer("attention.key_length")
        whole_head = {"attention.value_length": head_dim, "rope.dimension_count": head_dim}
        for key, expected in (ABSENT | whole_head).items():
            value = keys.raw(key, expected)
            if type(value) is not type(expected) or value != expected:
                raise keys.error(key, f"{value!r}, not {expected!r}, the only one supported")
        num_heads = keys.integer("attention.head_count")
        num_kv_heads = keys.integer("attention.head_count_kv")
        if num_heads % num_kv_heads:
            raise keys.error(
                "attention.head_count_kv", f"{num_kv_heads}, no divisor of {num_heads}"
            )
        sliding = _sliding_layers(keys, num_layers)
        window = keys.integer("attention.sliding_window", high=1 << 31) if any(sliding) else 0
        causal = gguf.metadata.get("dflash.attention.causal")
        hidden_dim = keys.integer("embedding_length")
        conv_group, selector_rank = _version_2(gguf, keys, hidden_dim)
        config = cls(
            hidden_dim=hidden_dim,
            ffn_dim=keys.integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope_theta=keys.number("rope.freq_base"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            num_vocab_rows=_num_vocab_rows(gguf),
            block_size=keys.integer("block_size", low=2, high=MAX_BLOCK),
            mask_id=_mask_id(gguf),
            taps=_taps(keys),
            windows=tuple(window if slides else 0 for slides in sliding),
            causal=tuple(slides if causal is None else bool(causal) for slides in sliding),
            conv_group=conv_group,
            selector_rank=selector_rank,
        )
        _check_tensors(gguf, config)
        return config

    def check_target(self, target: ModelConfig) -> None:
        """Raises ModelError with the reason if this is not a drafter for `target`."""
        problem = ""
        if self.hidden_dim != target.hidden_dim:
            problem = f"its states are {self.hidden_dim} wide, the model's {target.hidden_dim}"
        elif self.num_vocab_rows and self.num_vocab_rows != target.num_vocab_rows:
            problem = (
                f"it was made for {self.num_vocab_rows} tokens, the model has"
                f" {target.num_vocab_rows}"
            )
        elif self.taps[-1] >= target.num_layers:
            problem = (
                f"it wants the output of block {self.taps[-1]}, the model's last is"
                f" {target.num_layers - 1}"
            )
        elif self.mask_id >= target.num_vocab_rows:
            problem = f"its mask is token {self.mask_id} of {target.num_vocab_rows}"
        if problem:
            raise ModelError(f"the drafter does not belong to {target.name!r}: {problem}")


@dataclass(frozen=True)
class BlockConv:
    """The convolutions before and behind a sublayer: `side` 0 and 1, `tap` 0 for the row itself."""

    base: Tensor  # [side, tap, hidden]
    projection: Tensor  # [side * tap * groups, hidden]: what a row adds to the taps of its groups


@dataclass(frozen=True)
class DrafterLayer:
    attention_norm: Tensor
    attention: AttentionMixer
    attention_conv: BlockConv | None
    ffn_norm: Tensor
    ffn_gate: Tensor  # [ffn, hidden]
    ffn_up: Tensor  # [ffn, hidden]
    ffn_down: Tensor  # [hidden, ffn]
    ffn_conv: BlockConv | None


@dataclass(frozen=True)
class Selector:
    """How well token b fits behind token p: sum(predecessor[p] * (hidden h) * successor[b])."""

    hidden: Tensor  # [rank, hidden]
    predecessor: Tensor  # [num_vocab_rows, rank]
    successor: Tensor  # [num_vocab_rows, rank]


class DrafterWeights:
    """All tensors of a drafter, where its mapped file has them."""

    def __init__(self, device: Device, gguf: GGUF, config: DrafterConfig):
        self._tensors = MappedTensors(device, gguf)
        self.fusion = self._tensors["fc.weight"]  # [hidden, taps * hidden]
        self.fusion_norm = self._tensors["enc.output_norm.weight"]
        self.layers = [self._layer(index, config) for index in range(config.num_layers)]
        self.output_norm = self._tensors["output_norm.weight"]
        self.selector: Selector | None = None
        if config.selector_rank:
            self.selector = Selector(
                hidden=self._tensors["selector_hidden.weight"],
                predecessor=self._tensors["selector_predecessor.weight"],
                successor=self._tensors["selector_successor.weight"],
            )

    def close(self) -> None:
        self._tensors.close()

    def _layer(self, index: int, config: DrafterConfig) -> DrafterLayer:
        def get(name: str) -> Tensor:
            return self._tensors[f"blk.{index}.{name}"]

        def conv(sublayer: str) -> BlockConv | None:
            if not config.conv_group:
                return None
            return BlockConv(get(f"{sublayer}_conv_base"), get(f"{sublayer}_conv_proj.weight"))

        return DrafterLayer(
            attention_norm=get("attn_norm.weight"),
            attention=self._tensors.attention(index),
            attention_conv=conv("attn"),
            ffn_norm=get("ffn_norm.weight"),
            ffn_gate=get("ffn_gate.weight"),
            ffn_up=get("ffn_up.weight"),
            ffn_down=get("ffn_down.weight"),
            ffn_conv=conv("ffn"),
        )


def expected_tensors(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name and row-major shape of every tensor, in file order."""
    hidden, ffn = config.hidden_dim, config.ffn_dim
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (query, hidden),
        "attn_k.weight": (kv, hidden),
        "attn_v.weight": (kv, hidden),
        "attn_q_norm.weight": (config.head_dim,),
        "attn_k_norm.weight": (config.head_dim,),
        "attn_output.weight": (hidden, query),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (ffn, hidden),
        "ffn_up.weight": (ffn, hidden),
        "ffn_down.weight": (hidden, ffn),
    }
    if config.conv_group:
        num_values = 2 * BLOCK_TAPS * hidden // config.conv_group  # of both sides
        for sublayer in ("attn", "ffn"):
            layer[f"{sublayer}_conv_base"] = (2, BLOCK_TAPS, hidden)
            layer[f"{sublayer}_conv_proj.weight"] = (num_values, hidden)
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.taps) * hidden),
        "enc.output_norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        tensors |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    tensors["output_norm.weight"] = (hidden,)
    if config.selector_rank:
        tensors["selector_hidden.weight"] = (config.selector_rank, hidden)
        for name in CODEBOOKS:
            tensors[name] = (config.num_vocab_rows, config.selector_rank)
    return tensors


def config_metadata(config: DrafterConfig) -> dict[str, Any]:
    """The keys that from_gguf reads, for writing a file.

    Taps are stored as block index + 1. `attention.causal` is written only where layers differ from
    the rule without it: sliding ones are causal, full ones are not.
    """
    c, sliding = config, [window > 0 for window in config.windows]
    values: dict[str, Any] = {
        "block_count": c.num_layers,
        "embedding_length": c.hidden_dim,
        "feed_forward_length": c.ffn_dim,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.norm_eps,
        "rope.freq_base": c.rope_theta,
        "rope.dimension_sections": np.array([c.head_dim // 2, 0, 0, 0], np.int32),
        "vocab_size": c.num_vocab_rows,
        "block_size": c.block_size,
        "target_layers": np.array(c.taps, np.int32) + np.int32(1),
    }
    if any(sliding):
        values["attention.sliding_window"] = max(c.windows)
        values["attention.sliding_window_pattern"] = np.array(sliding)
    if list(c.causal) != sliding:
        values["attention.causal"] = c.causal[0]
    if c.selector_rank:
        sizes = (BLOCK_TAPS, c.conv_group, c.selector_rank, SELECT_TOP)
        values |= dict(zip(VERSION_2_KEYS, sizes, strict=True))
    metadata = {f"dflash.{key}": value for key, value in values.items()}
    return metadata | {"tokenizer.ggml.mask_token_id": c.mask_id}


def version_2_problem(
    hidden_dim: int,
    conv_kernel_size: int,
    conv_group_size: int,
    selector_rank: int,
    selector_top_k: int,
) -> str:
    """What of a DFlash 2 drafter the kernels cannot run; empty if nothing."""
    if conv_kernel_size != BLOCK_TAPS:
        return f"conv_kernel_size is {conv_kernel_size}, not {BLOCK_TAPS}"
    if conv_group_size % LANES or hidden_dim % conv_group_size:
        return (
            f"conv_group_size is {conv_group_size}, not a multiple of {LANES} that divides the"
            f" {hidden_dim} channels"
        )
    if selector_rank % LANES:
        return f"selector_rank is {selector_rank}, not a multiple of {LANES}"
    if selector_top_k != SELECT_TOP:
        return f"selector_top_k is {selector_top_k}, not {SELECT_TOP}"
    return ""


def _version_2(gguf: GGUF, keys: Keys, hidden_dim: int) -> tuple[int, int]:
    """Group of the convolutions and rank of the selector; 0 and 0 of a version 1."""
    has_keys = any(f"dflash.{key}" in gguf.metadata for key in VERSION_2_KEYS)
    if not has_keys and "selector_hidden.weight" not in gguf.tensors:
        return 0, 0
    sizes = {key: keys.integer(key) for key in VERSION_2_KEYS}
    problem = version_2_problem(hidden_dim, **sizes)
    if problem:
        raise ModelError(f"{gguf.path}: dflash.{problem}, which is not supported")
    return sizes["conv_group_size"], sizes["selector_rank"]


def _check_tensors(gguf: GGUF, config: DrafterConfig) -> None:
    expected = expected_tensors(config)
    for name, shape in expected.items():
        info = gguf.tensors.get(name)
        if info is None:
            raise ModelError(f"{gguf.path}: tensor {name!r} is missing; convert the drafter again")
        if info.shape != shape:
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is {list(info.shape)}, but the config of the file"
                f" makes it {list(shape)}"
            )
        if is_always_f32(name, shape) and info.type is not TensorType.F32:
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is {info.type.name}; norms and convolution taps are"
                " F32"
            )
        if name in CODEBOOKS and info.type not in FLOAT_TYPES:
            raise ModelError(
                f"{gguf.path}: tensor {name!r} is {info.type.name}, but codebooks are read as F32,"
                " F16 or BF16; `mtlqwen convert` of the file makes them BF16"
            )
    for name in gguf.tensors.keys() - expected.keys():
        version = 2 if config.selector_rank else 1
        raise ModelError(
            f"{gguf.path}: tensor {name!r} is no part of a DFlash drafter of version {version}"
        )


def _sliding_layers(keys: Keys, num_layers: int) -> Sequence[bool]:
    pattern = keys.raw("attention.sliding_window_pattern", np.zeros(num_layers, np.bool_))
    if not isinstance(pattern, np.ndarray) or len(pattern) != num_layers:
        raise keys.error("attention.sliding_window_pattern", "not one flag for each layer")
    return [bool(flag) for flag in pattern]


def _taps(keys: Keys) -> tuple[int, ...]:
    """From 0; files count the blocks from 1."""
    stored = keys.raw("target_layers")
    if not isinstance(stored, np.ndarray) or stored.dtype.kind not in "iu" or len(stored) == 0:
        raise keys.error("target_layers", f"{stored!r}, not a list of blocks")
    taps = [int(tap) for tap in stored]
    if taps[0] < 1 or any(a >= b for a, b in pairwise(taps)):
        raise keys.error("target_layers", f"{taps}: not ascending from 1")
    return tuple(tap - 1 for tap in taps)


def _num_vocab_rows(gguf: GGUF) -> int:
    """0 if the file does not say."""
    stored = gguf.metadata.get("dflash.vocab_size")
    if isinstance(stored, int):
        return stored
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray):
        return len(tokens)
    codebook = gguf.tensors.get(CODEBOOKS[0])
    return codebook.shape[0] if codebook else 0


def _mask_id(gguf: GGUF) -> int:
    mask = gguf.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int) or mask < 0:
        raise ModelError(f"{gguf.path}: tokenizer.ggml.mask_token_id is {mask!r}, not a token id")
    return mask
