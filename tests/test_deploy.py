"""What deploys one machine's server, linted: nothing here can be built or run by a test.

A test whose tool is missing is skipped and says which.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyengine.http.operations.paths import routes
from tests.programs import REPOSITORY

pytestmark = pytest.mark.slow

DEPLOY = REPOSITORY / "deploy"
DOCKER = DEPLOY / "docker"
MANIFEST = DEPLOY / "kubernetes" / "pyengine.yaml"


def lint(*command: str | Path) -> str:
    """The output of a linter, which must be content; the test is skipped where there is none."""
    beside = Path(sys.executable).with_name(str(command[0]))
    program = str(beside) if beside.exists() else shutil.which(str(command[0]))
    if program is None:
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run(
        [program, *command[1:]], capture_output=True, text=True, check=False, timeout=60
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def _version(*command: str) -> str:
    """What a program says of its version; nothing where there is none."""
    if shutil.which(command[0]) is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def test_the_dockerfile() -> None:
    lint("hadolint", DOCKER / "Dockerfile")
    text = (DOCKER / "Dockerfile").read_text()
    for target in ("cpu", "cuda"):
        stage = text.partition(f" AS {target}\n")[2].partition("\nFROM ")[0]
        assert stage.rstrip().endswith("USER 10001"), target
    assert "HEALTHCHECK" in text


def test_the_cuda_image_compiles_where_torch_has_its_runtime() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    pins = (REPOSITORY / "constraints.txt").read_text()
    toolkit = re.search(r"^cuda-toolkit==(\d+)", pins, re.MULTILINE)
    python = re.search(r"^FROM python:([\d.]+)-\S+ AS base", text, re.MULTILINE)
    assert toolkit is not None
    assert python is not None
    home = f"/usr/local/lib/python{python[1]}/site-packages/nvidia/cu{toolkit[1]}"
    assert f"ENV CUDA_HOME={home}\n" in text
    assert f"libcudart.so.{toolkit[1]} " in text


def test_the_compose_file() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DOCKER / source).exists(), volume
    if "version" not in _version("docker", "compose", "version"):
        pytest.skip("needs docker compose")
    lint("docker", "compose", "--file", DOCKER / "compose.yaml", "config", "--quiet")


def test_the_systemd_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "pyengine.service").read_text()
    unit = tmp_path / "pyengine.service"
    # systemd looks whether the program is there.
    unit.write_text(text.replace("/opt/pyengine/bin/pyengine", sys.executable))
    lint("systemd-analyze", "verify", "--man=no", unit)


def test_the_manifests() -> None:
    lint("kubernetes-validate", "--strict", MANIFEST)


def _containers() -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    deployment = next(each for each in documents if each["kind"] == "Deployment")
    containers: list[dict[str, Any]] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def test_probes_ask_endpoints_that_there_are() -> None:
    (container,) = _containers()
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    assert set(probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    for probe in probes.values():
        assert "GET" in routes().paths[probe["httpGet"]["path"]]
    assert probes["livenessProbe"]["httpGet"]["path"] == "/health"
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
