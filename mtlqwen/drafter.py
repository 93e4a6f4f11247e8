"""DFlash drafters: attention layers that guess a block of tokens from states of the target.

Each committed position of the target leaves the states behind some of its blocks (taps). Fused to
one feature, they become keys and values of every drafter layer at that position: the context. A
draft is one pass over the last known token and masks behind it; each row guesses the token at its
own position. Embedding and head are the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .config import Keys, ModelConfig
from .device import Buffer, Device
from .errors import ModelError
from .gguf import GGUF, TensorType
from .weights import AttentionMixer, Layer, Tensor

MAX_LAYERS = 64


@dataclass(frozen=True)
class DrafterConfig:
    """The shape of a DFlash drafter, version 1."""

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
        if keys.integer("attention.value_length") != head_dim:
            raise keys.error("attention.value_length", f"not key_length, {head_dim}")
        num_heads = keys.integer("attention.head_count")
        num_kv_heads = keys.integer("attention.head_count_kv")
        if num_heads % num_kv_heads:
            raise keys.error(
                "attention.head_count_kv", f"{num_kv_heads}, no divisor of {num_heads}"
            )
        sliding = _sliding_layers(keys, num_layers)
        window = keys.integer("attention.sliding_window", high=1 << 31) if any(sliding) else 0
        causal = gguf.metadata.get("dflash.attention.causal")
        config = cls(
            hidden_dim=keys.integer("embedding_length"),
            ffn_dim=keys.integer("feed_forward_length"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rope_theta=keys.number("rope.freq_base"),
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            num_vocab_rows=_num_vocab_rows(gguf),
            block_size=keys.integer("block_size", low=2, high=1024),
            mask_id=_mask_id(gguf),
            taps=_taps(keys),
            windows=tuple(window if slides else 0 for slides in sliding),
            causal=tuple(slides if causal is None else bool(causal) for slides in sliding),
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


class DrafterWeights:
    """All tensors of a drafter, where its mapped file has them."""

    def __init__(self, device: Device, gguf: GGUF, config: DrafterConfig):
        self._gguf = gguf
        self._shards: list[Buffer] = [device.wrap(shard) for shard in gguf.shards]
        self.fusion = self._tensor("fc.weight")  # [hidden, taps * hidden]
        self.fusion_norm = self._tensor("enc.output_norm.weight")
        self.layers = [self._layer(index) for index in range(config.num_layers)]
        self.output_norm = self._tensor("output_norm.weight")

    def close(self) -> None:
        for buffer in self._shards:
            buffer.free()

    def _tensor(self, name: str) -> Tensor:
        info = self._gguf.tensors[name]
        return Tensor(self._shards[info.shard], info.offset_bytes, info.type, info.shape)

    def _layer(self, index: int) -> Layer:
        def get(name: str) -> Tensor:
            return self._tensor(f"blk.{index}.{name}.weight")

        return Layer(
            mixer_norm=get("attn_norm"),
            mixer=AttentionMixer(
                query=get("attn_q"),
                key=get("attn_k"),
                value=get("attn_v"),
                query_norm=get("attn_q_norm"),
                key_norm=get("attn_k_norm"),
                output=get("attn_output"),
            ),
            ffn_norm=get("ffn_norm"),
            ffn_gate=get("ffn_gate"),
            ffn_up=get("ffn_up"),
            ffn_down=get("ffn_down"),
        )


def expected_tensors(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name and row-major shape of every tensor."""
    hidden, ffn = config.hidden_dim, config.ffn_dim
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {
        "attn_norm": (hidden,),
        "attn_q": (query, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_q_norm": (config.head_dim,),
        "attn_k_norm": (config.head_dim,),
        "attn_output": (hidden, query),
        "ffn_norm": (hidden,),
        "ffn_gate": (ffn, hidden),
        "ffn_up": (ffn, hidden),
        "ffn_down": (hidden, ffn),
    }
    tensors: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(config.taps) * hidden),
        "enc.output_norm.weight": (hidden,),
        "output_norm.weight": (hidden,),
    }
    for index in range(config.num_layers):
        tensors |= {f"blk.{index}.{name}.weight": shape for name, shape in layer.items()}
    return tensors


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
        if len(shape) == 1 and info.type is not TensorType.F32:
            raise ModelError(f"{gguf.path}: tensor {name!r} is {info.type.name}; norms are F32")
    for name in gguf.tensors.keys() - expected.keys():
        raise ModelError(
            f"{gguf.path}: tensor {name!r} is no part of a DFlash drafter of version 1, the only"
            " one supported"
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
    tokens = gguf.metadata.get("tokenizer.ggml.tokens", ())
    return len(tokens)


def _mask_id(gguf: GGUF) -> int:
    mask = gguf.metadata.get("tokenizer.ggml.mask_token_id")
    if not isinstance(mask, int) or mask < 0:
        raise ModelError(f"{gguf.path}: tokenizer.ggml.mask_token_id is {mask!r}, not a token id")
    return mask
