from __future__ import annotations

import subprocess
import sys


def test_checkpoint_package_imports_torch_lazily_and_resolves_all_names() -> None:
    program = """
import sys
import clusterdp.checkpoint as package
package.list_checkpoints("/nonexistent")
assert "torch" not in sys.modules
assert [getattr(package, name) for name in package.__all__] and "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
