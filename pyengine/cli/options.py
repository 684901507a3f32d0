"""The options that commands share: flags for the settings a person needs, and for sampling.

A flag's type comes from the field it sets, so that it cannot disagree with the engine. Sampling has
a flag for every parameter, with the first sentence of what its docstring says of it.
"""

import inspect
import re
from collections.abc import Callable, Mapping
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

ENGINE_OPTIONS: dict[str, str] = {
    "mode": "Preset of limits: 1, 16 or 256 sequences at once (1,024 on a GPU of more than "
    "64 GiB), and as much cache [default: {mode}].",
    "load_format": "'dummy' fills the weights at random, to measure a model without its files; "
    "MODEL may then also be llama-3-8b, llama-3-70b, qwen3.5-0.8b, qwen3.5-35b-a3b or "
    "glm-4.7-flash.",
    "served_name": "Name that the model answers to [default: the folder's, or the hub's].",
    "chat_format": "How the model marks tool calls and reasoning [default: by its chat "
    "template]: 'none' leaves its answers as they are, or one of "
    + ", ".join(name for name in get_args(ChatFormatName) if name != "none")
    + ".",
    "special_tokens_in_content": "Special tokens such as <|im_end|> that messages spell out are "
    "'text' [default], or the tokens themselves ('allow'), which lets text forge turns.",
    "template_timeout_s": "Seconds that the chat template may take for a conversation "
    "[default: 2].",
    "max_template_characters": "Longest prompt that the chat template may make [default: 8388608].",
    "generation_config": "Take the sampling parameters that requests leave out from the model's "
    "generation_config.json [default: auto], or not ('none').",
    "device": "Device of model steps [default: a GPU if there is one]; 'simulated' needs no "
    "weights and measures all the rest.",
    "dtype": "Type of weights and computation; 'auto' is float32 on the CPU, bfloat16 on a GPU.",
    "quantization": "Quantize dense weights as they are loaded, in groups of 32 "
    "[default: as they are stored].",
    "max_sequences": "Most sequences in one step [default: the mode's].",
    "max_tokens_per_step": "Most tokens in one step [default: the mode's].",
    "kv_cache_mib": "Memory of the KV cache, in MiB [default: the mode's; on a GPU, what is left].",
    "kv_cache_dtype": "Type of the KV cache on a GPU [default: that of the weights].",
    "max_waiting": "Most requests that wait; one more is refused at once [default: 4096].",
    "max_context": "Longest prompt and answer together, in tokens [default: the model's]; more "
    "than that on the simulated device.",
    "attention": "Attention backend on a GPU [default: the fastest that the machine supports].",
    "gpu_memory_fraction": "Share of the GPU's memory that the engine may use [default: 0.9].",
    "graph_memory_mib": "Memory of CUDA graphs, in MiB; 0 for no graphs [default: 1024].",
    "tensor_parallel": "GPUs, or processes on the CPU, that share the model [default: 1].",
    "expert_parallel": "With --tensor-parallel, give each GPU or process whole experts of a "
    "mixture, not a part of every one [default: no].",
    "threads": "CPU threads of a model step, with --tensor-parallel of each process [default: the "
    "machine's cores, divided among the processes].",
    "prefix_cache": "Share the cache of equal prompt prefixes [default: yes].",
    "snapshot_interval": "Tokens between snapshots of states, for models whose layers have states; "
    "0 for none between prompts' ends [default: by the weight of a state].",
    "speculation": "Draft token sources, separated by commas: "
    + "; ".join(f"{name} ({what})" for name, what in PROPOSERS.items())
    + f"; or none [default: {', '.join(DEFAULT_PROPOSERS)}, and draft_model if there is one].",
    "draft_model": "Small model with the same tokenizer that drafts tokens: folder, hub name, or "
    "'demo'.",
    "max_draft": "Most draft tokens of a sequence in one step [default: 8].",
    "step_timeout_s": "Seconds after which a step counts as hung, and the engine is replaced "
    "[default: 600].",
    "logits_processors": "Logits processor that requests may ask for, 'module:name': a class or "
    "function that Python imports.",
    "adapter": "Low-rank adapter to load, 'name=folder', which requests ask for as their model.",
    "adapter_memory_mib": "Memory of loaded adapters, in MiB [default: 1024].",
    "simulated_step_ms": "Milliseconds that a step of the simulated device takes [default: 8].",
    "simulated_acceptance": "Share of draft tokens that are right on the simulated device "
    "[default: 0].",
    "simulated_draft_ms": "Milliseconds that each pass of the simulated device's draft model takes "
    "[default: 0].",
}


def model_argument(command: Command) -> Command:
    """The MODEL argument of every command."""
    return click.argument("model", required=False)(command)


def engine_options(mode: Mode) -> Callable[[Command], Command]:
    """The flags for :data:`ENGINE_OPTIONS`; what was not given arrives as None.

    Args:
        mode: The command's default mode; see :func:`engine_config`.
    """
    types = {field.name: field.type for field in fields(EngineConfig)}

    def add(command: Command) -> Command:
        for setting, text in reversed(ENGINE_OPTIONS.items()):
            text = f"{text.format(mode=mode)}  [env: {ENVIRONMENT_PREFIX}{setting.upper()}]"
            command = flag_of(setting, types[setting], text, negatable=True)(command)
        return command

    return add


def sampling_options(command: Command) -> Command:
    """A flag for every sampling parameter; what was not given arrives as None."""
    types = {field.name: field.type for field in msgspec.structs.fields(SamplingParams)}
    texts = _first_sentences(SamplingParams)
    for name, default in reversed(settings(SamplingParams()).items()):
        text = texts.get(name, "")  # python -OO has no docstrings
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


def _first_sentences(kind: type) -> dict[str, str]:
    """The first of those sentences, with the names of attributes as flags."""
    return {
        name: re.sub(r"``(\w+)``", lambda field: spelled(field[1]), re.split(r"(?<=\.) ", text)[0])
        for name, text in described(kind).items()
    }


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
