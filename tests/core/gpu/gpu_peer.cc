// SPDX-License-Identifier: Apache-2.0
// A neighbour of a conformance case, in a process of its own, so that the case can kill it, or lose its context.
//
// usage: gpu_peer ROLE ENGINE SEED SOCKET
//   ROLE    export  makes a slab with bytes of seed 9, passes it over the socket, lives until it is killed
//           import  maps the slab that comes over the socket, says whether its bytes are those of seed 9, lives on
//           stick   makes the context stuck, and prints what each call says then; needs no socket (-)
//           nccl    joins as rank 1 of 2 by the id that comes over the socket, says whether it receives the bytes of
//           seed
//                   9, lives on
//   ENGINE  host or driver
// Prints "FAILED: reason" and exits with 1 when something else happens.

#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "core/base/log.h"
#include "core/gpu/collective.h"
#include "core/gpu/host_device.h"
#include "tests/core/gpu/descriptor_passing.h"
#include "tests/support/seeded_bytes.h"

namespace freshet::gpu {
namespace {

constexpr auto kPeerPatience = std::chrono::minutes(1);

template <typename T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

void copy_now(const std::shared_ptr<Device>& device, void* to, const void* from, std::uint64_t bytes) {
  const Stream stream = must(device->create_stream());
  const Event event = must(device->create_event());
  must(device->copy(stream.handle(), to, from, bytes));
  must(device->record(event, stream.handle()));
  must(device->wait(event, kPeerPatience));
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

/// Until the case kills this process, or has gone.
void live_on(int socket) { (void)receive_descriptor(socket); }

void export_slab(const std::shared_ptr<Device>& device, int socket) {
  const std::uint64_t bytes = receive_descriptor(socket).word;
  const Memory memory = must(device->allocate(bytes));
  copy_now(device, memory.address(), test::seeded_bytes(memory.bytes(), 9).data(), memory.bytes());
  const FileDescriptor descriptor = must(device->export_slab(memory));
  send_descriptor(socket, descriptor.get(), memory.bytes());
  live_on(socket);
}

void import_slab(const std::shared_ptr<Device>& device, int socket) {
  Received received = receive_descriptor(socket);
  const Memory memory = must(device->import_slab(std::move(received.descriptor), received.word));
  std::vector<std::byte> bytes(memory.bytes());
  copy_now(device, bytes.data(), memory.address(), bytes.size());
  say(test::same_bytes(bytes, test::seeded_bytes(bytes.size(), 9)) ? "right" : "wrong");
  live_on(socket);
}

void stick(Platform& platform, const std::shared_ptr<Device>& device) {
  set_log_hook([](LogLevel, const std::string& line) { say("log: " + line); });
  const auto report = [](const char* call, const auto& result) {
    say(std::string(call) + ": " +
        (result ? "fine" : std::string(name_of(result.error().code())) + ": " + result.error().message()));
  };
  Memory memory = must(device->allocate(1000));
  const Stream stream = must(device->create_stream());
  const Event event = must(device->create_event());
  if (auto* const host = dynamic_cast<HostPlatform*>(&platform); host != nullptr) {
    host->strike(0);
    must(device->copy(stream.handle(), memory.address() + 500, memory.address(), 100));
  } else {
    const FillArguments wild{.to = reinterpret_cast<std::uint8_t*>(0x10), .bytes = 1000, .value = 1};
    must(device->launch(stream.handle(), {.kernel = Kernel::kFill, .blocks = 1, .threads = 128, .shared_bytes = 0},
                        wild));
  }
  const Status recorded = device->record(event, stream.handle());  // A real device may know already.
  report("wait", recorded ? device->wait(event, kPeerPatience) : recorded);
  report("wait", device->wait(event, kPeerPatience));
  report("query", device->is_done(event));
  report("copy", device->copy(stream.handle(), memory.address() + 500, memory.address(), 100));
  report("allocate", device->allocate(1000));
  report("room", device->room());
  report("drain", device->drain(kPeerPatience));
  memory = Memory();
  say("end");
}

void receive_by_nccl(int socket) {
  CollectiveSeat seat{.id = {}, .ranks = 2, .rank = 1};
  if (::recv(socket, seat.id.bytes.data(), seat.id.bytes.size(), 0) != static_cast<ssize_t>(seat.id.bytes.size())) {
    throw std::runtime_error("no id came");
  }
  const auto collective = must(open_nccl());
  const auto communicator = must(collective->join(seat));
  while (!must(communicator->poll())) ::usleep(1000);
  std::vector<std::byte> bytes(kCollectivePeerBytes);
  must(communicator->receive(bytes, 0));
  while (!must(communicator->poll())) ::usleep(1000);
  const std::string word = test::same_bytes(bytes, test::seeded_bytes(bytes.size(), 9)) ? "right" : "wrong";
  if (::send(socket, word.data(), word.size(), MSG_NOSIGNAL) < 0) throw std::runtime_error("nobody hears the word");
  live_on(socket);
}

int run(int count, char** words) {
  if (count != 5) throw std::runtime_error("usage: gpu_peer ROLE ENGINE SEED SOCKET");
  const std::string role = words[1];
  if (role == "nccl") {
    receive_by_nccl(std::atoi(words[4]));
    return 0;
  }
  std::unique_ptr<Platform> platform;
  if (std::string(words[2]) == "host") {
    platform = std::make_unique<HostPlatform>(HostOptions{.seed = std::strtoull(words[3], nullptr, 10)});
  } else {
    platform = must(open_driver_platform());
  }
  const auto device = must(platform->open(must(platform->devices()).front().uuid));
  const int socket = std::atoi(words[4]);
  if (role == "export") export_slab(device, socket);
  if (role == "import") import_slab(device, socket);
  if (role == "stick") stick(*platform, device);
  return 0;
}

}  // namespace
}  // namespace freshet::gpu

int main(int count, char** words) {
  try {
    return freshet::gpu::run(count, words);
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
}
