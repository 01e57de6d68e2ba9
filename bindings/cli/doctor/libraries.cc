// SPDX-License-Identifier: Apache-2.0
// Libraries of GPUs and of storage. core/gpu asks the NVIDIA driver. This file asks each other library by a few of its
// C functions, whose signatures are part of its ABI.

#include <string>
#include <utility>

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/doctor/library.h"
#include "core/base/format.h"
#include "core/gpu/collective.h"
#include "core/gpu/device.h"

namespace freshet::cli {

Finding find_cuda() {
  const Finding finding{.check = "cuda", .enables = "models in GPU memory, channel cuda_ipc"};
  const char* const get = "an NVIDIA driver, 580 or later (Debian: nvidia-driver, section non-free), and a device";
  const auto platform = gpu::open_driver_platform();
  if (!platform) return finding.with(Health::missing, platform.error().message(), get);
  const auto devices = (*platform)->devices();
  if (!devices) return finding.with(Health::missing, devices.error().message(), get);
  std::string found = (*platform)->description();
  for (const gpu::DeviceInfo& info : *devices) {
    found += format("; {} {}, {} MiB", info.uuid.text(), info.name, info.bytes >> 20);
    if (info.compute_major < gpu::kComputeMajorMin) {
      found += format(" (compute capability {}.{}: no kernels, which need {}.0 or later)", info.compute_major,
                      info.compute_minor, gpu::kComputeMajorMin);
    }
    if (!info.exports_slabs) found += " (no cuda_ipc: it exports no memory)";
  }
  return finding.with(Health::ok, std::move(found));
}

Finding find_nccl() {
  const Finding finding{.check = "nccl", .enables = "channel nccl, between GPUs of a trusted fabric"};
  const auto version = gpu::nccl_version();
  if (version) return finding.with(Health::ok, *version);
  return finding.with(Health::missing, version.error().message(), "libnccl2, 2.23 or later, from NVIDIA's repository");
}

Finding find_ceph() {
  const Finding finding{.check = "ceph", .enables = "repositories in a Ceph cluster (RADOS)"};
  if (!FRESHET_HAS_RADOS) return finding.not_built("librados-dev");
  const Library rados("librados.so.2");
  auto* get_version = rados.function<void(int*, int*, int*)>("rados_version");
  if (get_version == nullptr) {
    return finding.with(Health::missing, "no librados.so.2", "apt install librados2, and a cluster");
  }
  int major = 0;
  int minor = 0;
  int extra = 0;
  get_version(&major, &minor, &extra);
  return finding.with(Health::ok, format("librados {}.{}.{}", major, minor, extra));
}

Finding find_s3() {
  const Finding finding{.check = "s3", .enables = "repositories in a bucket (s3://BUCKET/PREFIX)"};
  if (!FRESHET_HAS_S3) return finding.not_built("libcurl4-openssl-dev libexpat1-dev");
  return finding.with(Health::ok, "this program has it");
}

}  // namespace freshet::cli
