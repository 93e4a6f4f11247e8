"""Trained weights in bfloat16, with the settings and the log of the training beside them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tools.demo_model.layers import DEVICE
from tools.demo_model.model import Target, TargetConfig


def save(folder: Path, name: str, model: nn.Module, record: dict[str, Any]) -> None:
    """Writes `NAME.safetensors` and `NAME.json`; the record gains the model's configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        key: value.detach().to(torch.bfloat16).contiguous().cpu()
        for key, value in model.state_dict().items()
    }
    save_file(weights, folder / f"{name}.safetensors", metadata={"format": "pt"})
    record = {"config": dataclasses.asdict(model.config), **record}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1))


def load_config(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / f"{name}.json").read_text())["config"]


def load_target(folder: Path) -> Target:
    """The frozen target, its bfloat16 weights in float32."""
    target = Target(TargetConfig(**load_config(folder, "target"))).to(DEVICE)
    weights = load_file(folder / "target.safetensors")
    target.load_state_dict({key: value.float() for key, value in weights.items()})
    return target.requires_grad_(False)
