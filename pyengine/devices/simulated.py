"""A device without weights that takes a given time for a step, to measure everything else."""

from pyengine.devices.spec import GPU_SETTINGS, DeviceSpec

SIMULATED = DeviceSpec(
    name="simulated",
    start="pyengine.model.simulated:SimulatedRunner.from_config",
    lacks=(*GPU_SETTINGS, "quantization", "logits_processors", "adapter"),
    computes=False,
    host_stages=("sample",),
)
