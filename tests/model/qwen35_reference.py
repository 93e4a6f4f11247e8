"""Qwen 3.5 dense in NumPy over dequantised GGUF tensors: the definition of right.

Token by token, float64 by default. Formulas follow the published architecture; every engine result
is compared with this.
"""

import numpy as np


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def unit(x, eps=1e-6):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rope(x, positions, rotary_dim, theta):
    """x [T, heads, D]: lanes j and j + rotary_dim/2 turn by position * theta^(-2j/rotary_dim)."""
    half = rotary_dim // 2
    angle = positions[:, None] * theta ** (-2.0 * np.arange(half) / rotary_dim)
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:rotary_dim]
    return np.concatenate([a * c - b * s, b * c + a * s, x[..., rotary_dim:]], axis=-1)


class Reference:
    """One sequence. `weights`: GGUF tensor name -> array, matrices [out, in]."""

    def __init__(self, config, weights, dtype=np.float64):
        self.config = config
        self.w = {name: np.asarray(value, dtype) for name, value in weights.items()}
        self.length = 0
        self.memory = [{} for _ in config.layer_kinds]

    def forward(self, ids):
        """Logits [len(ids), num_vocab_rows]."""
        c, w = self.config, self.w
        x = w["token_embd.weight"][np.asarray(ids)]
        positions = self.length + np.arange(len(ids))
        for index, kind in enumerate(c.layer_kinds):
            self.layer, self.state = f"blk.{index}.", self.memory[index]
            h = rms(x, c.norm_eps) * self._w("attn_norm.weight")
            x = x + (self._attention(h, positions) if kind == "attention" else self._delta_net(h))
            h = rms(x, c.norm_eps) * self._w("post_attention_norm.weight")
            gate, up = h @ self._w("ffn_gate.weight").T, h @ self._w("ffn_up.weight").T
            x = x + (silu(gate) * up) @ self._w("ffn_down.weight").T
        self.length += len(ids)
        x = rms(x, c.norm_eps) * w["output_norm.weight"]
        return x @ w.get("output.weight", w["token_embd.weight"]).T

    def _w(self, name):
        return self.w[self.layer + name]

    def _attention(self, h, positions):
        c = self.config
        num_rows, group = len(h), c.num_heads // c.num_kv_heads
        qg = (h @ self._w("attn_q.weight").T).reshape(num_rows, c.num_heads, 2, c.head_dim)
        k = (h @ self._w("attn_k.weight").T).reshape(num_rows, c.num_kv_heads, c.head_dim)
        v = (h @ self._w("attn_v.weight").T).reshape(num_rows, c.num_kv_heads, c.head_dim)
        q = rms(qg[:, :, 0], c.norm_eps) * self._w("attn_q_norm.weight")
        k = rms(k, c.norm_eps) * self._w("attn_k_norm.weight")
        q, k = (rope(x, positions, c.rotary_dim, c.rope_theta) for x in (q, k))
        if self.state:
            k = np.concatenate([self.state["k"], k])
            v = np.concatenate([self.state["v"], v])
        self.state.update(k=k, v=v)
        scores = np.einsum("thd,shd->hts", q, np.repeat(k, group, axis=1)) * c.head_dim**-0.5
        scores[:, np.arange(len(k))[None, :] > positions[:, None]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        o = np.einsum("hts,shd->thd", p, np.repeat(v, group, axis=1)) * sigmoid(qg[:, :, 1])
        return o.reshape(num_rows, -1) @ self._w("attn_output.weight").T

    def _delta_net(self, h):
        c = self.config
        num_rows, width = len(h), c.num_key_heads * c.key_dim
        u = h @ self._w("attn_qkv.weight").T
        tail = self.state.get("tail", np.zeros((3, u.shape[1])))
        u = np.concatenate([tail, u])
        self.state["tail"] = u[-3:]
        taps = self._w("ssm_conv1d.weight").reshape(u.shape[1], 4)
        y = silu(sum(u[j : j + num_rows] * taps[:, j] for j in range(4)))
        repeat = (1, c.num_value_heads // c.num_key_heads, 1)  # value head j: key head j % hk
        q = np.tile(unit(y[:, :width].reshape(num_rows, -1, c.key_dim)), repeat) * c.key_dim**-0.5
        k = np.tile(unit(y[:, width : 2 * width].reshape(num_rows, -1, c.key_dim)), repeat)
        v = y[:, 2 * width :].reshape(num_rows, c.num_value_heads, c.value_dim)
        z = (h @ self._w("attn_gate.weight").T).reshape(v.shape)
        beta = sigmoid(h @ self._w("ssm_beta.weight").T)
        g = self._w("ssm_a") * softplus(h @ self._w("ssm_alpha.weight").T + self._w("ssm_dt.bias"))
        shape = (c.num_value_heads, c.key_dim, c.value_dim)
        state = self.state.get("state", np.zeros(shape))
        o = np.empty_like(v)
        for t in range(num_rows):
            state = state * np.exp(g[t])[:, None, None]
            d = beta[t][:, None] * (v[t] - np.einsum("hk,hkv->hv", k[t], state))
            state = state + k[t][:, :, None] * d[:, None, :]
            o[t] = np.einsum("hk,hkv->hv", q[t], state)
        self.state["state"] = state
        o = rms(o, c.norm_eps) * self._w("ssm_norm.weight") * silu(z)
        return o.reshape(num_rows, -1) @ self._w("ssm_out.weight").T
