"""The CPU, by the package's own kernels."""

from pyengine.devices.spec import DeviceSpec

CPU = DeviceSpec(
    name="cpu",
    start="pyengine.model.cpu.runner:CpuRunner.from_config",
    ranks="pyengine.distributed.start:CpuRanks",
    dtypes=("float32", "bfloat16"),
    # With this number of tokens a processor multiplies as fast as it reads weights: each one more
    # makes the step longer.
    prefill_beside_decodes=32,
    host_stages=("launch", "sample"),
)
