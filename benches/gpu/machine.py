"""The device and the software that figures depend on."""

import importlib.metadata
import platform
from typing import Any

import torch

PACKAGES = ("torch", "triton", "flashinfer-python", "transformers")


def facts(device: torch.device) -> dict[str, Any]:
    """The device, its memory and clock, the driver's CUDA and the versions of what runs on it."""
    found: dict[str, Any] = {"python": platform.python_version(), "device": str(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        found |= {
            "device": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_mib": properties.L2_cache_size / 2**20,
            "memory_gib": round(total / 2**30, 1),
            "free_gib": round(free / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
