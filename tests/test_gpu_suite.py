"""The tests that need a GPU are complete where there is none: each is collected, and skipped."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.programs import REPOSITORY, environment

pytestmark = pytest.mark.slow


PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu")


@pytest.mark.timeout(300)  # imports all of torch and transformers, on a busy machine perhaps
@pytest.mark.skipif(find_spec("triton") is None, reason="torch has no triton here")
def test_every_module_is_collected_and_marked() -> None:
    done = subprocess.run(
        [*PYTEST, "--collect-only", "-m", "gpu"],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    modules = (REPOSITORY / "tests" / "gpu").rglob("test_*.py")
    assert collected == {str(path.relative_to(REPOSITORY)) for path in modules}
    assert "deselected" not in done.stdout
