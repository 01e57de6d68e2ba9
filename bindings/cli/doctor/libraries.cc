// SPDX-License-Identifier: Apache-2.0
// Libraries of GPUs and of storage: asked through a handful of their C functions, whose signatures are part of their
// ABI.

#include "bindings/cli/doctor/finding.h"
#include "bindings/cli/doctor/library.h"
#include "core/base/format.h"

namespace freshet::cli {

Finding find_cuda() {
  Finding finding{.check = "cuda",
                  .health = Health::missing,
                  .enables = "models in GPU memory",
                  .get = "an NVIDIA driver (Debian: nvidia-driver, section non-free)"};
  const Library cuda("libcuda.so.1");
  auto* initialise = cuda.function<int(unsigned)>("cuInit");
  auto* count_devices = cuda.function<int(int*)>("cuDeviceGetCount");
  auto* driver_version = cuda.function<int(int*)>("cuDriverGetVersion");
  if (initialise == nullptr || count_devices == nullptr || driver_version == nullptr) {
    finding.found = "no libcuda.so.1";
    return finding;
  }
  int devices = 0;
  int version = 0;
  if (initialise(0) != 0 || count_devices(&devices) != 0 || devices == 0 || driver_version(&version) != 0) {
    finding.found = "a driver library, but no device";
    return finding;
  }
  finding.health = Health::ok;
  finding.found =
      format("{} device{}, CUDA {}.{}", devices, devices == 1 ? "" : "s", version / 1000, version % 1000 / 10);
  finding.get.clear();
  return finding;
}

Finding find_nccl() {
  Finding finding{.check = "nccl",
                  .health = Health::missing,
                  .enables = "GPU to GPU across devices",
                  .get = "libnccl2 from NVIDIA's repository"};
  const Library nccl("libnccl.so.2");
  auto* get_version = nccl.function<int(int*)>("ncclGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    finding.found = "no libnccl.so.2";
    return finding;
  }
  finding.health = Health::ok;
  finding.found = format("NCCL {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  finding.get.clear();
  return finding;
}

Finding find_ceph() {
  Finding finding{.check = "ceph",
                  .health = Health::missing,
                  .enables = "repositories in a Ceph cluster (RADOS)",
                  .get = "apt install librados2, and a cluster"};
  const Library rados("librados.so.2");
  auto* get_version = rados.function<void(int*, int*, int*)>("rados_version");
  if (get_version == nullptr) {
    finding.found = "no librados.so.2";
    return finding;
  }
  int major = 0;
  int minor = 0;
  int extra = 0;
  get_version(&major, &minor, &extra);
  finding.health = Health::ok;
  finding.found = format("librados {}.{}.{}", major, minor, extra);
  finding.get.clear();
  return finding;
}

}  // namespace freshet::cli
