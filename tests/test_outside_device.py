"""A package outside adds a device: a declaration, a runner, and an entry point."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyengine import AsyncEngine, EngineConfig, SamplingParams
from pyengine.cli.options import engine_options
from pyengine.devices import device_names
from pyengine.errors import ConfigError
from tests.programs import python

PACKAGE = """
from pyengine.devices.spec import DeviceSpec
from pyengine.model.simulated import SimulatedRunner

DEVICE = DeviceSpec(
    name="npu",
    start="npu:start",
    memory_bytes=lambda: 100 << 30,
    dtype="bfloat16",
    dtypes=("bfloat16",),
    lacks=("threads",),
    computes=False,
)

def start(config, progress):
    runner = SimulatedRunner.from_config(config)
    runner.device = f"npu, {runner.info.dtype}"
    return runner
"""


def install(site: Path, module: str) -> None:
    """Leave what `pip install` leaves of a package with an entry point."""
    (site / "npu.py").write_text(module)
    about = site / "npu-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: npu\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[pyengine.devices]\nnpu = npu:DEVICE\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    from pyengine.devices import _outside

    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("npu", None)
    _outside.cache_clear()


async def test_a_package_adds_a_device(site: Path) -> None:
    with pytest.raises(ConfigError, match="must be one of auto, cpu, cuda, simulated, not 'npu'"):
        EngineConfig(device="npu")
    install(site, PACKAGE)
    assert "npu" in device_names()
    config = EngineConfig(device="npu", mode="server", simulated_step_ms=0.0, num_blocks=64)
    async with AsyncEngine(config=config) as engine:
        answer = await engine.generate("Hello", SamplingParams(max_tokens=4, ignore_eos=True))
        assert len(answer.token_ids) == 4
        assert engine.info.device == "npu, bfloat16"
    assert config.most_requests == 1024 + config.max_waiting


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 2}, "'threads' is 2, but the device is npu"),
        ({"dtype": "float32"}, "'dtype' is float32, but the device is npu, which computes in bf"),
        ({"tensor_parallel": 2}, "'tensor_parallel' is 2, but processes cannot share a model"),
        ({"draft_model": "demo"}, "'draft_model' is of no use on the npu device"),
    ],
)
def test_a_device_refuses_what_its_declaration_lacks(
    settings: dict[str, object], message: str, site: Path
) -> None:
    install(site, PACKAGE)
    with pytest.raises(ConfigError, match=message):
        EngineConfig(device="npu", **settings)  # type: ignore[arg-type]


def test_a_device_that_is_missing_says_why(site: Path) -> None:
    from pyengine.model.devices import settled

    install(site, PACKAGE.replace("dtype=", 'missing=lambda: "plug an NPU in",\n    dtype=', 1))
    with pytest.raises(ConfigError, match="plug an NPU in"):
        settled(EngineConfig(device="npu"))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("raise RuntimeError('no luck')", r"'npu:DEVICE' cannot be imported: .* no luck"),
        ("DEVICE = 1", "'npu:DEVICE' is not a DeviceSpec of that name"),
        (PACKAGE.replace('"npu"', '"other"'), "'npu:DEVICE' is not a DeviceSpec of that name"),
    ],
)
def test_a_package_that_fails_is_named(module: str, message: str, site: Path) -> None:
    install(site, module)
    with pytest.raises(ConfigError, match=message):
        EngineConfig(device="npu")


def test_the_command_line_takes_the_device_of_a_package(site: Path) -> None:
    import click
    from click.testing import CliRunner

    @click.command()
    @engine_options("local")
    def show(device: str | None, **_: object) -> None:
        click.echo(device)

    assert "'npu'" in CliRunner().invoke(show, ["--device", "npu"]).output
    install(site, PACKAGE)
    assert CliRunner().invoke(show, ["--device", "npu"]).output == "npu\n"
    assert "npu" in CliRunner().invoke(show, ["--help"]).output


BUILT_IN = """
from pkgutil import resolve_name
from pyengine.devices import DEVICES
for device in DEVICES.values():
    for named in (device.start, device.ranks):
        assert named is None or callable(resolve_name(named)), named
"""


def test_code_that_declarations_name_is_there() -> None:
    pytest.importorskip("torch")
    python(BUILT_IN)
