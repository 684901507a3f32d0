"""A hook of mkdocs: pages that are not in docs/, and links that leave the site.

CONTRIBUTING.md and the like stay where GitHub looks for them, and the page of the command line is
what ``--help`` prints. A link to a file that is no page goes to the repository.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

from pyengine.cli import main

ROOT = Path(__file__).resolve().parents[2]
FROM_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for name in FROM_ROOT:
        files.append(File.generated(config, name, content=(ROOT / name).read_text("utf-8")))
    files.append(File.generated(config, "reference/cli.md", content=command_line()))
    return files


def command_line() -> str:
    """The page of the command line."""
    top = click.Context(main, info_name="pyengine", max_content_width=96, terminal_width=96)
    made = ["# Command line", f"```text\n{main.get_help(top)}\n```"]
    for name, command in main.commands.items():
        context = click.Context(command, top, name, terminal_width=96)
        made += [f"## pyengine {name}", f"```text\n{command.get_help(context)}\n```"]
    return "\n\n".join(made)


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point links at pages of the site, or at the repository.

    Raises:
        FileNotFoundError: A link leads nowhere.
    """
    source = page.file.src_uri
    folder = "" if source in FROM_ROOT else posixpath.dirname(f"docs/{source}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{source} links to {link[1]}, which is not there")
        inside = target if target in FROM_ROOT else target.removeprefix("docs/")
        if files.get_file_from_path(inside) and (target in FROM_ROOT or inside != target):
            to = posixpath.relpath(inside, posixpath.dirname(source) or ".")
        else:
            kind = "tree" if (ROOT / target).is_dir() else "blob"
            to = f"{config['repo_url']}/{kind}/main/{target}"
        return f"]({to}{link[2] or ''})"

    return LINK.sub(moved, markdown)
