// SPDX-License-Identifier: Apache-2.0
/// A trainer or a server on a GPU, in a process of its own, told by lines on its input what to do; each is answered by
/// one line.
///   gpu_device_peer publish FOLDER ENGINE    "publish SEED"
///   gpu_device_peer serve FOLDER ENGINE      "pin VERSION": "VERSION in host memory", or "VERSION on the device"

#include <sys/prctl.h>

#include <csignal>
#include <iostream>
#include <sstream>

#include "tests/transport/publish/gpu/device_lab.h"

namespace freshet::test {
namespace {

void answer(const std::string& line) { std::cout << line << std::endl; }

int run_trainer(const std::string& folder, const std::shared_ptr<gpu::Platform>& platform,
                const std::shared_ptr<gpu::Device>& device) {
  const auto publisher = gpu::must(Publisher::open(
      {.model = "demo", .hub_options = {.directory = folder}, .device_memory = {.copies = 3}, .gpus = platform}));
  DeviceModel model(device, kPeerSizes);
  const gpu::Stream stream = gpu::must(device->create_stream());
  answer("ready");
  std::string verb;
  for (std::uint64_t seed = 0; std::cin >> verb >> seed;) {
    model.write(stream.handle(), seed);
    const auto receipt = gpu::must(publisher->publish(model.views(stream.handle()), {}));
    gpu::must(publisher->wait_committed(receipt.version, kPatience));
    answer("version " + std::to_string(receipt.version));
  }
  return 0;
}

int run_server(const std::string& folder, const std::shared_ptr<gpu::Device>& device) {
  const auto subscriber = gpu::must(Subscriber::open({.model = "demo", .directory = folder}));
  gpu::must(subscriber->take_device_memory(device));
  answer("ready");
  std::string verb;
  Snapshot pinned;
  for (VersionNumber version = 0; std::cin >> verb >> version;) {
    gpu::must(subscriber->wait_for(version, kPatience));
    pinned = subscriber->snapshot();
    const bool is_on_device = !pinned.device_bytes(0, device->info().uuid).empty();
    answer(std::to_string(pinned.version()) + (is_on_device ? " on the device" : " in host memory"));
  }
  return 0;
}

}  // namespace
}  // namespace freshet::test

int main(int count, char** words) {
  using namespace freshet;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (count != 4) return 2;
  const std::string role = words[1];
  std::shared_ptr<gpu::Platform> platform;
  if (std::string(words[3]) == "host") {
    platform = std::make_shared<gpu::HostPlatform>(gpu::HostOptions{});
  } else {
    platform = gpu::must(gpu::open_driver_platform());
  }
  const auto device = gpu::must(platform->open(gpu::must(platform->devices()).front().uuid));
  return role == "publish" ? test::run_trainer(words[2], platform, device) : test::run_server(words[2], device);
}
