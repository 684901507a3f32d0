"""``pyengine chat``, in a terminal and through a pipe."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from pyengine.cli.terminal import Words
from tests.cli.conftest import Run
from tests.cli.terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, terminal

FRANCE = "What is the capital of France?"
PROMPT = ">>>"
SIMULATED = ("--device", "simulated", "--simulated-step-ms", "1")  # its answers are noise, at once
ENDLESS = ("--device", "simulated", "--simulated-step-ms", "20", "--ignore-eos")


def test_a_conversation_in_the_terminal(tmp_path: Path) -> None:
    with terminal("chat", "--temperature", "0") as screen:
        screen.expect("pyengine-demo: /help for commands")
        screen.expect(PROMPT)
        screen.press("/stats" + ENTER)
        screen.expect("no answer yet")
        screen.press(FRANCE + ENTER)
        screen.expect("Paris")
        screen.expect(PROMPT)
        screen.press("/stats" + ENTER)
        screen.expect(r"prompt +\d+ tokens, 0 of them cached")
        screen.expect(r"answer +\d+ tokens")
        screen.expect(r"first token after +\d+\.\d ms")
        screen.expect(r"prefill +\d+\.\d tokens/s")
        screen.expect(r"decode +\d+\.\d tokens/s")
        screen.press("/metrics" + ENTER)
        screen.expect(r"num blocks +\d+")
        screen.press("/help" + ENTER)
        for command in ("/reset", "/retry", "/save", "/system", "/set", "/exit", "Ctrl-C"):
            screen.expect(command)
        screen.expect(PROMPT)
        screen.press("/set seed=3" + ENTER)
        screen.expect(r"seed +3\n")
        assert "temperature" not in screen.text().split("/set seed=3")[-1]
        screen.expect(PROMPT)
        screen.press("one" + ALT_ENTER + "two" + ENTER)
        screen.expect(PROMPT)
        screen.press(f"/save {tmp_path / 'talk.json'}" + ENTER)
        screen.expect("4 messages in ")
        screen.press("/retry" + ENTER)
        screen.expect(PROMPT)
        screen.press("/system Be brief." + ENTER)
        screen.expect("new conversation")
        screen.press("/retry" + ENTER)
        screen.expect("there is no message to answer again")
        screen.expect(PROMPT)
        screen.press(CTRL_D)
        assert screen.wait() == 0
    talk = json.loads((tmp_path / "talk.json").read_text())
    assert [turn["role"] for turn in talk] == ["user", "assistant"] * 2
    assert talk[2]["content"] == "one\ntwo"


def test_words_stay_whole_at_the_edge_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", screen := Screen())
    monkeypatch.setenv("COLUMNS", "20")
    words, text = Words(), "It overflows the last column until  日本語 a" + "b" * 30
    for piece in re.findall("..?.?", text):
        words.show(piece)
    lines = [""]
    for back, char in re.findall(r"\x1b\[(\d+)D\x1b\[K|(.)", screen.getvalue(), re.DOTALL):
        if back:
            lines[-1] = lines[-1][: -len(lines[-1].split(" ")[-1])]
        elif char == "\n":
            lines.append("")
        else:
            lines[-1] += char
    whole = ["It overflows the ", "last column until  ", "日本語 "]
    assert lines == [*whole[:-1], whole[-1] + "a" + "b" * 30] or lines == [*whole, "a" + "b" * 30]


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_but_not_the_program() -> None:
    with terminal("chat", *ENDLESS) as screen:
        screen.expect(PROMPT)
        screen.press("Go on" + ENTER)
        screen.expect(r"\n.")  # the answer has begun
        screen.press(CTRL_C)
        screen.expect(r"\[stopped\]")
        screen.expect(PROMPT)
        screen.press("a line thrown away" + CTRL_C)
        screen.press("/stats" + ENTER)
        screen.expect(r"answer 1 of the last 1")
        screen.press("/exit" + ENTER)
        assert screen.wait() == 0


@pytest.mark.slow
def test_a_pipe_is_answered_line_by_line_in_one_conversation(pyengine: Run) -> None:
    lines = f"{FRANCE}\n/stats\n\n{FRANCE}\n/stats\n/reset\n/exit\nnever answered\n"
    done = pyengine("chat", "--temperature", "0", "--max-tokens", "40", given=lines)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout.split("answer 1 of the last 1")[0]
    figures = re.findall(r"prompt +(\d+) tokens, (\d+) of them cached", done.stdout)
    (first, fresh), (again, _), (second, cached) = [(int(a), int(b)) for a, b in figures]
    assert again == first
    assert fresh == 0
    # The second turn has the first before it, whose blocks are cached.
    assert second > first
    assert cached >= first // 16 * 16
    assert done.stdout.endswith("new conversation\n")


@pytest.mark.slow
def test_stats_are_the_engines_and_not_the_readers(pyengine: Run) -> None:
    """A reader that is late finds many tokens at once, which would have come in no time."""
    asked = f"{FRANCE}\n/stats\n/metrics\n"
    done = pyengine("chat", *SIMULATED, "--max-tokens", "20", given=asked)
    assert (done.returncode, done.stderr) == (0, "")

    def figure(pattern: str) -> float:
        found = re.search(pattern + r" *([\d.]+)", done.stdout)
        assert found is not None, done.stdout
        return float(found[1])

    between = figure("inter token latency +mean")
    assert figure("decode") == pytest.approx(1000 / between, rel=0.01)
    first = figure("time to first token +mean")
    assert figure("first token after") == pytest.approx(first, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/set temperature=9", "error: 'temperature' must be between 0 and 2, not 9.0"),
        ("/set warmth=1", "error: unknown parameter 'warmth'; there are: temperature, "),
        ("/set temprature=1", "error: unknown parameter 'temprature'; did you mean 'temperature'?"),
        ("/set seed", "error: write seed=VALUE"),
        ("/dance", "error: there is no command /dance; /help lists them"),
    ],
)
def test_a_mistake_is_said_and_the_conversation_goes_on(
    line: str, says: str, pyengine: Run
) -> None:
    done = pyengine("chat", *SIMULATED, given=f"{line}\n/set seed=7\n")
    assert done.returncode == 0
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
    assert ["seed", "7"] in [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_set_changes_the_next_answer(pyengine: Run) -> None:
    done = pyengine(
        "chat", *SIMULATED, given=f"/set temperature=0 max_tokens=1\n{FRANCE}\n/stats\n"
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["answer", "1", "tokens"] in lines
    assert ["max_tokens", "1"] in lines


@pytest.mark.slow
def test_a_conversation_too_long_for_the_context_says_so(pyengine: Run) -> None:
    done = pyengine("chat", *SIMULATED, "--max-context", "64", given="x " * 600 + "\n/reset\n")
    assert done.returncode == 0
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("; /reset starts a new conversation\n")


@pytest.mark.slow
def test_the_system_prompt_is_part_of_the_conversation(pyengine: Run) -> None:
    ask = ("chat", *SIMULATED, "--max-tokens", "4")
    bare = pyengine(*ask, given=f"{FRANCE}\n/stats\n").stdout
    told = pyengine(*ask, "--system", "Be brief. " * 8, given=f"{FRANCE}\n/stats\n").stdout

    def prompt_tokens(text: str) -> int:
        return int(text.split("prompt ")[1].split()[0])

    assert prompt_tokens(told) >= prompt_tokens(bare) + 16
