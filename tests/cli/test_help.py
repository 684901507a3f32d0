"""The command line before it does anything: help, version, usage errors, instant start."""

from dataclasses import fields
from pathlib import Path

import pytest

from pyengine import EngineConfig, __version__
from pyengine.cli import main
from pyengine.cli.options import ENGINE_OPTIONS, spelled
from pyengine.settings.server import SERVER_TYPES
from tests.cli.conftest import Run
from tests.programs import python

COMMANDS = sorted(main.commands)
# The commands that load a model.
OF_MODELS = [command for command in COMMANDS if command not in ("bench", "record")]
HEAVY = ("torch", "transformers", "granian", "tokenizers", "huggingface_hub", "numpy", "rich")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    program = f"""
import sys
from pyengine.cli import main
try:
    main([*{command!r}, "--help"], prog_name="pyengine")
except SystemExit as end:
    assert end.code == 0
print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    printed = python(program)
    assert printed.startswith("Usage: pyengine")
    assert printed.splitlines()[-1].split() == ["loaded:"]


@pytest.mark.parametrize("command", OF_MODELS)
def test_every_setting_has_its_flag_and_variable_in_the_help(command: str, pyengine: Run) -> None:
    text = pyengine(command, "--help-all").stdout
    for setting in (*ENGINE_OPTIONS, *(SERVER_TYPES if command == "serve" else ())):
        assert spelled(setting) in text
        assert f"PYENGINE_{setting.upper()}]" in text


def test_the_tables_name_fields_that_there_are() -> None:
    assert set(ENGINE_OPTIONS) <= {field.name for field in fields(EngineConfig)}


def test_settings_of_a_deployment_have_flags() -> None:
    """A template does not always show a model's chat format."""
    assert {"served_name", "chat_format", "draft_model"} <= set(ENGINE_OPTIONS)


def test_version(pyengine: Run) -> None:
    done = pyengine("--version")
    assert (done.returncode, done.stdout) == (0, f"pyengine {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (("serv",), {}, "No such command 'serv'"),
        (("serve", "--max-sequences", "many"), {}, "'many' is not a valid integer"),
        (("serve", "--max-sequences", "0"), {}, "(option --max-sequences)"),
        (("serve", "--max-tokens-per-step", "4"), {}, "'max_sequences' (16)"),
        (("serve", "--port", "65536"), {}, "from 0 to 65535, not 65536 (option --port)"),
        (("chat", "--chat-format", "odd"), {}, "'hermes'"),
        (("chat", "--mode", "huge"), {}, "'interactive', 'local', 'server'"),
        (("chat",), {"PYENGINE_MODE": "huge"}, "PYENGINE_MODE='huge'"),
        (("chat",), {"PYENGINE_MOOD": "good"}, "PYENGINE_MOOD names no setting"),
        (("complete", "--system", "Be brief", "-p", "x"), {}, "--system needs --chat"),
    ],
)
def test_a_usage_error_is_named_and_exits_with_2(
    arguments: tuple[str, ...], variables: dict[str, str], says: str, pyengine: Run
) -> None:
    done = pyengine(*arguments, **variables)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", OF_MODELS)
def test_a_model_that_is_not_there_is_one_line_and_exits_with_1(
    command: str, pyengine: Run, tmp_path: Path
) -> None:
    line = '{"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "Hello"}}\n'
    (tmp_path / "in").write_text(line)
    files = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    given = {"serve": ["--port", "0"], "run-batch": files}
    arguments = given.get(command, [])
    done = pyengine(command, "./nowhere", *arguments, given="Hello")
    assert done.returncode == 1
    assert done.stderr == (
        "Error: there is no model folder './nowhere': give the path of one in Hugging Face format, "
        "or a hub name as owner/name; for the demo model leave it out\n"
    )


@pytest.mark.parametrize("name", ["demo", "gpt2", "a/b/c", ""])
def test_a_name_that_is_neither_path_nor_hub_name_is_told_what_both_look_like(
    name: str, pyengine: Run
) -> None:
    done = pyengine("complete", name, "--prompt", "Hello")
    assert done.returncode == 1
    assert f"no model folder {name!r}: " in done.stderr
    assert "owner/name" in done.stderr


@pytest.mark.slow
def test_a_draft_model_that_is_not_there_tells_its_own_way_to_the_demo(pyengine: Run) -> None:
    done = pyengine("complete", "--prompt", "Hello", "--draft-model", "tiny")
    assert done.returncode == 1
    assert "the draft model: there is no model folder 'tiny'" in done.stderr
    assert "for the demo model give 'demo'" in done.stderr


def test_a_file_in_place_of_a_folder_is_named_as_one(pyengine: Run, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.bin").touch()
    done = pyengine("complete", "models/small.bin", "--prompt", "Hello")
    assert done.returncode == 1
    assert (
        done.stderr
        == "Error: 'models/small.bin' is a file, and no .gguf: give the folder that it is in\n"
    )


def test_help_of_serve_fits_on_a_screen(pyengine: Run) -> None:
    """The usual options alone, in groups."""
    text = pyengine("serve", "--help").stdout
    assert len(text.splitlines()) <= 60
    for group in ("Network", "Access", "Model", "Device and memory", "Drafts"):
        assert f"\n{group}:\n" in text
    assert "--port" in text
    assert "--help-all" in text
    assert "--tfs" not in text
    assert "--simulated-step-ms" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_marks_of_its_formatting(command: str, pyengine: Run) -> None:
    assert "\\" not in pyengine(command, "--help").stdout
