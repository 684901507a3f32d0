"""The devices there are, by the names that ``EngineConfig.device`` has for them.

A package outside adds one by an entry point of the group ``pyengine.devices``: its name is that of
the device, its value a :class:`pyengine.devices.spec.DeviceSpec`. ``auto`` never takes such a
device: a configuration names it.
"""

from functools import cache
from importlib.metadata import entry_points

from pyengine.devices.cpu import CPU
from pyengine.devices.cuda import CUDA
from pyengine.devices.simulated import SIMULATED
from pyengine.devices.spec import DeviceSpec
from pyengine.errors import ConfigError

ENTRY_POINTS = "pyengine.devices"
AUTO = "auto"

DEVICES = {device.name: device for device in (CPU, CUDA, SIMULATED)}

# From the best: ``auto`` takes the first that the machine has.
AUTOMATIC = (CUDA, CPU)


def find_device(name: str) -> DeviceSpec:
    """The device called ``name``; until ``auto`` is resolved, it counts as the CPU.

    Raises:
        ConfigError: There is none of that name, or its package cannot be imported.
    """
    if name == AUTO:
        return CPU
    # Listing the entry points of all packages takes 70 ms.
    return DEVICES[name] if name in DEVICES else _outside(name)


def device_names() -> list[str]:
    """The names that ``device`` may have, also from installed packages."""
    outside = (entry.name for entry in entry_points(group=ENTRY_POINTS))
    return sorted({AUTO, *DEVICES, *outside})


@cache
def _outside(name: str) -> DeviceSpec:
    found = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        raise ConfigError(
            f"'device' must be one of {', '.join(device_names())}, not {name!r}", param="device"
        )
    try:
        device = found[name].load()
    except Exception as error:  # a stranger's code
        raise ConfigError(
            f"'device' of {name}: {found[name].value!r} cannot be imported: "
            f"{type(error).__name__}: {error}",
            param="device",
        ) from error
    if not isinstance(device, DeviceSpec) or device.name != name:
        raise ConfigError(
            f"'device' of {name}: {found[name].value!r} is not a DeviceSpec of that name",
            param="device",
        )
    return device
