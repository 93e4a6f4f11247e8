"""DFlash drafters in NumPy over GGUF tensors: the definition of right. float64, one sequence.

A feature of the target becomes a key and a value of every layer. A block of rows, the last known
token and masks, looks at these and at itself; row j gives the token at its own position.
"""

import numpy as np

TOP = 16


def rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def turn(x, positions, theta):
    """RoPE over all lanes of x [T, heads, D]: lane j with lane j + D/2."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
    )


def stored(x):
    """As the K/V cache keeps it."""
    return x.astype(np.float16).astype(np.float64)


class DrafterReference:
    """One sequence. `weights`: GGUF tensor name -> array, matrices [out, in]."""

    def __init__(self, config, weights, embedding, head):
        self.c = config
        self.w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.embedding, self.head = embedding.astype(np.float64), head.astype(np.float64)
        shape = (0, config.num_kv_heads, config.head_dim)
        self.keys = [np.zeros(shape) for _ in range(config.num_layers)]
        self.values = [np.zeros(shape) for _ in range(config.num_layers)]

    @property
    def length(self):
        return len(self.keys[0])

    def inject(self, features):
        """Features [T, taps * hidden] of the positions from `length` on."""
        f = rms(features @ self.w["fc.weight"].T, self.w["enc.output_norm.weight"], self.c.norm_eps)
        positions = self.length + np.arange(len(f))
        for layer in range(self.c.num_layers):
            key, value = self._key_value(layer, f, positions)
            self.keys[layer] = np.concatenate([self.keys[layer], key])
            self.values[layer] = np.concatenate([self.values[layer], value])

    def block(self, ids):
        """(logits [len(ids) - 1, vocabulary], h [len(ids) - 1, hidden]) of the masks."""
        c, x = self.c, self.embedding[ids]
        positions = self.length + np.arange(len(ids))
        for layer in range(c.num_layers):
            self.layer = layer
            h = rms(x, self._w("attn_norm.weight"), c.norm_eps)
            x = x + self._convolved("attn", h, lambda h: self._attention(h, positions))
            h = rms(x, self._w("ffn_norm.weight"), c.norm_eps)
            x = x + self._convolved("ffn", h, self._ffn)
        h = rms(x, self.w["output_norm.weight"], c.norm_eps)[1:]
        return h @ self.head.T, h

    def scores(self, logits, h, before):
        """Of one mask row: what is compared, [vocabulary]; -inf for what is no candidate."""
        if not self.c.selector_rank:
            return logits
        top = np.argsort(-logits, kind="stable")[:TOP]
        context = self.w["selector_predecessor.weight"][before]
        context = context * (self.w["selector_hidden.weight"] @ h)
        scores = np.full(len(logits), -np.inf)
        scores[top] = logits[top] + self.w["selector_successor.weight"][top] @ context
        return scores

    def _w(self, name):
        return self.w[f"blk.{self.layer}.{name}"]

    def _key_value(self, layer, h, positions):
        c, shape = self.c, (len(h), self.c.num_kv_heads, self.c.head_dim)
        key = (h @ self.w[f"blk.{layer}.attn_k.weight"].T).reshape(shape)
        key = rms(key, self.w[f"blk.{layer}.attn_k_norm.weight"], c.norm_eps)
        value = (h @ self.w[f"blk.{layer}.attn_v.weight"].T).reshape(shape)
        return stored(turn(key, positions, c.rope_theta)), stored(value)

    def _attention(self, h, positions):
        c, layer = self.c, self.layer
        q = (h @ self._w("attn_q.weight").T).reshape(len(h), c.num_heads, c.head_dim)
        q = turn(rms(q, self._w("attn_q_norm.weight"), c.norm_eps), positions, c.rope_theta)
        key, value = self._key_value(layer, h, positions)
        key, value = (
            np.concatenate([self.keys[layer], key]),
            np.concatenate([self.values[layer], value]),
        )
        group = c.num_heads // c.num_kv_heads
        scores = np.einsum("thd,shd->hts", q, np.repeat(key, group, axis=1)) / np.sqrt(c.head_dim)
        distance = positions[:, None] - np.arange(len(key))
        if c.causal[layer]:
            scores[:, distance < 0] = -np.inf
        if c.windows[layer]:
            scores[:, np.abs(distance) >= c.windows[layer]] = -np.inf
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        o = np.einsum("hts,shd->thd", p, np.repeat(value, group, axis=1))
        return o.reshape(len(h), -1) @ self._w("attn_output.weight").T

    def _ffn(self, h):
        gate, up = h @ self._w("ffn_gate.weight").T, h @ self._w("ffn_up.weight").T
        return (silu(gate) * up) @ self._w("ffn_down.weight").T

    def _convolved(self, name, h, sublayer):
        """DFlash 2 convolves what a sublayer reads and what it gives, both with taps of `h`."""
        if not self.c.conv_group:
            return sublayer(h)
        base = self._w(f"{name}_conv_base")
        added = (h @ self._w(f"{name}_conv_proj.weight").T).reshape(len(h), 2, 2, -1)
        taps = base + np.repeat(added, self.c.conv_group, axis=-1)  # [T, side, tap, hidden]

        def convolve(x, side):
            before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
            return taps[:, side, 0] * x + taps[:, side, 1] * before

        return convolve(sublayer(convolve(h, 0)), 1)
