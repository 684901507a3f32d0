"""English text with a permissive licence: docstrings of the standard library.

The standard library's source lies on every machine that runs Python, under the
PSF licence; its docstrings are read as text, nothing is imported or executed.
"""

import ast
import functools
import re
import sysconfig
from pathlib import Path

__all__ = ["paragraphs", "stdlib_words"]

# Modules with much prose in their docstrings; a fixed list, so that a change
# of the library's files elsewhere does not change the data.
_MODULES = (
    "argparse ast base64 bisect calendar cmd code codecs collections/__init__ "
    "concurrent/futures/_base configparser contextlib copy csv dataclasses datetime decimal "
    "difflib doctest email/message enum filecmp fileinput fnmatch fractions ftplib functools "
    "getopt glob graphlib gzip hashlib heapq http/client http/cookiejar http/server imaplib "
    "inspect ipaddress json/__init__ json/decoder json/encoder keyword linecache locale "
    "logging/__init__ logging/handlers mailbox mimetypes multiprocessing/pool netrc ntpath "
    "numbers operator optparse os pathlib pdb pickle pkgutil platform plistlib poplib posixpath "
    "pprint profile pstats queue random reprlib sched secrets selectors shelve shlex shutil "
    "smtplib socket socketserver ssl statistics string subprocess tarfile tempfile textwrap "
    "threading timeit tokenize traceback turtle typing unittest/case unittest/mock urllib/parse "
    "urllib/request uuid warnings wave weakref webbrowser xml/dom/minidom xmlrpc/client zipfile "
    "zipimport asyncio/base_events asyncio/events asyncio/locks asyncio/queues asyncio/streams "
    "asyncio/tasks"
).split()


@functools.cache
def paragraphs() -> tuple[str, ...]:
    """Paragraphs of prose of 40 to 600 characters, lines joined, in a fixed order."""
    found: dict[str, None] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for module in _MODULES:
        path = root / f"{module}.py"
        if not path.exists():
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for part in (ast.get_docstring(node) or "").split("\n\n"):
                    text = " ".join(part.split())
                    prose = sum(c.isalpha() or c == " " for c in text) > 0.93 * len(text)
                    if 40 <= len(text) <= 600 and prose and ">>>" not in text:
                        found[text] = None
    return tuple(found)


@functools.cache
def stdlib_words() -> tuple[str, ...]:
    """Lower-case English-looking words of the prose, each once, sorted."""
    words = {word for text in paragraphs() for word in re.findall(r"\b[a-z]{2,12}\b", text)}
    return tuple(sorted(words))
