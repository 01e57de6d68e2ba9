// SPDX-License-Identifier: Apache-2.0
// Libraries of GPUs and of storage: asked through a handful of their C functions, whose signatures are part of their
// ABI.

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/doctor/library.h"
#include "core/base/format.h"

namespace freshet::cli {

Finding find_cuda() {
  const Finding finding{.check = "cuda", .enables = "models in GPU memory"};
  const char* const get = "an NVIDIA driver (Debian: nvidia-driver, section non-free)";
  const Library cuda("libcuda.so.1");
  auto* initialise = cuda.function<int(unsigned)>("cuInit");
  auto* count_devices = cuda.function<int(int*)>("cuDeviceGetCount");
  auto* driver_version = cuda.function<int(int*)>("cuDriverGetVersion");
  if (initialise == nullptr || count_devices == nullptr || driver_version == nullptr) {
    return finding.with(Health::missing, "no libcuda.so.1", get);
  }
  int devices = 0;
  int version = 0;
  if (initialise(0) != 0 || count_devices(&devices) != 0 || devices == 0 || driver_version(&version) != 0) {
    return finding.with(Health::missing, "a driver library, but no device", get);
  }
  return finding.with(Health::ok, format("{} device{}, CUDA {}.{}", devices, devices == 1 ? "" : "s", version / 1000,
                                         version % 1000 / 10));
}

Finding find_nccl() {
  const Finding finding{.check = "nccl", .enables = "GPU to GPU across devices"};
  const Library nccl("libnccl.so.2");
  auto* get_version = nccl.function<int(int*)>("ncclGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    return finding.with(Health::missing, "no libnccl.so.2", "libnccl2 from NVIDIA's repository");
  }
  return finding.with(Health::ok, format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100));
}

Finding find_ceph() {
  const Finding finding{.check = "ceph", .enables = "repositories in a Ceph cluster (RADOS)"};
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

}  // namespace freshet::cli
