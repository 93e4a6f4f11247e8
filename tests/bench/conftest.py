"""The benchmarks' modules, which lie beside the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
