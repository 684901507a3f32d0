"""Make the demo model and its draft: data, tokenizer, training, evaluation, card.

Run ``python -m tools.demo_model.train``.  An interrupted run goes on from its last
checkpoint when started again with the same ``--work`` folder.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from platform import python_version_tuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn

from pyengine.demo import DRAFT_PATH, MODEL_PATH
from tools.demo_model.batches import Microbatch, steps
from tools.demo_model.card import Run, Trained, write_cards
from tools.demo_model.data import PROSE_SHARE, documents
from tools.demo_model.evaluate import examine, table
from tools.demo_model.network import DRAFT, MAIN, Network, Shape
from tools.demo_model.template import END_OF_TEXT, TURN_END
from tools.demo_model.vocabulary import save_tokenizer, train_tokenizer

__all__ = ["main"]

_TOKENIZER_DOCUMENTS = 20_000


@dataclass(frozen=True)
class Plan:
    """How one network is trained; from the share ``late`` on, mostly on what is hard."""

    name: str
    shape: Shape
    folder: Path
    rounds: int
    rate: float
    seed: int
    late: float


class Optimizer:
    """Muon for the layers' matrices, AdamW for the embedding and the norms.

    Steps are what is scarce on two cores, and Muon makes more of each of them.
    """

    def __init__(self, network: Network, plan: Plan) -> None:
        named = list(network.named_parameters())
        inner = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        outer = [p for name, p in named if p.ndim != 2 or "embed" in name]
        self.plan = plan
        self.parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(
                inner, lr=plan.rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(outer, lr=plan.rate, betas=(0.9, 0.98), weight_decay=0.0),
        )

    def step(self, done: float, warmth: float) -> None:
        """Update with the gradients; the rate holds, then decays as ``done`` goes to 1.

        ``warmth`` goes from 0 to 1 over the first steps.
        """
        rate = self.plan.rate * min(1.0, warmth, (1 - done) / 0.6)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)


def _train_step(network: Network, batch: list[Microbatch]) -> float:
    """Accumulate the gradients of a step's mean loss per trained token; return the loss."""
    count = sum(micro.trained for micro in batch)
    total = 0.0
    for micro in batch:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = network(micro.ids, micro.places)
        loss = F.cross_entropy(logits.float(), micro.targets, reduction="sum") / count
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    return total


def train(plan: Plan, work: Path) -> float:
    """Train a network by its plan and save it; return the seconds its training took."""
    # Matrices this small gain little from a second core, which the other
    # network's training puts to better use.
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    network = Network(plan.shape)
    optimizer = Optimizer(network, plan)
    checkpoint = work / f"{plan.name}.pt"
    first, count, spent = 0, 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        network.load_state_dict(saved["network"])
        for part, state in zip(optimizer.parts, saved["optimizer"], strict=True):
            part.load_state_dict(state)
        first, count, spent = saved["round"], saved["steps"], saved["spent"]
    started = time.monotonic() - spent
    for index in range(first, plan.rounds):
        losses = []
        batches = steps(tokenizer, plan.seed, index, index >= plan.late * plan.rounds)
        for place, batch in enumerate(batches):
            losses.append(_train_step(network, batch))
            count += 1
            optimizer.step((index + place / len(batches)) / plan.rounds, count / 50)
        spent = time.monotonic() - started
        mean = sum(losses) / len(losses)
        print(f"{plan.name} round {index + 1} step {count} {mean:.4f} {spent:.0f}s", flush=True)
        _save_checkpoint(checkpoint, network, optimizer, (index + 1, count, spent))
    save(network, tokenizer, plan.folder)
    return spent


def _save_checkpoint(
    path: Path, network: Network, optimizer: Optimizer, progress: tuple[int, int, float]
) -> None:
    """Replace the checkpoint in one move, so that an interruption leaves a whole one."""
    state = {
        "network": network.state_dict(),
        "optimizer": [part.state_dict() for part in optimizer.parts],
        **dict(zip(("round", "steps", "spent"), progress, strict=True)),
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def save(network: Network, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a complete Hugging Face folder with bf16 weights."""
    shape = network.shape
    save_tokenizer(tokenizer, folder, shape.max_position_embeddings)
    end, pad = tokenizer.token_to_id(TURN_END), tokenizer.token_to_id(END_OF_TEXT)
    ids = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": pad}
    files = {
        "config.json": shape.as_config() | ids,
        "generation_config.json": ids | {"eos_token_id": [end, pad], "do_sample": False},
    }
    for name, contents in files.items():
        (folder / name).write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in network.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=150, help="rounds of the demo model")
    parser.add_argument("--draft-rounds", type=int, default=120, help="rounds of the draft")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder to write instead of the package's own")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(tempfile.gettempdir()) / "pyengine-demo-train",
        help="folder of the checkpoints; an interrupted run resumes from it",
    )
    parser.add_argument(
        "--only",
        choices=("model", "draft"),
        help="train this one only, without evaluation and cards; a later full run takes it up",
    )
    parser.add_argument("--note", default="", help="a remark on this run, for the card")
    parser.add_argument("--fresh", action="store_true", help="forget earlier checkpoints")
    return parser.parse_args()


def _tokenizer(work: Path, seed: int, size: int) -> None:
    """Train the run's tokenizer, once."""
    path = work / "tokenizer.json"
    if not path.exists():
        # Index -1 is no training step, so the tokenizer has documents of its own.
        sample = documents(seed, -1, _TOKENIZER_DOCUMENTS)
        texts = ("".join(text for text, _ in document) for document in sample)
        train_tokenizer(texts, size).save(str(path))


def main() -> None:
    """Train both models, write their folders, evaluate them and write the cards."""
    arguments = _arguments()
    if arguments.fresh:
        shutil.rmtree(arguments.work, ignore_errors=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    model_path = arguments.out / "model" if arguments.out else MODEL_PATH
    draft_path = arguments.out / "draft" if arguments.out else DRAFT_PATH
    _tokenizer(arguments.work, arguments.seed, MAIN.vocab_size)
    plans = [
        Plan("model", MAIN, model_path, arguments.rounds, arguments.rate, arguments.seed, 0.55),
        Plan(
            "draft", DRAFT, draft_path, arguments.draft_rounds, arguments.rate, arguments.seed, 1.0
        ),
    ]
    if arguments.only:
        for plan in plans:
            if plan.name == arguments.only:
                train(plan, arguments.work)
        return
    with ProcessPoolExecutor(len(plans), multiprocessing.get_context("spawn")) as pool:
        seconds = list(pool.map(train, plans, [arguments.work] * len(plans)))
        scores = list(pool.map(examine, [plan.folder for plan in plans]))
    model, draft = (
        Trained(plan.folder, plan.rounds, spent, found)
        for plan, spent, found in zip(plans, seconds, scores, strict=True)
    )
    run = Run(
        arguments.seed, PROSE_SHARE, ".".join(python_version_tuple()[:2]), arguments.note.strip()
    )
    write_cards(model, draft, run)
    print(table({"model": model.scores, "draft": draft.scores}), flush=True)


if __name__ == "__main__":
    main()
