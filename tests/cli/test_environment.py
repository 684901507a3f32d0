"""Every documented variable of the environment does what it says, or is refused by name."""

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import pytest
from click.testing import CliRunner

from pyengine.cli.options import ENGINE_OPTIONS, engine_config, engine_options
from pyengine.cli.server_options import server_config, server_options
from pyengine.errors import ConfigError
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import SERVER_TYPES, ServerConfig

TYPES = {field.name: field.type for kind in (EngineConfig, ServerConfig) for field in fields(kind)}
DEFAULTS = {
    field.name: field.default for kind in (EngineConfig, ServerConfig) for field in fields(kind)
}
# Settings that need others, or a value that no type tells.
TEXTS = {
    "device": "simulated",
    "block_size": "32",
    "max_tokens_per_step": "512",
    "gpu_memory_fraction": "0.5",
    "graph_memory_mib": "3",
    "simulated_acceptance": "0.5",
    "root_path": "/llm",
    "speculation": "none",
    "api_key": "sk-secret-1,sk-secret-2",
    "logits_processors": "json:loads",
    "adapter": "one=a,two=b",
}
NEEDED = {"expert_parallel": {"tensor_parallel": "2"}}
FILES = ("api_key_file", "tls_cert", "tls_key")


@click.command()
@engine_options("server")
@server_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> None:
    """Both configurations of a server."""
    context.obj["engine"] = engine_config(None, given, "server")
    context.obj["server"] = server_config(given)


def configured(*arguments: str, **variables: str) -> dict[str, Any]:
    """The settings that a server has with flags and variables, by name."""
    made: dict[str, Any] = {}
    environment = {f"PYENGINE_{name.upper()}": text for name, text in variables.items()}
    CliRunner().invoke(command, arguments, obj=made, env=environment, catch_exceptions=False)
    assert made.keys() == {"engine", "server"}
    return {
        field.name: getattr(made[kind], field.name) for kind in made for field in fields(made[kind])
    }


def text_for(name: str) -> str:
    """A value for a setting that is not its default."""
    hint, default = TYPES[name], DEFAULTS[name]
    kinds = [hint, *get_args(hint)]
    if name in TEXTS:
        return TEXTS[name]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return next(str(each) for each in get_args(kind) if each not in (default, "server"))
    if bool in kinds:
        return "off" if default else "yes"
    if int in kinds or float in kinds:
        return "7"
    return "one,two" if any(get_origin(kind) is tuple for kind in kinds) else "text"


@pytest.mark.parametrize("name", [*ENGINE_OPTIONS, *SERVER_TYPES])
def test_variable_sets_its_setting(name: str, tmp_path: Path) -> None:
    text = text_for(name)
    variables = {name: text, **NEEDED.get(name, {})}
    if name in FILES:
        (tmp_path / "file").write_text("")
        text = str(tmp_path / "file")
        variables = dict.fromkeys([name] if name == "api_key_file" else FILES[1:], text)
    without = configured("--device", "simulated") if name == "device" else configured()
    value = configured(**variables)[name]
    assert value != DEFAULTS[name]
    assert name == "device" or value != without[name]
    if isinstance(value, tuple):
        assert value == (() if text == "none" else tuple(text.split(",")))
    elif not isinstance(value, bool):
        assert str(value).removesuffix(".0") == text


def test_flag_goes_before_its_variable() -> None:
    found = configured("--served-name", "a", "--port", "1", served_name="b", port="2")
    assert (found["served_name"], found["port"]) == (("a",), 1)


@pytest.mark.parametrize(
    ("text", "value"), [("yes", True), ("ON", True), ("no", False), ("0", False)]
)
def test_words_for_flags(text: str, value: bool) -> None:
    assert configured(page=text)["page"] is value


def test_variables_of_kubernetes_services_are_passed_over() -> None:
    found = configured(
        service_host="10.96.0.12",
        service_port="80",
        service_port_http="80",
        port="tcp://10.96.0.12:80",
        port_80_tcp="tcp://10.96.0.12:80",
        port_80_tcp_proto="tcp",
        port_80_tcp_port="80",
        port_80_tcp_addr="10.96.0.12",
        engine_service_host="10.96.0.13",
        engine_port="tcp://10.96.0.13:80",
        engine_port_8000_tcp_addr="10.96.0.13",
    )
    assert found == configured()


def test_near_names_and_choices_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENGINE_SERVED_NAMES", "a")
    with pytest.raises(ConfigError, match="did you mean PYENGINE_SERVED_NAME"):
        EngineConfig.from_environment()
    monkeypatch.delenv("PYENGINE_SERVED_NAMES")
    monkeypatch.setenv("PYENGINE_MODE", "fast")
    with pytest.raises(ConfigError, match=r"it may be .*server"):
        EngineConfig.from_environment()
