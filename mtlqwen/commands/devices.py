"""`mtlqwen devices`: what this machine can run on."""

from __future__ import annotations

import dataclasses
import json

import click

DEVICES = ("cpu", "metal")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def devices(as_json: bool) -> None:
    """List the devices of this machine."""
    from mtlqwen import abi
    from mtlqwen.device import Device
    from mtlqwen.errors import DeviceError

    found = []
    for name in DEVICES:
        try:
            with Device.open(name) as device:
                found.append({"device": name, **dataclasses.asdict(device.info)})
        except DeviceError as error:
            if error.status & 0xFF != abi.E_NOT_FOUND:
                raise
    if as_json:
        click.echo(json.dumps({"devices": found}))
        return
    for info in found:
        sizes = [f"{size // 1024} KiB" for size in info["sparse_page_bytes"]]
        pages = f"pages of {', '.join(sizes)}"
        if info["page_table_reason"]:
            pages += f" by page table: {info['page_table_reason']}"
        threads = f"{info['num_threads']} threads, " if info["num_threads"] else ""
        click.echo(
            f"{info['device']}: {info['name']}, {info['isa']}, {threads}"
            f"{info['memory_bytes'] / 2**30:.1f} GiB; {pages}"
        )
