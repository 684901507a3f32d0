"""All that a first GPU is asked, in one command: the tests, the bench by each attention backend.

::

    make first-light        writes build/first-light/
        tests.txt           pytest tests/gpu
        triton.json         the whole bench, attention by Triton
        auto.json           the parts that attend, by what is chosen: FlashInfer, where it is there
        figures.md          of these: what docs/PERFORMANCE.md is to have

A step that fails costs the others nothing, and is named in the page. Without FlashInfer, or where
its kernels cannot be had, the last bench is Triton's again, and the page says so.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.gpu.table import heading, shown

FOLDER = Path("build/first-light")
ATTENDING = ("kernels", "decode", "overhead")
NEAR = 1.10
"""Triton's attention is to be the default if a token takes at most this many times as long."""

Document = Mapping[str, Any]


def main() -> int:
    """The command; its exit status is 0 if every step ended well."""
    parser = argparse.ArgumentParser(prog="python -m benches.gpu.first_light", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--bench", nargs=argparse.REMAINDER, default=[], help="more for the bench")
    given = parser.parse_args()
    folder: Path = given.folder
    folder.mkdir(parents=True, exist_ok=True)
    bench = [sys.executable, "-m", "benches.gpu", *given.bench]
    only = [word for name in ATTENDING for word in ("--only", name)]
    files = {"triton": folder / "triton.json", "auto": folder / "auto.json"}
    failed = []
    with (folder / "tests.txt").open("w") as log:
        tests = [sys.executable, "-m", "pytest", "tests/gpu", "-q"]
        if subprocess.run(tests, stdout=log, stderr=log, check=False).returncode:
            failed.append(f"tests/gpu: see {folder / 'tests.txt'}")
    for name, more in (("triton", []), ("auto", only)):
        command = [*bench, *more, "--attention", name, "--json", str(files[name])]
        if subprocess.run(command, check=False).returncode:
            failed.append(f"the bench by {name}")
    documents = {
        name: json.loads(file.read_text()) for name, file in files.items() if file.exists()
    }
    (folder / "figures.md").write_text(page(documents, failed))
    print((folder / "figures.md").read_text())
    return len(failed) > 0


def page(documents: Mapping[str, Document], failed: Sequence[str]) -> str:
    """The figures as a part of docs/PERFORMANCE.md."""
    texts = [f"**Failed**: {what}." for what in failed]
    for name, document in documents.items():
        machine = document["machine"]
        where = ", ".join(f"{key} {value}" for key, value in machine.items() if value)
        texts.append(f"### Attention: {name}\n\n{document['setup']['begun']}; {where}")
        if any(target["measured"] is not None for target in document["targets"]):
            texts.append(markdown(document["targets"]))
        for part, result in document["parts"].items():
            why = f", {result['status']}: {result['why']}" if result["why"] else ""
            texts.append(f"`{part}`: {result['question']}{why}")
            if result["rows"]:
                texts.append(markdown(result["rows"]))
    if (text := compared(documents)) is not None:
        texts.append(text)
    return "\n\n".join(texts) + "\n"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of those columns in which anything stands."""
    columns = [name for name in rows[0] if any(row.get(name) is not None for row in rows)]
    lines = [
        [heading(name) for name in columns],
        ["---"] * len(columns),
        *([shown(name, row.get(name)).replace("|", "/") for name in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def compared(documents: Mapping[str, Document]) -> str | None:
    """Whether Triton's attention is near enough to be the default, plans counted; None where the
    bench by another backend has no figures.
    """
    if not {"triton", "auto"} <= set(documents):
        return None
    chosen = str(documents["auto"]["machine"].get("attention", ""))
    if not chosen.startswith("flashinfer"):
        return f"FlashInfer was not measured: attention was {chosen or 'not told'}."
    ours, theirs = (
        {
            (row["sequences"], row["context"]): row["token_s"]
            for row in documents[name]["parts"].get("decode", {}).get("rows", ())
            if row["token_s"] is not None
        }
        for name in ("triton", "auto")
    )
    ratios = {at: ours[at] / theirs[at] for at in ours if at in theirs}
    if not ratios:
        return None
    at, worst = max(ratios.items(), key=lambda each: each[1])
    verdict = "can be the default" if worst <= NEAR else "is not the default"
    return (
        f"By Triton a token takes at most {worst:.2f} times as long as by FlashInfer, its plans "
        f"counted, with {at[0]} sequences at {at[1]} tokens: Triton's attention {verdict}, by "
        f"the rule of {NEAR:.2f}."
    )


if __name__ == "__main__":
    sys.exit(main())
