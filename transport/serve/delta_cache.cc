#include "transport/serve/delta_cache.h"

#include <algorithm>
#include <chrono>

namespace freshet::serve {
namespace {
/// A delta that saves less than this share is not worth the processor's time on any link.
constexpr double kSavingMin = 0.1;
/// Entries without a payload take room too.
constexpr std::size_t kEntriesMax = std::size_t{1} << 18;
constexpr double kRateMemory = 0.75;
constexpr double kApplyBytesPerSecond = 4e9;  ///< What a receiver does, roughly.
}  // namespace

std::uint64_t worth_bytes(std::uint64_t bytes, std::uint64_t link_bytes_per_second, double encode_bytes_per_second,
                          double apply_bytes_per_second) {
  const double all = static_cast<double>(bytes);
  const double most = all * (1 - kSavingMin);
  if (link_bytes_per_second == 0) return static_cast<std::uint64_t>(most);
  // delta / link + bytes / encode + bytes / apply < bytes / link
  const double work = 1 / encode_bytes_per_second + 1 / apply_bytes_per_second;
  const double left = all * (1 - static_cast<double>(link_bytes_per_second) * work);
  return left <= 0 ? 0 : static_cast<std::uint64_t>(std::min(most, left));
}

DeltaCache::Payload DeltaCache::get(const DeltaSpec& spec, Bytes base, Bytes target,
                                    std::uint64_t link_bytes_per_second) {
  const Key key{spec.base, spec.target};
  std::uint64_t worth = 0;
  {
    MutexLock lock(mutex_);
    while (entries_.contains(key) && entries_.at(key).making) made_.wait(mutex_);
    worth = worth_bytes(base.size(), link_bytes_per_second, encode_bytes_per_second_, kApplyBytesPerSecond);
    const auto found = entries_.find(key);
    if (found != entries_.end()) {
      touch(key, found->second);
      const Payload& payload = found->second.payload;
      // One that is there already costs nothing to make.
      if (payload != nullptr && payload->size() < base.size()) return ++stat_.found, payload;
      if (payload == nullptr && found->second.larger_than >= worth) return ++stat_.not_worth, nullptr;
    }
    if (worth == 0) return ++stat_.not_worth, nullptr;
    Entry& entry = entries_[key];
    if (found == entries_.end()) entry.recency = recent_.insert(recent_.begin(), key);
    entry.making = true;
  }
  const auto started = std::chrono::steady_clock::now();
  auto encoded = encode_delta(spec, base, target, worth);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  Payload payload;
  if (encoded) payload = std::make_shared<const std::vector<std::byte>>(std::move(*encoded));

  MutexLock lock(mutex_);
  Entry& entry = entries_.at(key);
  entry.making = false;
  entry.payload = payload;
  entry.larger_than = payload == nullptr ? worth : 0;
  if (payload != nullptr) {
    ++stat_.made;
    stat_.bytes += payload->size();
    const double rate = static_cast<double>(base.size()) / std::max(took.count(), 1e-9);
    encode_bytes_per_second_ = kRateMemory * encode_bytes_per_second_ + (1 - kRateMemory) * rate;
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

void DeltaCache::touch(const Key&, Entry& entry) { recent_.splice(recent_.begin(), recent_, entry.recency); }

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

}  // namespace freshet::serve
