"""The text of a Metal library: a file of kernels/metal with its own headers put in.

Metal compiles source at run time and cannot open our headers, so quoted includes are replaced by
what they name, each once. `#line` keeps the compiler's messages in terms of the files.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

_INCLUDE = re.compile(r'^#include "([^"]+)"\s*$')


def library_source(path: Path) -> str:
    """The text of `path` (a .metal file) without quoted includes. Raises FileNotFoundError."""
    return "".join(_inlined(path.resolve(), set()))


@functools.cache
def kernel_source(library: str) -> str:
    """The text of kernels/metal/<library>.metal, of the checkout or as it was installed."""
    package = Path(__file__).parent
    checkout = package.parent / "kernels" / "metal" / f"{library}.metal"
    return library_source(checkout if checkout.exists() else package / "metal" / checkout.name)


def _inlined(path: Path, seen: set[Path]) -> list[str]:
    seen.add(path)
    lines = [f'#line 1 "{path.name}"\n']
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(line + "\n")
            continue
        header = (path.parent / include[1]).resolve()
        if header not in seen:
            lines += _inlined(header, seen)
        lines.append(f'#line {number + 1} "{path.name}"\n')
    return lines
