// SPDX-License-Identifier: Apache-2.0
#include "transport/source/delta_cache.h"

#include <algorithm>
#include <chrono>

namespace freshet::source {
namespace {
/// Entries without a payload take room too.
constexpr std::size_t kEntriesMax = std::size_t{1} << 18;
constexpr double kCostMemory = 0.75;
/// What one measurement may say: a thread that had to wait says nothing of encoding.
constexpr double kSlownessMin = 0.25;
constexpr double kSlownessMax = 8;
/// Below, what comes once for each delta hides what comes for each byte.
constexpr std::uint64_t kMeasuredBytesMin = std::uint64_t{1} << 20;

EncodingCosts costs_at(double slowness) {
  EncodingCosts costs;
  costs.scan_ns_per_byte *= slowness;
  costs.encode_ns_per_change *= slowness;
  return costs;
}
}  // namespace

DeltaCache::Payload DeltaCache::get(const DeltaSpec& spec, Bytes base, Bytes target,
                                    std::uint64_t link_bytes_per_second) {
  const Key key{spec.base, spec.target};
  double slowness = 1;
  {
    MutexLock lock(mutex_);
    if (auto found = find(key, base.size(), 0)) return *found;
    slowness = slowness_;
  }
  const EncodingQuestion question =
      sampled_question(spec.dtype, base, target, static_cast<double>(link_bytes_per_second), costs_at(slowness));
  const bool worth_trying = choose_encoding(question) == Encoding::delta;
  const std::uint64_t longest = longest_delta(question);
  {
    MutexLock lock(mutex_);
    // Not noted: to find it out again costs no more than to find a note of it.
    if (!worth_trying) return ++stat_.not_worth, nullptr;
    if (auto found = find(key, base.size(), longest)) return *found;
    const auto [entry, added] = entries_.try_emplace(key);
    if (added) entry->second.recency = recent_.insert(recent_.begin(), key);
    entry->second.making = true;
  }
  const auto started = std::chrono::steady_clock::now();
  auto encoded = encode_delta(spec, base, target, longest);
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - started;
  Payload payload;
  if (encoded) payload = std::make_shared<const std::vector<std::byte>>(std::move(*encoded));

  MutexLock lock(mutex_);
  Entry& entry = entries_.at(key);
  entry.making = false;
  entry.payload = payload;
  entry.larger_than = payload == nullptr ? longest : 0;
  if (payload != nullptr) {
    ++stat_.made;
    stat_.bytes += payload->size();
    measured(question, took.count());
  } else {
    ++stat_.not_worth;
  }
  make_room();
  made_.notify_all();
  return payload;
}

void DeltaCache::put(const DeltaSpec& spec, Payload payload) {
  const Key key{spec.base, spec.target};
  MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && (found->second.making || found->second.payload != nullptr)) return;
  Entry& entry = entries_[key];
  if (found == entries_.end()) entry.recency = recent_.insert(recent_.begin(), key);
  entry.payload = std::move(payload);
  entry.larger_than = 0;
  stat_.bytes += entry.payload->size();
  make_room();
}

std::optional<DeltaCache::Payload> DeltaCache::find(const Key& key, std::uint64_t bytes, std::uint64_t longest) {
  while (entries_.contains(key) && entries_.at(key).making) made_.wait(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return std::nullopt;
  Entry& entry = found->second;
  recent_.splice(recent_.begin(), recent_, entry.recency);
  // One that is there already costs nothing to make.
  if (entry.payload != nullptr && entry.payload->size() < bytes) return ++stat_.found, entry.payload;
  if (entry.payload == nullptr && longest > 0 && entry.larger_than >= longest) return ++stat_.not_worth, nullptr;
  return std::nullopt;
}

void DeltaCache::measured(EncodingQuestion question, double took_ns) {
  if (question.bytes < kMeasuredBytesMin) return;
  question.costs = {};
  const double slowness = std::clamp(took_ns / expected_encode_ns(question), kSlownessMin, kSlownessMax);
  slowness_ = kCostMemory * slowness_ + (1 - kCostMemory) * slowness;
}

void DeltaCache::make_room() {
  for (auto oldest = recent_.end(); oldest != recent_.begin();) {
    if (stat_.bytes <= bytes_max_ && entries_.size() <= kEntriesMax) return;
    --oldest;
    const auto entry = entries_.find(*oldest);
    if (entry->second.making) continue;
    if (entry->second.payload != nullptr) stat_.bytes -= entry->second.payload->size();
    entries_.erase(entry);
    oldest = recent_.erase(oldest);
  }
}

DeltaCache::Stat DeltaCache::stat() const {
  MutexLock lock(mutex_);
  return stat_;
}

}  // namespace freshet::source
