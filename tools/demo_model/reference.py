"""Makes the reference outputs of the tests: transformers, float32, CPU, greedy.

    python -m tools.demo_model.reference --data DATA --models OUT --out REFERENCE

Writes `reference.json` and `drafter-reference.json`; the latter needs the package `dflash`.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3Config

from tools.demo_model.lexicon import Lexicon
from tools.demo_model.reference_prompts import reference_prompts
from tools.demo_model.vocabulary import first_end

TOKENS = 64
PROMPTS_WITH_LOGITS = 3


@torch.no_grad()
def greedy(model: Any, prompt: list[int]) -> tuple[list[int], list[float], list[Any]]:
    """Tokens, the gap between the two best logits and the best five, at each of 64 steps."""
    ids, cache = torch.tensor([prompt]), None
    tokens, margins, best = [], [], []
    for _ in range(TOKENS):
        output = model(ids, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        values, places = output.logits[0, -1].topk(5)
        tokens.append(int(places[0]))
        margins.append(round((values[0] - values[1]).item(), 4))
        rounded = [round(value, 5) for value in values.tolist()]
        best.append([list(pair) for pair in zip(places.tolist(), rounded, strict=True)])
        ids = places[:1][None]
    return tokens, margins, best


def target_reference(model: Any, tokenizer: Any, lexicon: Lexicon) -> list[dict[str, Any]]:
    results = []
    for name, content, options in reference_prompts(lexicon):
        text = content
        if not isinstance(content, str):
            text = tokenizer.apply_chat_template(
                content, tokenize=False, add_generation_prompt=True, **options
            )
        prompt = tokenizer(text)["input_ids"]
        tokens, margins, best = greedy(model, prompt)
        end = first_end(tokens)
        result = {
            "name": name,
            "prompt_text": text,
            "prompt": prompt,
            "tokens": tokens,
            "end_at": end,
            "margins": margins,
            "min_margin_to_end": min(margins if end is None else margins[: end + 1]),
        }
        if len(results) < PROMPTS_WITH_LOGITS:
            result["top5"] = best
        results.append(result)
    return results


@torch.no_grad()
def tokens_of_passes(model: Any, drafter: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """Tokens that every verify pass yields (accepted + 1) while `answer` is drafted."""
    ids = prompt + answer
    states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    features = torch.cat([states[tap + 1] for tap in drafter.target_layer_ids], -1)
    block, mask = drafter.block_size, drafter.mask_token_id
    at, gained = len(prompt), []
    while at < len(ids) - 1:
        inputs = torch.tensor([[ids[at]] + [mask] * (block - 1)])
        hidden = drafter(
            position_ids=torch.arange(at + block)[None],
            noise_embedding=model.model.embed_tokens(inputs),
            target_hidden=features[:, :at],
        )
        drafted = model.lm_head(hidden)[0, 1:].argmax(-1).tolist()
        actual = ids[at + 1 : at + block]
        wrong = (
            i for i, pair in enumerate(zip(drafted, actual, strict=False)) if len(set(pair)) > 1
        )
        accepted = next(wrong, len(actual))
        gained.append(min(accepted + 1, len(ids) - 1 - at))
        at += gained[-1]
    return gained


def load_drafter(folder: Path) -> Any:
    """The public implementation of the drafter, with our weights."""
    from dflash.model import DFlashDraftModel

    drafter = DFlashDraftModel(Qwen3Config.from_pretrained(folder)).float().eval()
    weights = load_file(folder / "model.safetensors")
    drafter.load_state_dict({name: value.float() for name, value in weights.items()})
    return drafter


def drafter_reference(model: Any, drafter: Any, prompts: list[dict[str, Any]]) -> dict[str, Any]:
    passes = {}
    for prompt in prompts:
        end = prompt["end_at"]
        answer = prompt["tokens"] if end is None else prompt["tokens"][: end + 1]
        passes[prompt["name"]] = tokens_of_passes(model, drafter, prompt["prompt"], answer)
    counts = [count for gained in passes.values() for count in gained]
    return {
        "note": "tokens produced by each verify pass (accepted + 1), greedy, block 16, float32",
        "prompts": passes,
        "tau": sum(counts) / len(counts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True, help="what export.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-drafter", action="store_true", help="without the package dflash")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.models / "target"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = target_reference(model, tokenizer, Lexicon.load(arguments.data))
    reference = {
        "model": "demo-hf",
        "dtype": "float32",
        "engine": "transformers",
        "note": "greedy; 64 tokens each, not stopped at end marks; end_at = index of the first "
        "<|im_end|>/<|endoftext|>; margins = top1 - top2 logit",
        "prompts": prompts,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "reference.json").write_text(json.dumps(reference))
    if not arguments.no_drafter:
        drafter = load_drafter(arguments.models / "drafter")
        passes = drafter_reference(model, drafter, prompts)
        (arguments.out / "drafter-reference.json").write_text(json.dumps(passes))


if __name__ == "__main__":
    main()
