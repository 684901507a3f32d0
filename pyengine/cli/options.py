"""The options that commands share: flags for the settings a person needs, and for sampling.

A flag's type and help come from the field it sets and its docstring, so that it cannot disagree
with the engine.
"""

import inspect
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import fields
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from pyengine._core import DEFAULT_PROPOSERS, PROPOSERS
from pyengine.cli.parameters import settings
from pyengine.devices import device_names, find_device
from pyengine.errors import ConfigError, InvalidRequestError
from pyengine.sampling import MODEL_DEFAULTS, SamplingParams
from pyengine.settings.choices import ChatFormatName
from pyengine.settings.config import EngineConfig
from pyengine.settings.environment import ENVIRONMENT_PREFIX, split_names
from pyengine.settings.modes import Mode

# A flag with more choices lists them in its help text only.
SHOWN_CHOICES = 6

Command = TypeVar("Command", bound=Callable[..., Any])

# Settings that the library and variables have alone.
_WITHOUT_FLAG = frozenset(
    "model num_blocks block_size prefill_chunk prefill_beside_decodes grammar_timeout_s"
    " grammar_cache_mib _adaptive_drafts".split()
)
ENGINE_OPTIONS: dict[str, Any] = {
    field.name: field.type for field in fields(EngineConfig) if field.name not in _WITHOUT_FLAG
}
"""The type of each setting of the engine that has a flag."""
_NAMES = {
    "chat_format": f"The names: {', '.join(get_args(ChatFormatName))}.",
    "speculation": "The names, with commas between: "
    + "; ".join(f"{name} ({what})" for name, what in PROPOSERS.items())
    + f"; or none. None is {', '.join(DEFAULT_PROPOSERS)}, and draft_model where there is one.",
}


def model_argument(command: Command) -> Command:
    """The MODEL argument of every command."""
    return click.argument("model", required=False)(command)


def engine_options(mode: Mode) -> Callable[[Command], Command]:
    """The flags for :data:`ENGINE_OPTIONS`; what was not given arrives as None.

    Args:
        mode: The command's default mode; see :func:`engine_config`.
    """
    return setting_flags(EngineConfig, ENGINE_OPTIONS, mode=mode)


def setting_flags(
    kind: type[Any], types: dict[str, Any], **defaults: Any
) -> Callable[[Command], Command]:
    """The flags of a configuration's settings, with what its docstring says of them.

    Args:
        kind: The configuration.
        types: The settings and their types.
        defaults: Defaults that are not those of the configuration.
    """
    texts = _help_texts(kind, types)
    usual: dict[str, Any] = {field.name: field.default for field in fields(kind)} | defaults

    def add(command: Command) -> Command:
        for name in reversed(types):
            words = [texts.get(name, "")]  # python -OO has no docstrings
            words += [_NAMES[name]] if name in _NAMES else []
            if (value := usual[name]) not in (None, "", (), "auto"):
                shown = f"{value >> 20} MiB" if name.endswith("_bytes") else value
                shown = ("no", "yes")[value] if isinstance(value, bool) else shown
                words.append(f"[default: {shown}] ")
            text = " ".join([*words, f"[env: {ENVIRONMENT_PREFIX}{name.upper()}]"])
            command = flag_of(name, types[name], text, negatable=True)(command)
        return command

    return add


def sampling_options(command: Command) -> Command:
    """A flag for every sampling parameter; what was not given arrives as None."""
    types = {field.name: field.type for field in msgspec.structs.fields(SamplingParams)}
    texts = _help_texts(SamplingParams, types)
    for name, default in reversed(settings(SamplingParams()).items()):
        text = re.split(r"(?<=\.) ", texts.get(name, ""))[0]  # python -OO has no docstrings
        if isinstance(default, int | float) and not isinstance(default, bool):
            usual = "the model's, or " if name in MODEL_DEFAULTS else ""
            text += f" [default: {usual}{default:g}]"
        command = flag_of(name, types[name], text, negatable=default is True)(command)
    return command


def engine_config(model: str | None, given: Mapping[str, Any], mode: Mode) -> EngineConfig:
    """The configuration: flags over the environment over the command's ``mode``.

    Raises:
        click.UsageError: A value is out of its range; the message names flag and variable.
    """
    flags = {name: given[name] for name in ENGINE_OPTIONS}
    try:
        config = EngineConfig.from_environment({"mode": mode}, model=model, **flags)
        config.limits  # noqa: B018 - raises where limits do not go together
    except ConfigError as error:
        where = ""
        if error.param in ENGINE_OPTIONS and flags[error.param] is not None:
            where = f" (option {spelled(error.param)})"
        raise click.UsageError(f"{error.message}{where}") from error
    return config


