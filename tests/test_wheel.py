"""A built wheel, installed where the checkout is out of sight, serves the demo model."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
import zlib
from pathlib import Path

import pytest

from tests.programs import REPOSITORY, environment, served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),  # a first release build takes minutes
]

WHEELS_BYTES = 100_000_000
PUBLISHED = ("--release", "--no-default-features")
IMPORT_ALL = """
import importlib, pkgutil, pyengine
for module in pkgutil.walk_packages(pyengine.__path__, "pyengine."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""

CONTENTS = (
    "pyengine/_core.abi3.so",
    "pyengine/_core.pyi",
    "pyengine/py.typed",
    "pyengine/profiling/page.html",
    "pyengine/demo/model/config.json",
    "pyengine/demo/model/model.safetensors",
    "pyengine/demo/model/tokenizer.json",
    "pyengine/model/specs/llama-3-8b/config.json",
    *(
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "pyengine/kernels").rglob("*.py")
    ),
)


def tool(name: str) -> str:
    """A program of this interpreter's environment, or of the PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found, f"{name} comes with make setup"
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built as it is published; reuses what the target folder has."""
    folder = tmp_path_factory.mktemp("dist")
    # Processes of one run share the folder above; two builds at once take files from each other.
    with (tmp_path_factory.getbasetemp().parent / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [tool("maturin"), "build", *PUBLISHED, "--quiet", "--out", folder],
            cwd=REPOSITORY,
            env=environment(PYO3_PYTHON=sys.executable),
            check=True,
        )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of an environment with the wheel in it, and third-party packages from here."""
    home = tmp_path_factory.mktemp("venv")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    subprocess.run(
        [tool("uv"), "pip", "install", "--quiet", "--no-deps", "--python", python, wheel],
        check=True,
    )
    (packages,) = home.glob("lib/python*/site-packages")
    # An editable pyengine of this environment comes by a .pth of its own, which is not followed
    # from a .pth; one on the path would be behind the wheel's anyway.
    (packages / "third_party.pth").write_text("\n".join(third_party()))
    return home / "bin"


def third_party() -> list[str]:
    """Where this interpreter finds torch and the others."""
    return [path for path in sys.path if path.endswith("site-packages")] or [
        sysconfig.get_path("purelib")
    ]


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on, and nothing else."""
    home = tmp_path_factory.mktemp("alone")
    venv.create(home, with_pip=False, symlinks=True)
    install = [tool("uv"), "pip", "install", "--quiet", "--python", str(home / "bin" / "python")]
    install += ["--constraint", str(REPOSITORY / "constraints.txt"), str(wheel)]
    if subprocess.run([*install, "--offline"], capture_output=True, check=False).returncode:
        subprocess.run(install, check=True)
    return home


def test_the_wheel_is_for_every_python_from_3_11_and_complete(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert set(CONTENTS) <= set(names)
        assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
        kernel = (REPOSITORY / "kernels/triton/sampling/sample.py").read_bytes()
        assert archive.read("pyengine/kernels/sampling/sample.py") == kernel
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert b"pyengine=pyengine.cli:main" in archive.read(entry_points).replace(b" ", b"")
        strangers = {name.split("/")[0] for name in names if ".dist-info/" not in name}
        assert strangers == {"pyengine"}


def test_the_wheel_and_its_dependencies_are_small_and_serve(alone: Path, tmp_path: Path) -> None:
    (packages,) = alone.glob("lib/python*/site-packages")
    assert not (packages / "torch").exists()
    deflated = 0  # as the wheels that are downloaded
    for path in packages.rglob("*"):
        if path.is_file():
            deflated += len(zlib.compress(path.read_bytes()))
    assert deflated < WHEELS_BYTES
    env = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    serve_the_demo(alone / "bin" / "pyengine", tmp_path, env)


def test_wheel_is_built_as_it_is_published() -> None:
    workflow = (REPOSITORY / ".github/workflows/wheels.yml").read_text()
    image = (REPOSITORY / "deploy/docker/Dockerfile").read_text()
    assert f"args: {' '.join(PUBLISHED)} " in workflow
    assert f"maturin build {' '.join(PUBLISHED)} " in image


def test_wheel_has_no_bindings_of_tests_and_every_module_imports(
    installed: Path, tmp_path: Path
) -> None:
    env = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    no_test_api = "import pyengine._core as core; assert not hasattr(core, 'StreamDecoder')"
    for program in (no_test_api, IMPORT_ALL):
        subprocess.run([installed / "python", "-c", program], cwd=tmp_path, env=env, check=True)


def test_the_installed_wheel_serves(installed: Path, tmp_path: Path) -> None:
    env = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    python = installed / "python"
    where = "import pyengine, pyengine._core as core; print(pyengine.__file__, core.__file__)"
    home = subprocess.run(
        [python, "-c", where], capture_output=True, text=True, cwd=tmp_path, env=env, check=True
    )
    assert home.stdout.count(str(installed.parent) + os.sep) == 2

    serve_the_demo(installed / "pyengine", tmp_path, env)


def serve_the_demo(command: Path, folder: Path, env: dict[str, str]) -> None:
    """Ask a server of the demo model, and stop it."""
    with served("--port", "0", command=[str(command)], cwd=folder, env=env) as server:
        question = {
            "model": "pyengine-demo",
            "temperature": 0,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
        request = urllib.request.Request(
            f"{server.url()}/v1/chat/completions",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "Paris" in answer["choices"][0]["message"]["content"]
        assert server.end(signal.SIGTERM) == 0
