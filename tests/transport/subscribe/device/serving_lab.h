// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A trainer, a subscriber and a server on a device, for the tests of serving from it.

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/base/mutex.h"
#include "tests/core/gpu/gpu_conformance.h"
#include "tests/support/this_build.h"
#include "tests/transport/model_fixture.h"
#include "transport/subscribe/device/device_tensors.h"

namespace freshet::gpu {

inline void PrintTo(const EngineCase& engine, std::ostream* out) { *out << engine.name; }

/// Tensors of the given sizes, whose bytes come from a seed each.
class Trained {
 public:
  explicit Trained(std::vector<std::uint64_t> sizes) {
    for (const std::uint64_t size : sizes) {
      specs_.push_back({.name = "t" + std::to_string(specs_.size()), .dtype = DType::u8, .shape = {size}});
      values_.emplace_back(size);
    }
    train(1);
  }
  void train(std::uint64_t seed) {
    for (std::size_t tensor = 0; tensor < values_.size(); ++tensor) train(tensor, seed);
  }
  void train(std::size_t tensor, std::uint64_t seed) {
    values_[tensor] = test::seeded_bytes(values_[tensor].size(), seed * 1000 + tensor);
  }
  /// Another value for one byte in so many.
  void touch(std::size_t tensor, std::size_t first, std::size_t stride) {
    for (std::size_t i = first; i < values_[tensor].size(); i += stride) values_[tensor][i] ^= std::byte{0x15};
  }
  std::size_t size() const { return specs_.size(); }
  TensorSpec& spec(std::size_t tensor) { return specs_[tensor]; }
  const TensorSpec& spec(std::size_t tensor) const { return specs_[tensor]; }
  const std::vector<std::byte>& value(std::size_t tensor) const { return values_[tensor]; }
  std::vector<TensorView> views() const {
    std::vector<TensorView> views;
    for (std::size_t tensor = 0; tensor < size(); ++tensor) {
      views.push_back({.spec = specs_[tensor], .data = bytes_of(values_[tensor].data(), values_[tensor].size())});
    }
    return views;
  }

