"""Greedy decoding of many sequences at once; on the GPU one step is a CUDA graph."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tools.demo_model.deltanet import gated_norm, l2_norm, log_decay
from tools.demo_model.layers import DEVICE, MATMUL_DTYPE, ON_GPU, linear, rms_norm, rope, swiglu
from tools.demo_model.model import Target

WeightOf = Callable[[str], Tensor]


class GreedyDecoder:
    """States of `batch` sequences of at most `length` tokens; every step has the same shapes."""

    def __init__(self, target: Target, batch: int, length: int) -> None:
        self.config = config = target.config
        self.batch, self.length = batch, length
        self.weights = {
            name: weight.detach().to(MATMUL_DTYPE) if weight.dim() == 2 else weight.detach().float()
            for name, weight in target.named_parameters()
        }
        self.token = torch.zeros(batch, dtype=torch.long, device=DEVICE)
        self.position = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.places = torch.arange(length, device=DEVICE)
        self.next_token = torch.zeros_like(self.token)
        self.graph: torch.cuda.CUDAGraph | None = None
        keys = config.linear_key_heads * config.linear_width
        values = config.linear_value_heads * config.linear_width
        cache = (batch, config.kv_heads, length, config.head_width)
        window = (batch, config.kernel - 1, 2 * keys + values)
        state = (batch, config.linear_value_heads, config.linear_width, config.linear_width)
        self.states = [
            tuple(torch.zeros(cache, dtype=MATMUL_DTYPE, device=DEVICE) for _ in range(2))
            if config.is_full_attention(i)
            else (torch.zeros(window, device=DEVICE), torch.zeros(state, device=DEVICE))
            for i in range(config.layers)
        ]

    @torch.no_grad()
    def generate(self, prompts: list[list[int]]) -> Tensor:
        """(batch, length) ids: each prompt, then the greedy tokens. One prompt per sequence."""
        given = torch.full((self.batch, self.length), -1, dtype=torch.long)
        for row, prompt in zip(given, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt[: self.length])
        given = given.to(DEVICE)
        ids = torch.zeros_like(given)
        if ON_GPU and self.graph is None:
            self._record()
        self._reset()
        ids[:, 0] = given[:, 0]
        for i in range(self.length - 1):
            self.token.copy_(ids[:, i])
            if self.graph:
                self.graph.replay()
            else:
                self._step()
            ids[:, i + 1] = torch.where(given[:, i + 1] >= 0, given[:, i + 1], self.next_token)
        return ids

    def _record(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._reset()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def _reset(self) -> None:
        self.position.zero_()
        for state in self.states:
            for tensor in state:
                tensor.zero_()

    def _step(self) -> None:
        embedding = self.weights["model.embed_tokens.weight"]
        x = F.embedding(self.token, embedding).float()
        for i in range(self.config.layers):

            def weight(name: str, layer: int = i) -> Tensor:
                return self.weights[f"model.layers.{layer}.{name}"]

            h = rms_norm(x, 1.0 + weight("input_layernorm.weight"))
            if self.config.is_full_attention(i):
                x = x + self._attention(h, i, weight)
            else:
                x = x + self._deltanet(h, i, weight)
            h = rms_norm(x, 1.0 + weight("post_attention_layernorm.weight"))
            x = x + swiglu(
                h, *(weight(f"mlp.{name}_proj.weight") for name in ("gate", "up", "down"))
            )
        final = rms_norm(x, 1.0 + self.weights["model.norm.weight"])
        self.next_token.copy_(linear(final, embedding).float().argmax(-1))
        self.position.add_(1)

    def _attention(self, h: Tensor, layer: int, weight: WeightOf) -> Tensor:
        batch, config = self.batch, self.config
        width, kv_heads = config.head_width, config.kv_heads
        positions = self.position.view(1, 1).expand(batch, 1)
        keys, values = self.states[layer]
        query = linear(h, weight("self_attn.q_proj.weight")).view(batch, 1, -1, 2 * width)
        q, gate = query.chunk(2, -1)
        k = linear(h, weight("self_attn.k_proj.weight")).view(batch, 1, kv_heads, width)
        v = linear(h, weight("self_attn.v_proj.weight")).view(batch, kv_heads, 1, width)
        q = rms_norm(q, 1.0 + weight("self_attn.q_norm.weight")).transpose(1, 2)
        k = rms_norm(k, 1.0 + weight("self_attn.k_norm.weight")).transpose(1, 2)
        q = rope(q, positions, config.rotary).to(MATMUL_DTYPE)
        keys.index_copy_(2, self.position, rope(k, positions, config.rotary).to(MATMUL_DTYPE))
        values.index_copy_(2, self.position, v)
        grouped = q.reshape(batch * kv_heads, -1, width)
        scores = (grouped @ keys.flatten(0, 1).transpose(1, 2)).float() * width**-0.5
        scores = scores.masked_fill(self.places > self.position, -1e30).softmax(-1)
        o = (scores.to(MATMUL_DTYPE) @ values.flatten(0, 1)).reshape(batch, -1)
        gate = torch.sigmoid(gate.reshape(batch, -1).float()).to(MATMUL_DTYPE)
        return linear(o * gate, weight("self_attn.o_proj.weight")).float()

    def _deltanet(self, h: Tensor, layer: int, weight: WeightOf) -> Tensor:
        batch, config = self.batch, self.config
        width, key_heads = config.linear_width, config.linear_key_heads
        value_heads = config.linear_value_heads
        keys, values = key_heads * width, value_heads * width
        window, state = self.states[layer]
        u = linear(h, weight("linear_attn.in_proj_qkv.weight")).float()
        inputs = torch.cat((window, u[:, None]), 1)
        window.copy_(inputs[:, 1:])
        mixed = F.silu((inputs * weight("linear_attn.conv1d.weight")[:, 0].t()).sum(1))
        q, k, v = mixed.split([keys, keys, values], -1)
        group = value_heads // key_heads
        q = l2_norm(q.view(batch, key_heads, width)).repeat_interleave(group, 1) * width**-0.5
        k = l2_norm(k.view(batch, key_heads, width)).repeat_interleave(group, 1)
        v = v.view(batch, value_heads, width)
        beta = torch.sigmoid(linear(h, weight("linear_attn.in_proj_b.weight")).float())
        a = linear(h, weight("linear_attn.in_proj_a.weight"))
        g = log_decay(a, weight("linear_attn.A_log"), weight("linear_attn.dt_bias"))
        state.mul_(g.exp()[..., None, None])
        delta = (v - (k[:, :, None] @ state)[:, :, 0]) * beta[..., None]
        state.add_(k[..., None] * delta[:, :, None])
        o = (q[:, :, None] @ state)[:, :, 0]
        z = linear(h, weight("linear_attn.in_proj_z.weight")).view(o.shape)
        o = gated_norm(o, z, weight("linear_attn.norm.weight"))
        return linear(o.reshape(batch, -1), weight("linear_attn.out_proj.weight")).float()
