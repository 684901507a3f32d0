"""``pyengine complete``, through pipes."""

import json
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from pyengine.chat.answer import ChatAnswer
from pyengine.cli.complete import _as_json
from pyengine.completion import Completion, Usage
from tests.cli.conftest import Run
from tests.cli.terminal import terminal
from tests.programs import PYENGINE, START_S, environment

SIMULATED = ("--device", "simulated", "--simulated-step-ms", "1")  # its text is noise, at once
SLOW = ("--device", "simulated", "--simulated-step-ms", "20")
NOT_DRAFTED = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
QUESTION = "What is the capital of France?"


def test_a_question_through_a_pipe_is_answered(pyengine: Run) -> None:
    done = pyengine("complete", "--chat", "--temperature", "0", given=QUESTION)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout
    assert done.stdout.endswith("\n")


@pytest.mark.slow
def test_json_has_the_same_text_and_its_usage(pyengine: Run) -> None:
    options = (*SIMULATED, "--temperature", "0", "--max-tokens", "12", "--ignore-eos")
    text = pyengine("complete", "--prompt", "The river", *options).stdout
    answer = json.loads(pyengine("complete", "-p", "The river", *options, "--json").stdout)
    assert answer["text"] + "\n" == text
    assert answer["model"] == "pyengine-demo"
    assert answer["finish_reason"] == "length"
    usage = answer["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["completion_tokens_details"] == NOT_DRAFTED


@pytest.mark.slow
def test_the_help_of_json_names_its_fields(pyengine: Run) -> None:
    answer = json.loads(pyengine("complete", *SIMULATED, "-p", "x", "--json").stdout)
    text = " ".join(pyengine("complete", "--help-all").stdout.split())
    assert f"--json Print one JSON object: {', '.join(answer)}, and reasoning if any." in text


@pytest.mark.slow
def test_a_stop_string_ends_the_text(pyengine: Run) -> None:
    greedy = ("--temperature", "0", "--max-tokens", "60")
    ask = ("complete", *SIMULATED, "-p", QUESTION, *greedy, "--json")
    whole = json.loads(pyengine(*ask).stdout)["text"]
    end = whole[20:22]
    cut = json.loads(pyengine(*ask, "--stop", end, "--stop", "never said").stdout)
    assert cut["text"] == whole.partition(end)[0]
    assert cut["finish_reason"] == "stop"


@pytest.mark.slow
def test_penalties_and_bad_words_are_options(pyengine: Run) -> None:
    ask = ("complete", "--chat", "-p", QUESTION, "--temperature", "0", "--max-tokens", "20")
    plain = pyengine(*ask).stdout
    assert "Paris" in plain
    for options in (
        ("--bad-words", "Paris", "--bad-words", "London"),
        ("--logit-bias", '{"483": -100}'),
        ("--repetition-penalty", "2.5", "--presence-penalty", "1"),
    ):
        done = pyengine(*ask, *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout != plain
    done = pyengine("complete", "-p", "x", "--logit-bias", "5")
    assert done.returncode == 2
    assert "--logit-bias" in done.stderr


@pytest.mark.slow
def test_the_bar_shows_no_number_before_it_has_one() -> None:
    with terminal("complete", *SIMULATED, "-p", "x", "--max-tokens", "1") as screen:
        screen.expect("loading pyengine-demo")
        assert screen.wait() == 0
        assert "?" not in screen.text()
        assert "bytes" not in screen.text()


@pytest.mark.slow
def test_settings_reach_the_engine(pyengine: Run) -> None:
    done = pyengine("complete", *SIMULATED, "-p", "x" * 600, "--max-context", "64")
    assert done.returncode == 1
    assert "64" in done.stderr
    done = pyengine("complete", *SIMULATED, "-p", "x" * 600, PYENGINE_MAX_CONTEXT="64")
    assert done.returncode == 1
    assert "64" in done.stderr


def test_an_invalid_parameter_is_told_before_anything_is_loaded(pyengine: Run) -> None:
    done = pyengine("complete", "./nowhere", "-p", "x", "--temperature", "9")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last == "Error: 'temperature' must be between 0 and 2, not 9.0 (option --temperature)"


@pytest.mark.slow
def test_an_empty_prompt_is_refused(pyengine: Run) -> None:
    done = pyengine("complete", *SIMULATED, given="")
    assert (done.returncode, done.stderr) == (1, "Error: the prompt is empty\n")


def test_json_has_the_reasoning() -> None:
    usage = Usage(3, 0, 2)
    answer = ChatAnswer("Yes.", [1, 2], "stop", None, None, usage, reasoning="Hm.")
    made = json.loads(_as_json("m", answer))
    assert (made["text"], made["reasoning"]) == ("Yes.", "Hm.")
    whole = Completion("Yes.", [1, 2], "stop", None, None, usage)
    assert "reasoning" not in json.loads(_as_json("m", whole))


def test_json_has_the_drafts() -> None:
    usage = Usage(3, 0, 9, accepted_drafts=4, rejected_drafts=2)
    made = json.loads(_as_json("m", Completion("Yes.", [1, 2], "stop", None, None, usage)))
    assert made["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 4,
        "rejected_prediction_tokens": 2,
    }


@pytest.mark.slow
def test_an_interrupt_ends_it_without_a_word() -> None:
    process = subprocess.Popen(
        [*PYENGINE, "complete", *SLOW, "-p", "Go on", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # A shell without job control has what it runs in the background ignore it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.read(1)  # it answers, and would for most of a minute
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=START_S)
    assert (process.returncode, said) == (130, "")


@pytest.mark.slow
def test_a_model_may_say_how_it_is_sampled(pyengine: Run, demo_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_model, folder)
    (folder / "generation_config.json").write_text('{"top_k": 1, "repetition_penalty": 1.25}')
    options = ("complete", str(folder), "-p", "The river", "--max-tokens", "24")
    penalty = ("--repetition-penalty", "1.25")
    exact = pyengine(*options, "--temperature", "0", *penalty).stdout
    assert exact
    assert pyengine(*options).stdout == exact
    others = ("--temperature", "0", "--generation-config", "none")
    assert pyengine(*options, *others).stdout != exact
    assert pyengine(*options, *others, *penalty).stdout == exact
