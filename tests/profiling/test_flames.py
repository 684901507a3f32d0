"""Python functions below stages, as py-spy samples them."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyengine.cli import main
from pyengine.profiling.flames import Flame, below_stages

PROFILE = ["profile", "--device", "simulated", "--step-ms", "2", "--sequences", "8"]
STACKS = """\
<module> (a.py:1);SchedulerActor.run (s.py:10);SchedulerActor.commit (s.py:20);wait (r.py:5) 30
<module> (a.py:1);SchedulerActor.run (s.py:10);SchedulerActor.commit (s.py:24) 10
<module> (a.py:1);SchedulerActor.commit (s.py:22);SchedulerActor.sample (s.py:40);f (g.py:2) 5
<module> (a.py:1);SchedulerActor.commit (s.py:20);rare (r.py:9) 0
<module> (a.py:1);elsewhere (b.py:3) 1000
"""


def test_a_stack_belongs_to_its_innermost_stage() -> None:
    assert list(below_stages(STACKS.splitlines())) == [
        Flame("commit", 0, "SchedulerActor.commit (s.py)", 40),
        Flame("commit", 1, "wait (r.py)", 30),
        Flame("sample", 0, "SchedulerActor.sample (s.py)", 5),
        Flame("sample", 1, "f (g.py)", 5),
    ]


def test_a_machine_without_py_spy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    result = CliRunner().invoke(main, [*PROFILE, "--placement", "thread", "--pyspy"])
    assert result.exit_code != 0
    assert "pip install py-spy" in f"{result.output}{result.exception}"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_functions_of_the_engines_process_are_below_its_stages(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = CliRunner().invoke(
        main, [*PROFILE, "--seconds", "3", "--pyspy", "--json", str(file)]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Python below each stage" in result.output
    flames = [Flame(*each) for each in json.loads(file.read_text())["flames"]]
    assert ("commit", 0) in [(flame.stage, flame.depth) for flame in flames]
    assert any(flame.stage == "commit" and "SimulatedStep.wait" in flame.function
               for flame in flames)  # fmt: skip
