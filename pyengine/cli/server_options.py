"""The flags of ``pyengine serve`` for the endpoint: those of :class:`ServerConfig`."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from pyengine.cli.options import flag_of, spelled
from pyengine.errors import ConfigError
from pyengine.settings.environment import ENVIRONMENT_PREFIX
from pyengine.settings.server import SERVER_TYPES, ServerConfig

Command = TypeVar("Command", bound=Callable[..., Any])

SERVER_OPTIONS: dict[str, str] = {
    "host": "Address to listen on [default: 127.0.0.1].",
    "port": "Port to listen on; 0 takes a free one [default: 8000].",
    "uds": "Path of a unix socket to listen on, in place of --host and --port.",
    "tls_cert": "Certificate chain in PEM, for TLS; read again when it changes, and on SIGHUP.",
    "tls_key": "Key of --tls-cert, in PEM.",
    "metrics_port": "Port of /metrics and /debug alone [default: they are at --port; with "
    "--replicas, the one after it].",
    "root_path": "Path at which a proxy has put the server, such as /llm.",
    "workers": "HTTP processes that share the port and the engine [default: 1].",
    "drain_seconds": "Seconds that running requests get to finish when the server stops "
    "[default: 30].",
    "api_key": "Key that clients must send. The list of processes shows it: the variable, or "
    "--api-key-file, keeps it secret.",
    "api_key_file": "TOML file with named keys and their limits; read again when it changes, and "
    "on SIGHUP.",
    "admin_key": "Key of /admin, which is closed without one.",
    "metrics_key": "Key of /metrics and /debug [default: an API key, if there are any].",
    "allow_origin": "Origin of web pages that may use the server, such as https://example.com; "
    "* is any.",
    "allow_host": "Further name that requests may call the server by, in their Host header.",
    "body_bytes": "Longest request body [default: 4 MiB].",
    "file_bytes": "Longest file that is uploaded [default: 64 MiB].",
    "max_connections": "Most connections at once, of each worker [default: 8192].",
    "idle_seconds": "Seconds after which a connection without a request is closed; more than "
    "proxies keep theirs [default: 75].",
    "max_prompts": "Most prompts of one completions request [default: 128].",
    "max_choices": "Most answers of one request, prompts times n [default: 128].",
    "max_tools": "Most tools of one request [default: 1024].",
    "unknown_fields": "'warn' leaves fields out of requests that are not known [default: refuse].",
    "max_messages": "Most messages of one conversation [default: 10000].",
    "trust_request_chat_template": "Take the chat templates that requests bring, within the limits "
    "of the model's own [default: no].",
    "page": "Serve a page to chat at / [default: yes].",
    "log_level": "Least severe of the lines that are logged [default: info].",
    "log_format": "'json' logs an object a line [default: text].",
    "log_prompts": "Log the bodies of requests too [default: no].",
    "store": "File of what clients store: responses, conversations, files, batches [default: "
    "memory; with several workers a temporary file].",
    "store_bytes": "Room for all that is stored, for which the oldest is removed; 0 stores nothing "
    "[default: 256 MiB].",
    "store_seconds": "Seconds that it is kept [default: 30 days].",
    "otlp_endpoint": "Send a span of every request to this OpenTelemetry collector, such as "
    "http://localhost:4318; needs pyengine-llm[otel].",
}


def server_options(command: Command) -> Command:
    """The flags for :data:`SERVER_OPTIONS`; what was not given arrives as None."""
    for setting, text in reversed(SERVER_OPTIONS.items()):
        text = f"{text}  [env: {ENVIRONMENT_PREFIX}{setting.upper()}]"
        command = flag_of(setting, SERVER_TYPES[setting], text, negatable=True)(command)
    return command


def server_config(given: Mapping[str, Any]) -> ServerConfig:
    """The configuration: flags over the environment.

    Raises:
        click.UsageError: A value is out of its range; the message names the flag.
    """
    flags = {name: given[name] for name in SERVER_OPTIONS}
    try:
        return ServerConfig.from_environment(**flags)
    except ConfigError as error:
        where = f" (option {spelled(error.param)})" if error.param in SERVER_OPTIONS else ""
        raise click.UsageError(f"{error.message}{where}") from error
