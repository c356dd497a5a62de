"""
GPU figures out of a DCGM exporter's families (floor F2, pure).

Utilisation is shown beside SM activity and memory bandwidth because it says only that some kernel ran at the time: a GPU at 99 %
utilisation may have most of its SMs idle and much throughput to give.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from enum import StrEnum

UTILISATION_CAVEAT = "GPU utilisation is the share of time in which at least one kernel ran; it says nothing of how much of the GPU that kernel used"
# DCGM writes its "blank" codes, near 2**31 or 2**63, where a field cannot be read on this GPU.
_BLANK = 2.0**31 - 1024


class GpuQuantity(StrEnum):
    """What is taken of each GPU."""

    UTIL = "util"
    SM_ACTIVE = "sm_active"
    DRAM_ACTIVE = "dram_active"
    TENSOR_ACTIVE = "tensor_active"
    POWER_W = "power_w"
    MEMORY_USED_MIB = "memory_used_mib"
    MEMORY_FREE_MIB = "memory_free_mib"


# Family -> quantity and factor to the unit of ours: ratios 0..1, W, MiB.
GPU_FAMILIES: dict[str, tuple[GpuQuantity, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": (GpuQuantity.UTIL, 0.01),
    "DCGM_FI_PROF_SM_ACTIVE": (GpuQuantity.SM_ACTIVE, 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": (GpuQuantity.DRAM_ACTIVE, 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (GpuQuantity.TENSOR_ACTIVE, 1.0),
    "DCGM_FI_DEV_POWER_USAGE": (GpuQuantity.POWER_W, 1.0),
    "DCGM_FI_DEV_FB_USED": (GpuQuantity.MEMORY_USED_MIB, 1.0),
    "DCGM_FI_DEV_FB_FREE": (GpuQuantity.MEMORY_FREE_MIB, 1.0),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GpuView:
    """
    Means over all GPUs and scrapes of a level; None: not exported.

    Attributes:
        gpus: Number of GPUs seen.
        util_mean: 0..1, share of time with a kernel running (see UTILISATION_CAVEAT).
        sm_active_mean, dram_active_mean, tensor_active_mean: 0..1.
        power_mean_w: Watts of one GPU.
        memory_used_mean_mib: MiB of one GPU.
    """

    gpus: int
    util_mean: float | None
    sm_active_mean: float | None
    dram_active_mean: float | None
    tensor_active_mean: float | None
    power_mean_w: float | None
    memory_used_mean_mib: float | None


def gpu_view(readings: Iterable[tuple[str, str, float | None]]) -> GpuView | None:
    """
    Sum up the GPU readings of a level.

    Args:
        readings: (identity of the GPU, family name, value) of each reading; other families are skipped.

    Returns:
        The means, each GPU weighing the same per reading; None where there is no GPU reading at all.
    """
    values: dict[GpuQuantity, list[float]] = {}
    gpus = set()
    for gpu, name, value in readings:
        known = GPU_FAMILIES.get(name)
        if known is None or value is None or value >= _BLANK:
            continue
        gpus.add(gpu)
        quantity, factor = known
        values.setdefault(quantity, []).append(value * factor)
    if not gpus:
        return None

    def mean(quantity: GpuQuantity) -> float | None:
        numbers = values.get(quantity)
        return math.fsum(numbers) / len(numbers) if numbers else None

    return GpuView(
        gpus=len(gpus),
        util_mean=mean(GpuQuantity.UTIL),
        sm_active_mean=mean(GpuQuantity.SM_ACTIVE),
        dram_active_mean=mean(GpuQuantity.DRAM_ACTIVE),
        tensor_active_mean=mean(GpuQuantity.TENSOR_ACTIVE),
        power_mean_w=mean(GpuQuantity.POWER_W),
        memory_used_mean_mib=mean(GpuQuantity.MEMORY_USED_MIB),
    )
