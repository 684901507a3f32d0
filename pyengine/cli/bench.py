"""``pyengine bench``: the load that a server takes, and what its clients see of it."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyengine.cli.options import numbers_of
from pyengine.cli.terminal import working
from pyengine.cli.trace_options import check_trace_options, trace_options

if TYPE_CHECKING:
    from pyengine.benchmark.load import Run, Target
    from pyengine.profiling.workload import Job

GOALS = ("ttft", "tpot", "e2el")


def _goals(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    goals: dict[str, float] = {}
    for text in given:
        name, _colon, value = text.partition(":")
        try:
            goals[name] = float(value)
        except ValueError:
            name = ""
        if name not in GOALS:
            raise click.BadParameter(f"give NAME:MS with a name of {', '.join(GOALS)}")
    return goals


@click.command(short_help="Measure a running server: throughput and latencies.")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--peer", metavar="URL", help="Measure this server too, in turn with the other.")
@click.option("--model", help="Model that requests name [default: the first that is served].")
@click.option("--api-key", envvar="PYENGINE_BENCH_API_KEY", help="Key of both servers.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, path_type=Path),
    help="Model folder or tokenizer.json whose token ids are sent [default: the demo's].",
)
@click.option(
    "--requests", type=click.IntRange(1), default=100, show_default=True, help="Requests."
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Requests a second on average, as a Poisson process [default: all at once].",
)
@click.option(
    "--concurrency",
    callback=numbers_of("requests, such as 8 or 1,8,64"),
    metavar="N[,N,...]",
    help="Most requests at a time; several are measured one after the other.",
)
@click.option(
    "--input-tokens",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Length of every prompt.",
)
@click.option(
    "--output-tokens",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Length of every answer.",
)
@trace_options
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of measurements; with --peer, the servers take turns.",
)
@click.option(
    "--goodput",
    "goals",
    multiple=True,
    callback=_goals,
    metavar="NAME:MS",
    help="Objective of goodput, such as ttft:200: ttft, tpot or e2el in ms; repeatable.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of arrivals and tokens.")
@click.option(
    "--json",
    "json_file",
    metavar="FILE",
    help="Write the results with the keys of vLLM's bench; - is stdout.",
)
@click.option("--detailed", is_flag=True, help="Write each request to the JSON too.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw the distributions: a .png or .svg file; needs pyengine-llm[plot].",
)
def bench(url: str, json_file: str | None, plot: Path | None, detailed: bool, **given: Any) -> None:
    """Offer load to the server at URL and measure what its clients see.

    Prompts are random token ids; answers have their full length. Any server with OpenAI's text
    completions does that takes token ids and ignore_eos: pyengine, vLLM, SGLang, llama.cpp.

        pyengine bench http://127.0.0.1:8000 --rate 20 --requests 500 --goodput ttft:200
    """
    import msgspec
    from rich.console import Console

    from pyengine.benchmark.result import details, result
    from pyengine.benchmark.table import table

    check_trace_options({"rate", "requests", "input_tokens", "output_tokens"})
    measured = asyncio.run(_measure(url, given))
    rate = None if given["trace"] else given["rate"]
    results = [
        result(
            one.target, one.runs, rate=rate, concurrency=one.concurrency,
            goals=given["goals"], tokenizer=str(given["tokenizer"] or "pyengine-demo"),
        )
        | (details(one.runs) if detailed else {})
        for one in measured
    ]  # fmt: skip
    if plot is not None:
        from pyengine.benchmark.plot import plot as draw

        draw(plot, results, [one.runs for one in measured])
    if json_file is not None:
        text = msgspec.json.format(
            msgspec.json.encode(results[0] if len(results) == 1 else results)
        )
        if json_file == "-":
            sys.stdout.buffer.write(text + b"\n")
            sys.stdout.flush()
        else:
            Path(json_file).write_bytes(text + b"\n")
    if json_file != "-":
        Console().print(table(results))
    if errors := {seen.error for one in measured for run in one.runs for seen in run.seen} - {None}:
        click.echo(f"failed: {next(iter(errors))}", err=True)
        sys.exit(1)


@dataclass
class _Measured:
    """The runs against one server, with one limit of requests at a time."""

    target: "Target"
    concurrency: int | None
    runs: "list[Run]"


async def _measure(url: str, given: dict[str, Any]) -> list[_Measured]:
    """Every combination of server and concurrency; in each round, all of them."""
    from pyengine.benchmark.load import offer, target

    urls = [url, *filter(None, [given["peer"]])]
    targets = [await target(each, given["model"], given["api_key"]) for each in urls]
    made = [_Measured(each, n, []) for n in given["concurrency"] or [None] for each in targets]
    vocab_size = _vocab_size(given["tokenizer"])
    for number in range(given["rounds"]):
        for place, one in enumerate(made):
            # Servers get the same requests; no two rounds or limits do, for caches would know them.
            seed = given["seed"] + number * len(made) + place // len(targets)
            jobs = _jobs(given, targets, vocab_size, seed)
            with working(f"{one.target.url}: {len(jobs)} requests"):
                one.runs.append(await offer(one.target, jobs, one.concurrency))
    return made


def _vocab_size(path: Path | None) -> int:
    """How many token ids a tokenizer has that are no special ones."""
    import tokenizers

    from pyengine.demo import MODEL_PATH
    from pyengine.errors import ConfigError

    path = MODEL_PATH if path is None else path
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return int(tokenizers.Tokenizer.from_file(str(path)).get_vocab_size(False))
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception
        raise ConfigError(f"no tokenizer in {path}: {error}") from None


def _jobs(
    given: dict[str, Any], targets: "list[Target]", vocab_size: int, seed: int
) -> "list[Job]":
    from pyengine.profiling.workload import arrivals, read_trace

    if given["trace"] is None:
        return arrivals(
            given["requests"], rate=given["rate"], prompt_tokens=given["input_tokens"],
            answer_tokens=given["output_tokens"], vocab_size=vocab_size, seed=seed,
        )  # fmt: skip
    contexts = [each.max_context for each in targets if each.max_context is not None]
    workload = read_trace(given["trace"], given["limit"]).workload(
        vocab_size=vocab_size,
        max_context=min(contexts, default=1 << 31),
        rate_scale=given["rate_scale"],
        clip=given["clip"],
        seed=seed,
    )
    return workload.jobs