 private:
  std::vector<TensorSpec> specs_;
  std::vector<std::vector<std::byte>> values_;
};

/// Sizes of all kinds: of a launch and of copies of their own, odd, even, none. Those of the launch are small, since
/// the host device runs its threads one by one.
inline std::vector<std::uint64_t> mixed_sizes() {
  std::vector<std::uint64_t> sizes = {200'001, 65'537, 1'999, 0, 1};
  for (std::uint64_t size = 1; sizes.size() < 24; size = size * 2 + 1) sizes.push_back(size % 1'900 + 1);
  return sizes;
}

/// A server's memory on a device: tensors at odd places, with bytes between them that nobody may write.
class ServerMemory {
 public:
  ServerMemory(Device& device, const Trained& model) {
    std::uint64_t at = 3;
    for (std::size_t tensor = 0; tensor < model.size(); ++tensor) {
      places_.push_back(at);
      at += model.value(tensor).size() + 5 + tensor % 11;
    }
    memory_ = must(device.allocate(at));
    for (std::size_t tensor = 0; tensor < model.size(); ++tensor) {
      tensors_.push_back({.spec = model.spec(tensor), .address = memory_.address() + places_[tensor]});
    }
    around_ = test::seeded_bytes(memory_.bytes(), 4242);
  }
  std::byte* address() const { return memory_.address(); }
  std::byte* address(std::size_t tensor) const { return memory_.address() + places_[tensor]; }
  std::uint64_t bytes() const { return memory_.bytes(); }
  const std::vector<DeviceTensor>& tensors() const { return tensors_; }
  const std::vector<std::byte>& blank() const { return around_; }
  /// All of the memory when it holds that model.
  std::vector<std::byte> with(const Trained& model) const {
    std::vector<std::byte> all = around_;
    for (std::size_t tensor = 0; tensor < model.size(); ++tensor) {
      std::copy(model.value(tensor).begin(), model.value(tensor).end(),
                all.begin() + static_cast<std::ptrdiff_t>(places_[tensor]));
    }
    return all;
  }

 private:
  Memory memory_;
  std::vector<std::uint64_t> places_;
  std::vector<DeviceTensor> tensors_;
  std::vector<std::byte> around_;
};

/// Lines that were logged while it lives.
class HeardLog {
 public:
  HeardLog() {
    heard() = {};
    set_log_hook([](LogLevel, const std::string& line) {
      MutexLock lock(mutex());
      heard().push_back(line);
    });
  }
  ~HeardLog() { set_log_hook(nullptr); }
  std::size_t count(const std::string& part) const {
    MutexLock lock(mutex());
    return static_cast<std::size_t>(std::count_if(
        heard().begin(), heard().end(), [&](const auto& line) { return line.find(part) != std::string::npos; }));
  }

 private:
  static Mutex& mutex() {
    static Mutex mutex;
    return mutex;
  }
  static std::vector<std::string>& heard() {
    static std::vector<std::string> lines;
    return lines;
  }
};

/// Each case has a trainer and a subscriber in this process, and a device.
class GpuServing : public GpuConformance {
 protected:
  void serve(std::unique_ptr<Publisher> publisher, std::unique_ptr<Subscriber> subscriber) {
    publisher_ = std::move(publisher);
    subscriber_ = std::move(subscriber);
  }
  void SetUp() override {
    std::cout << "FRESHET_GPU_SEED=" << seed_ << "\n";
    GpuConformance::SetUp();
    serve(test::open_publisher(publisher_options()), test::open_subscriber(subscriber_options()));
  }
  PublisherOptions publisher_options() const { return {.model = "demo", .hub_options = {.directory = folder_.path()}}; }
  SubscriberOptions subscriber_options() const { return {.model = "demo", .directory = folder_.path()}; }

  /// A sanitizer sees a race of memory in any order; the release looks at more of them for a wrong byte.
  static std::uint64_t orders(std::uint64_t of_release) {
    return test::under_sanitizer() ? std::min<std::uint64_t>(of_release, 3) : of_release;
  }

  /// Its number, once the subscriber serves it.
  VersionNumber publish(const Trained& model, PublishOptions options = {}) {
    const auto receipt = must(publisher_->publish(model.views(), std::move(options)));
    must(publisher_->wait_committed(receipt.version, test::kPatience));
    must(subscriber_->wait_for(receipt.version, test::kPatience));
    return receipt.version;
  }
  ServerMemory server_of(const Trained& model) {
    ServerMemory server(*device_, model);
    write(server.address(), server.blank());
    return server;
  }
  std::unique_ptr<DeviceTensors> bind(const ServerMemory& server) {
    return must(DeviceTensors::bind(device_, server.tensors()));
  }
  /// Publishes the model, and binds a server's tensors that hold nothing of it yet.
  struct Bound {
    ServerMemory server;
    std::unique_ptr<DeviceTensors> tensors;
    Stream stream;  ///< For refreshes.
  };
  Bound bound_to(const Trained& model) {
    publish(model);
    ServerMemory server = server_of(model);
    auto tensors = bind(server);
    return {std::move(server), std::move(tensors), must(device_->create_stream())};
  }
  DeviceRefresh refresh(const std::unique_ptr<DeviceTensors>& tensors, const Stream& stream) {
    return must(tensors->refresh(subscriber_->snapshot(), stream.handle()));
  }
  void expect_holds(const ServerMemory& server, const Trained& model) {
    EXPECT_TRUE(test::same_bytes(read(server.address(), server.bytes()), server.with(model)));
  }
  HostPlatform& host() { return dynamic_cast<HostPlatform&>(*platform_); }
  /// A host device that is made in another way.
  void open_host(const HostOptions& options) {
    device_ = nullptr;
    platform_ = std::make_unique<HostPlatform>(options);
    device_ = must(platform_->open(host_device_uuid(0)));
  }

  TemporaryFolder folder_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<Subscriber> subscriber_;
};

}  // namespace freshet::gpu