def sampling_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that the flags of :func:`sampling_options` give, by name.

    Raises:
        click.UsageError: A parameter is out of its range; the message names the flag.
    """
    values = {name: given[name] for name in settings(SamplingParams())}
    values = {name: value for name, value in values.items() if value is not None}
    try:
        SamplingParams(**values).validate()
    except InvalidRequestError as error:
        where = f" (option {spelled(error.param)})" if error.param in values else ""
        raise click.UsageError(f"{error.message}{where}") from error
    return values


def numbers_of(
    what: str,
) -> Callable[[click.Context, click.Parameter, str | None], tuple[int, ...]]:
    """The callback of an option that takes numbers with commas between; none is ().

    Args:
        what: What the numbers count, and an example.
    """

    def read(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
        try:
            numbers = () if text is None else tuple(int(part) for part in text.split(","))
        except ValueError:
            numbers = (0,)
        if min(numbers, default=1) < 1:
            raise click.BadParameter(f"give numbers of {what}")
        return numbers

    return read


def spelled(name: str) -> str:
    """The flag that sets the field ``name``."""
    return f"--{name.replace('_', '-')}"


def described(kind: type) -> dict[str, str]:
    """The text of each attribute in the docstring of ``kind``."""
    attributes = (
        inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    )
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", attributes, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in entries}


def _help_texts(kind: type, flags: Container[str]) -> dict[str, str]:
    """These texts without marks, with the names of attributes that are ``flags`` as such."""

    def plain(quoted: re.Match[str]) -> str:
        return spelled(quoted[1]) if quoted[1] in flags else quoted[1]

    quotes = re.compile(r"(?::\w+:)?`{1,2}~?([^`]+)`{1,2}")
    return {name: quotes.sub(plain, text) for name, text in described(kind).items()}


def flag_of(name: str, hint: Any, text: str, *, negatable: bool) -> Callable[[Command], Command]:
    """A click option for a field of type ``hint``, None unless given."""
    flag = spelled(name)
    kind = next((arg for arg in get_args(hint) if arg is not NoneType), hint)
    if name == "device":
        return click.option(flag, type=_Device(), default=None, help=text)
    if get_origin(hint) is dict:
        text += """ A JSON object, such as '{"5": -100}'."""
        return click.option(flag, type=_Json(hint), default=None, help=text)
    if names := next((get_args(t) for t in (hint, kind) if get_origin(t) is Literal), ()):
        metavar = None if len(names) <= SHOWN_CHOICES else "NAME"
        choice = click.Choice(names)
        return click.option(flag, type=choice, metavar=metavar, default=None, help=text)
    if get_origin(hint) is tuple:
        text += " May be given several times."
        # Without the flag click has an empty tuple, which would hide the variable.
        return click.option(
            flag, type=kind, multiple=True, help=text, callback=lambda _, __, given: given or None
        )
    if get_origin(kind) is tuple:
        return click.option(flag, type=split_names, metavar="NAMES", default=None, help=text)
    if kind is bool:
        spelling = f"{flag}/--no-{flag[2:]}" if negatable else flag
        return click.option(spelling, is_flag=True, default=None, help=text)
    return click.option(flag, type=kind, default=None, help=text)


class _Device(click.ParamType):  # type: ignore[type-arg]
    """The name of a device, which may be that of a package outside."""

    name = "device"

    def get_metavar(self, param: Any, ctx: Any) -> str:
        """All names, listed only when help is shown."""
        return f"[{'|'.join(device_names())}]"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The name, or a message that lists those that there are."""
        try:
            find_device(value)
        except ConfigError as error:
            self.fail(error.message, param, ctx)
        return value


class _Json(click.ParamType):  # type: ignore[type-arg]
    """A value of some type, in JSON."""

    name = "JSON"

    def __init__(self, hint: Any) -> None:
        self._hint = hint

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value, or a message that says what is wrong with it."""
        if not isinstance(value, str):
            return value
        try:
            return msgspec.json.decode(value, type=self._hint)
        except msgspec.MsgspecError as error:
            return self.fail(f"{value!r}: {error}", param, ctx)
