// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/concurrency/clients.h"

#include <algorithm>
#include <cstring>
#include <latch>
#include <thread>

#include "core/base/format.h"

namespace freshet::benchmarks {
namespace {

using Timestamp = std::chrono::steady_clock::time_point;

double milliseconds(Timestamp from, Timestamp to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

Client::Client(std::uint64_t number, std::size_t tensors, std::size_t bytes)
    : memory_(tensors * bytes, static_cast<std::byte>(number)), room_(tensors * bytes, std::byte{1}) {
  std::vector<TensorSpec> specs;
  for (std::size_t i = 0; i < tensors; ++i) {
    specs.push_back({.name = format("layer{}.kernel", i), .dtype = DType::u8, .shape = {bytes}});
    views_.push_back(Bytes(memory_).subspan(i * bytes, bytes));
    reads_.push_back({.tensor = static_cast<std::uint32_t>(i), .out = MutableBytes(room_).subspan(i * bytes, bytes)});
  }
  manifest_.name.model = format("client{}", number);
  manifest_.id = {.run = {.high = number + 1, .low = 1}, .incarnation = 1};
  manifest_.architecture = Architecture::guess_chain(std::move(specs)).value();
}

void Client::prepare() {
  ++manifest_.id.sequence;
  manifest_.owners = OwnerMap::all_written_by(manifest_.id, views_.size());
  manifest_.digests.clear();
  for (const Bytes view : views_) {
    std::memcpy(memory_.data() + (view.data() - memory_.data()), &manifest_.id.sequence, sizeof(std::uint64_t));
    manifest_.digests.push_back(digest_of(view));
  }
}

Status Client::put(Repository& repository) const {
  const auto bytes_of = [this](std::uint32_t tensor) -> Result<Bytes> { return views_[tensor]; };
  return repository.put(manifest_, bytes_of, {}).map([](const auto&) {});
}

Status Client::load(const Repository& repository, const std::string& model) const {
  FRESHET_ASSIGN(const VersionRecord record, repository.get({.model = model}));
  return repository.read(record, reads_);
}

void Client::copy() {
  for (std::size_t i = 0; i < views_.size(); ++i) {
    std::memcpy(reads_[i].out.data(), views_[i].data(), views_[i].size());
  }
}

Together run_together(std::size_t clients, const std::function<Status(std::size_t client)>& work) {
  std::latch ready(static_cast<std::ptrdiff_t>(clients));
  std::vector<Status> statuses(clients);
  std::vector<Timestamp> starts(clients);
  std::vector<Timestamp> ends(clients);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < clients; ++i) {
      threads.emplace_back([&, i] {
        ready.arrive_and_wait();
        starts[i] = std::chrono::steady_clock::now();
        statuses[i] = work(i);
        ends[i] = std::chrono::steady_clock::now();
      });
    }
  }
  Together together;
  const Timestamp first = *std::min_element(starts.begin(), starts.end());
  for (std::size_t i = 0; i < clients; ++i) {
    together.each.add(milliseconds(first, ends[i]));
    together.all_ms = std::max(together.all_ms, milliseconds(first, ends[i]));
    if (!statuses[i] && together.status) together.status = statuses[i];
  }
  return together;
}

}  // namespace freshet::benchmarks
