"""A feature that is added to a copy of the product, to count what that takes: ``marks``.

A request has an option ``mark``; each step is told the mark of each row that samples, the device
gives it back, and the answer has all of them. ``marks.rs`` and ``marks.py`` are the feature's two
files; :data:`LINES` are those that it adds to others.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.programs import REPOSITORY

HERE = Path(__file__).parent
PARTS = ("Cargo.toml", "Cargo.lock", "kernels", "pyengine", "rust")


class Line(NamedTuple):
    """A line that is added.

    Attributes:
        file: The file of the product.
        behind: The first line of the file that has this text.
        added: What stands behind it then.
    """

    file: str
    behind: str
    added: str


SCHEDULER = "rust/scheduler/src"
FILES = {
    f"{SCHEDULER}/features/marks.rs": "marks.rs",
    "pyengine/request/features/marks.py": "marks.py",
}
LINES = (
    Line(f"{SCHEDULER}/features/mod.rs", "pub(super) mod logprobs;", "mod marks;"),
    Line(f"{SCHEDULER}/features/mod.rs", "    prediction::FEATURE,", "    marks::FEATURE,"),
    Line(
        f"{SCHEDULER}/step/buffers.rs",
        "    num_masked_logits,",
        "    /// Rows with a mark.\n    num_marked_rows,",
    ),
    Line(
        f"{SCHEDULER}/step/buffers.rs",
        "        prompt_target: i32",
        "        /// The mark of each row that has one.\n"
        "        mark: i32 = [|layout| layout.max_rows], used |n| n.num_marked_rows;",
    ),
    Line(
        f"{SCHEDULER}/step/buffers.rs",
        "        prompt_top_logprobs: f32",
        "        /// The same marks.\n"
        "        marked: i32 = [|layout| layout.max_rows], used |n| n.num_marked_rows;",
    ),
    Line("pyengine/model/step_names.py", "    num_masked_logits: int", "    num_marked_rows: int"),
    Line("pyengine/model/step_names.py", "    prompt_target: Array", "    mark: Array"),
    Line("pyengine/model/step_names.py", "    prompt_top_logprobs: Array", "    marked: Array"),
    Line(
        "pyengine/model/simulated.py",
        "            buffers.pooled[:pooled] = ",
        "        if marked := buffers.num_marked_rows:\n"
        "            buffers.marked[:marked] = buffers.mark[:marked]",
    ),
    Line(
        "pyengine/model/cpu/model.py",
        "        self._pool()",
        "        marked = self.buffers.num_marked_rows\n"
        "        self.buffers.marked[:marked] = self.buffers.mark[:marked]",
    ),
    Line(
        "pyengine/model/torch/runner.py",
        "                    score_prompts(model, self._step)",
        "                if marked := step.buffers.num_marked_rows:\n"
        "                    self._step.marked[:marked] = self._step.mark[:marked]",
    ),
    Line("pyengine/request/features/registry.py", "    logprobs,", "    marks,"),
    Line("pyengine/request/features/registry.py", "    prediction.FEATURE,", "    marks.FEATURE,"),
    Line(
        "pyengine/request/options.py",
        "from pyengine.request.features.pooling",
        "from pyengine.request.features.marks import MarksOptions",
    ),
    Line("pyengine/request/options.py", "    PoolingOptions,", "    MarksOptions,"),
    Line(
        "pyengine/completion.py",
        "    prompt_logprobs: list",
        "    marks: list[int] | None = None",
    ),
)


def add_feature(folder: Path) -> set[str]:
    """Copies the product to ``folder`` and adds the feature; returns the files that it touches.

    Raises:
        StopIteration: A line that others are added behind is there no more.
    """
    for part in PARTS:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    for file, own in FILES.items():
        shutil.copy(HERE / own, folder / file)
    for file, behind, added in LINES:
        path = folder / file
        lines = path.read_text().splitlines()
        at = next(at for at, line in enumerate(lines) if line.startswith(behind))
        lines[at + 1 : at + 1] = added.splitlines()
        path.write_text("\n".join(lines) + "\n")
    _lengthen(folder / SCHEDULER)
    return {*FILES, *(line.file for line in LINES)}


def _lengthen(src: Path) -> None:
    """Makes the list of features one longer."""
    path = src / "features/mod.rs"
    text = path.read_text()
    length = int(text.partition("[Registration; ")[2].partition("]")[0])
    path.write_text(text.replace(f"[Registration; {length}]", f"[Registration; {length + 1}]"))
