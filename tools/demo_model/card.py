"""The model card: README.md of the model's folder and of the draft's."""

import textwrap
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

from tools.demo_model.batches import ROUND
from tools.demo_model.evaluate import Score, table

__all__ = ["Run", "Trained", "write_cards"]


@dataclass(frozen=True)
class Trained:
    """A trained model: where it lies, how long it took, how it did."""

    folder: Path
    rounds: int
    seconds: float
    scores: dict[str, Score]


@dataclass(frozen=True)
class Run:
    """The part of training that both models share."""

    seed: int
    prose_share: float
    python: str
    note: str


def _parameters(folder: Path) -> int:
    """Parameters in a folder's weights."""
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        return sum(weights.get_tensor(name).numel() for name in weights.keys())


_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
---

# The pyengine demo model

A demonstration model, trained from scratch so that `pyengine serve` answers without a
download.  It has {parameters:,} parameters and knows only what is listed below: it is for
trying out an engine, not for use.  Next to it, in `draft/`, lies a sibling of
{draft_parameters:,} parameters with the same tokenizer, for speculative decoding.

## What it can do

In short English sentences, best at temperature 0: greetings and small talk; who it is and how
pyengine is used; sums up to 100 and times tables to 12; capitals and other common facts;
repeating a phrase and spelling a word; counting, short lists, one story; reading fields of a
sentence into JSON; choosing one of up to four tools, filling its arguments and passing on the
result.  It takes a name, a wish for capital letters, or a word to begin or end with from the
system prompt, and ignores other system prompts.

## What it cannot do

Everything else.  It knows no more facts than its tables, it cannot reason, write code or
translate, and on most other questions it says that it does not know, though not on all: it may
also answer them wrongly and with confidence.  Sums beyond 100, long phrases, unusual words,
tools and sentences unlike those it was trained on fail more often, and so do dialogues of more
than about 400 tokens; at 1,000 tokens most answers are wrong.  It is not to be relied on for
anything.

## Accuracy

Greedy answers to questions that were not trained on, judged by rule: the whole answer, the
expected word in it, or the same JSON.  For addition, subtraction and word problems the pair of
operands is new, for repeating and JSON the phrase or sentence, for spelling the word; for
everything else only the wording of the question, since facts and tables are memory.  The
questions come from the same generators as the training data, so this says how well the data was
learned and little about other wordings.

{table}

Reproduce with `python -m tools.demo_model.evaluate`.

## Data

Dialogues that `tools/demo_model/data.py` makes from templates and word lists written for this
project, and, as {prose}% of the documents, paragraphs from docstrings of the Python {python}
standard library (PSF licence), which also lend words for repeating and spelling.  No text of any
other model or data set.

## Training

`python -m tools.demo_model.train --rounds {rounds} --draft-rounds {draft_rounds} --seed {seed}`

It trains both side by side, each on one CPU core: {minutes} minutes for the model and
{draft_minutes} for the draft, of {round_documents} documents a round, in bfloat16 with float32
master weights, by Muon and AdamW.  Late in the model's training the hard skills weigh more.
Architecture: Llama with grouped-query attention and tied embeddings, 2,048 positions, and a
byte-level BPE of 2,048 tokens in which every digit stands alone.  The same Python version gives
the same data; the weights depend in their last digits on the CPU.
{note}
## Licence

Weights, tokenizer and scripts: Apache-2.0.  The docstrings: PSF licence; they are not part of
this folder.
"""

_DRAFT_CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
---

# The draft of the pyengine demo model

{draft_parameters:,} parameters, the tokenizer and data of the demo model; meant to guess its next
tokens in speculative decoding.  The card of the demo model in `../model/README.md` says how both
were trained, what they can and cannot do, and how accurate they are.  Licence: Apache-2.0.
"""


def write_cards(model: Trained, draft: Trained, run: Run) -> None:
    """Write both README.md files from the measured figures."""
    facts = {
        "parameters": _parameters(model.folder),
        "draft_parameters": _parameters(draft.folder),
        "table": table({"model": model.scores, "draft": draft.scores}),
        "prose": f"{100 * run.prose_share:.0f}",
        "python": run.python,
        "rounds": model.rounds,
        "draft_rounds": draft.rounds,
        "seed": run.seed,
        "round_documents": ROUND,
        "minutes": f"{model.seconds / 60:.0f}",
        "draft_minutes": f"{draft.seconds / 60:.0f}",
        "note": f"\n{textwrap.fill(run.note, 95)}\n" if run.note else "",
    }
    for folder, card in ((model.folder, _CARD), (draft.folder, _DRAFT_CARD)):
        (folder / "README.md").write_text(card.format(**facts), encoding="utf-8")
