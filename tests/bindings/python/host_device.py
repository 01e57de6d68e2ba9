# SPDX-License-Identifier: Apache-2.0
"""A device for tests, whose memory is this process' own: work is done late, in an order that a seed chooses."""
import ctypes
import os

import numpy as np
import pytest

from freshet import _core

SEED = int(os.environ.get("FRESHET_GPU_SEED", "1"))


class HostDevice:
    def __init__(self, seed):
        self.core = _core._HostDevice(seed)
        self.stream = self.core.stream()  # The current one.
        self.ranges = []

    def array(self, values):
        """The values in the device's memory, as an array over it. To be read when the work is finished."""
        values = np.array(values, order="C")
        address = self.core.allocate(max(1, values.nbytes))
        self.ranges.append((address, values.nbytes))
        memory = np.frombuffer((ctypes.c_uint8 * max(1, values.nbytes)).from_address(address), np.uint8)[:values.nbytes]
        array = memory.view(values.dtype).reshape(values.shape)
        array[...] = values
        return array

    def has(self, address):
        return any(begin <= address < begin + max(1, size) for begin, size in self.ranges)

    def finish(self):
        self.core.finish(self.stream)


class OnDevice:
    """What CuPy and others give."""

    def __init__(self, array, **other):
        told = array.__array_interface__
        self.__cuda_array_interface__ = {"shape": told["shape"], "typestr": told["typestr"], "data": told["data"], "version": 3, **other}


@pytest.fixture
def host():
    print(f"FRESHET_GPU_SEED={SEED}")
    return HostDevice(SEED)
