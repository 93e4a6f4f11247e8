"""What `mtlqwen.sampling` describes, in NumPy and float64."""

import numpy as np


def adjusted_logits(logits, params, prompt_ids=(), generated=()):
    """f64 [num_tokens]: after penalties and bias."""
    x = np.asarray(logits, np.float64).copy()
    seen = np.unique([*prompt_ids, *generated]).astype(int)
    x[seen] = np.where(
        x[seen] > 0, x[seen] / params.repetition_penalty, x[seen] * params.repetition_penalty
    )
    for token in generated:
        x[token] -= params.frequency_penalty
    for token in set(generated):
        x[token] -= params.presence_penalty
    for token, bias in params.logit_bias.items():
        x[token] += bias
    return x


def distribution(logits, params, prompt_ids=(), generated=()):
    """f64 [num_tokens]: probability of each token, 0 for those that are filtered out."""
    x = adjusted_logits(logits, params, prompt_ids, generated)
    best_first = np.lexsort((np.arange(len(x)), -x))
    if params.temperature == 0:
        return (np.arange(len(x)) == best_first[0]).astype(float)
    p = np.exp((x - x.max()) / params.temperature)
    if params.top_k:
        p[best_first[params.top_k :]] = 0
    before = np.cumsum(p[best_first]) - p[best_first]
    dropped = before >= params.top_p * p.sum()
    dropped[0] = False
    if params.top_p < 1:
        p[best_first[dropped]] = 0
    p[p < params.min_p * p.max()] = 0
    return p / p.sum()


def uniform(seed, position, draw=0):
    """SplitMix64 started at the mixed seed, four numbers for each position."""
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    state = mix((seed + gamma) & mask) + (4 * position + draw + 1) * gamma
    return (mix(state & mask) >> 11) / (1 << 53)
