"""The README's code runs, and says what it says."""

import re
import subprocess
import sys
from pathlib import Path

from doc_outputs import not_printed

README = Path(__file__).parent.parent / "README.md"


def test_the_readme_runs_as_a_newcomer_would_run_it():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) == 3
    checks = """
assert abs(result.modes.weight[0] - 0.9) < 5 * result.modes.weight_se[0] + 1e-4
assert abs(result.log_evidence - 1.8379) < 5 * result.log_evidence_se + 1e-3
assert result.alarms == () and search.library.size == library.size == 2
assert abs(known.modes.weight[0] - 0.9) < 0.02 and abs(adaptive.modes.weight.max() - 0.9) < 0.05
assert len(info) == 3
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks) + checks], check=True, capture_output=True, text=True
    )
    assert not_printed(README.read_text(), done.stdout) == []
