"""Makes `tools`, which is not installed, importable."""

import sys
from pathlib import Path

# Last, so that an installed mtlqwen is not hidden by the source tree.
sys.path.append(str(Path(__file__).parents[2]))
