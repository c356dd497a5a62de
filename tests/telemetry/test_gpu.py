"""DCGM figures become means with our units; what the GPU cannot tell stays unknown."""

import pytest

from distbench.telemetry.gpu import gpu_view


def test_gpu_means_over_gpus_and_scrapes() -> None:
    """Utilisation in percent becomes a ratio; SM activity is one already; two GPUs weigh the same."""
    view = gpu_view(
        [
            ("gpu0", "DCGM_FI_DEV_GPU_UTIL", 99.0),
            ("gpu1", "DCGM_FI_DEV_GPU_UTIL", 97.0),
            ("gpu0", "DCGM_FI_PROF_SM_ACTIVE", 0.3),
            ("gpu1", "DCGM_FI_PROF_SM_ACTIVE", 0.5),
            ("gpu0", "DCGM_FI_DEV_POWER_USAGE", 300.0),
            ("gpu0", "DCGM_FI_DEV_XID_ERRORS", 0.0),
        ]
    )
    assert view is not None
    assert view.gpus == 2
    assert view.util_mean == pytest.approx(0.98)
    assert view.sm_active_mean == pytest.approx(0.4)
    assert view.power_mean_w == 300.0
    assert view.dram_active_mean is None


def test_blank_codes_are_no_figures() -> None:
    """DCGM's code for "cannot be read" is not a utilisation of 9e18."""
    view = gpu_view(
        [("g", "DCGM_FI_DEV_GPU_UTIL", 50.0), ("g", "DCGM_FI_PROF_SM_ACTIVE", 9.223372036854776e18)]
    )
    assert view is not None
    assert (view.util_mean, view.sm_active_mean) == (0.5, None)


def test_no_gpu_readings_are_none() -> None:
    """Without a DCGM exporter there is no view at all."""
    assert gpu_view([("s", "vllm:num_requests_running", 1.0), ("g", "DCGM_FI_DEV_GPU_UTIL", None)]) is None
