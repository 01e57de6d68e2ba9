// SPDX-License-Identifier: Apache-2.0
// All kernels in one text: nvcc makes one file of it for all devices, and run_on_host.cc includes it.
#include "core/gpu/kernels/copy.cu"
#include "core/gpu/kernels/delta_apply.cu"
#include "core/gpu/kernels/delta_pack.cu"
#include "core/gpu/kernels/digest.cu"
