"""Help of commands with many options: in groups, and whole by ``--help-all`` alone."""

import re
from typing import ClassVar

import click

USUAL = frozenset(
    "host port workers tls_cert tls_key api_key api_key_file log_level store temperature max_tokens"
    " mode served_name chat_format device dtype quantization max_sequences kv_cache_mib max_context"
    " tensor_parallel speculation draft_model".split()
)
"""Settings that ``--help`` shows. It shows a command's own options, too."""
OWN, HELP = "Options", "Help"
GROUPS = {
    "host": "Network",
    "api_key": "Access",
    "body_bytes": "Limits of requests",
    "page": "Page, logs and store",
    "temperature": "Sampling",
    "load_format": "Model",
    "device": "Device and memory",
    "speculation": "Drafts",
    "step_timeout_s": "Engine",
    "help_all": HELP,
}
"""The groups of options, each by the option that it begins with."""


class GroupedCommand(click.Command):
    """A command whose help has groups; ``--help`` has the usual options, in a few words.

    Attributes:
        own: The groups of its own options, as :data:`GROUPS` has those of settings.
    """

    own: ClassVar[dict[str, str]] = {}

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """All parameters, with ``--help-all`` before ``--help``."""
        *others, last = super().get_params(ctx)
        text = "Show all options, with their variables, and exit."
        flags = {"is_flag": True, "is_eager": True, "expose_value": False}
        return [*others, click.Option(["--help-all"], callback=_show_all, help=text, **flags), last]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by their groups."""
        whole, group, groups = ctx.meta.get(__name__), OWN, GROUPS | self.own
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            group = groups.get(param.name or "", group)
            always = (OWN, HELP, *self.own.values())
            shown = whole or group in always or param.name in USUAL
            if shown and isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                flags, text = record
                text = text if whole else re.split(r"[.:;,]? \[|[.:;,] ", text)[0]
                rows.setdefault(group, []).append((flags, text))
        for title, found in rows.items():
            with formatter.section(title):
                formatter.write_dl(found)


def _show_all(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        ctx.meta[__name__] = True
        click.echo(ctx.get_help())
        ctx.exit()
