"""`mtlqwen doctor`: a report on a device, to paste into an issue."""

from __future__ import annotations

import click


@click.command()
@click.option("--metal", "kind", flag_value="metal", help="The Metal device.")
@click.option("--cpu", "kind", flag_value="cpu", default=True, help="The cpu device.  [default]")
def doctor(kind: str) -> None:
    """Check that a device computes what it should, and how fast."""
    from mtlqwen.doctor import examine
    from mtlqwen.errors import MtlqError

    failed = 0
    for finding in examine(kind):
        failed += not finding.is_right
        click.echo(f"{'ok  ' if finding.is_right else 'FAIL'}  {finding.what}: {finding.detail}")
    if failed:
        raise MtlqError(f"{failed} of the checks failed; please paste this report into an issue")
