"""`mtlqwen devices`: what this machine can run on."""

from __future__ import annotations

import dataclasses
import json

import click

DEVICES = ("cpu",)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def devices(as_json: bool) -> None:
    """List the devices of this machine."""
    from mtlqwen.device import Device

    found = []
    for name in DEVICES:
        with Device.open(name) as device:
            found.append({"device": name, **dataclasses.asdict(device.info)})
    if as_json:
        click.echo(json.dumps({"devices": found}))
        return
    for info in found:
        pages = ", ".join(f"{size // 1024} KiB" for size in info["sparse_page_bytes"])
        click.echo(
            f"{info['device']}: {info['name']}, {info['isa']}, {info['num_threads']} threads, "
            f"{info['memory_bytes'] / 2**30:.1f} GiB; pages of {pages}"
        )
