#pragma once

/// What the transport tests share: a host directory of their own, models whose bytes say which version they belong to,
/// and conditions with deadlines.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::testing {

inline constexpr Duration kPatience = std::chrono::seconds(60);

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = ::testing::TempDir() + "freshet-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Waits for a condition that no other call waits for.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

/// `tensors` tensors of `elements` u64 each; every element of tensor t in the publish with stamp s is s * 1000 + t.
class StampedModel {
 public:
  StampedModel(std::size_t tensors, std::size_t elements, std::string prefix = "layer") : prefix_(std::move(prefix)) {
    for (std::size_t t = 0; t < tensors; ++t) values_.emplace_back(elements);
    stamp_all(0);
  }

  void stamp(std::size_t tensor, std::uint64_t stamp) {
    std::fill(values_[tensor].begin(), values_[tensor].end(), stamp * 1000 + tensor);
  }
  void stamp_all(std::uint64_t to) {
    for (std::size_t t = 0; t < values_.size(); ++t) stamp(t, to);
  }

  std::vector<TensorView> views() const {
    std::vector<TensorView> views;
    for (std::size_t t = 0; t < values_.size(); ++t) {
      views.push_back(
          {.spec = {.name = prefix_ + std::to_string(t) + ".weight", .dtype = DType::u64, .shape = {values_[t].size()}},
           .data = bytes_of(values_[t].data(), values_[t].size())});
    }
    return views;
  }

 private:
  std::string prefix_;
  std::vector<std::vector<std::uint64_t>> values_;
};

/// The stamp that every element of the tensor carries, or nothing when they differ: torn.
inline std::optional<std::uint64_t> stamp_of(const Snapshot& snapshot, std::uint32_t tensor) {
  const Bytes bytes = snapshot.bytes(tensor);
  std::uint64_t first = 0;
  for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, 8);
    if (at == 0) first = value;
    if (value != first) return std::nullopt;
  }
  if (first % 1000 != tensor) return std::nullopt;
  return first / 1000;
}

inline std::unique_ptr<Publisher> open_publisher(PublisherOptions options) {
  auto publisher = Publisher::open(std::move(options));
  EXPECT_TRUE(publisher) << publisher.error().message();
  return publisher ? std::move(*publisher) : nullptr;
}

inline std::unique_ptr<Subscriber> open_subscriber(SubscriberOptions options) {
  auto subscriber = Subscriber::open(std::move(options));
  EXPECT_TRUE(subscriber) << subscriber.error().message();
  return subscriber ? std::move(*subscriber) : nullptr;
}

/// Publishes and waits until it is announced. Returns its number, 0 for an error (which fails the test).
inline VersionNumber publish(Publisher& publisher, const StampedModel& model, PublishOptions options = {}) {
  const auto receipt = publisher.publish(model.views(), std::move(options));
  EXPECT_TRUE(receipt) << receipt.error().message();
  if (!receipt) return 0;
  const auto report = publisher.wait_committed(receipt->version, kPatience);
  EXPECT_TRUE(report) << report.error().message();
  return report ? receipt->version : 0;
}

}  // namespace freshet::testing
