// SPDX-License-Identifier: Apache-2.0
/// The backend that rests in a pool of Ceph's. Blobs are cut into objects of 4 MiB under a name that no other write has
/// ever used; one change of the table of heads makes all of a writer's blobs exist. Records are another table.

#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "core/base/env.h"
#include "core/base/format.h"
#include "core/base/mutex.h"
#include "repo/rados/pool.h"

namespace freshet {
namespace rados {
namespace {

constexpr std::uint64_t kObjectBytes = std::uint64_t{4} << 20;
constexpr std::size_t kGenerationText = 16;

// Keys of the table of heads.
constexpr char kBlob = 'b';     ///< + blob key: where it is.
constexpr char kWriting = 'w';  ///< + generation: a writer is at work, or never came to its end.
constexpr char kGarbage = 'g';  ///< + generation + blob key: to be removed.

/// Where a blob is.
struct Head {
  std::uint64_t bytes = 0;
  std::string generation;
};

std::string encode(const Head& head) { return format("{}:{}", head.generation, head.bytes); }

Result<Head> decode_head(std::string_view text) {
  const auto colon = text.find(':');
  std::uint64_t bytes = 0;
  bool good = colon == kGenerationText && colon + 1 < text.size() && text.size() - colon <= 20;
  for (std::size_t i = colon + 1; good && i < text.size(); ++i) {
    good = text[i] >= '0' && text[i] <= '9';
    bytes = bytes * 10 + static_cast<std::uint64_t>(text[i] - '0');
  }
  if (!good) return fail(Code::corrupt, "a blob's head is damaged");
  return Head{.bytes = bytes, .generation = std::string(text.substr(0, colon))};
}

std::string hex(std::string_view key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * key.size());
  for (const char c : key) {
    text.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    text.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return text;
}

std::string object_name(std::string_view generation, std::string_view key, std::uint64_t index) {
  return format("{}.{}.{}", generation, hex(key), index);
}

std::uint64_t objects_of(std::uint64_t bytes) { return (bytes + kObjectBytes - 1) / kObjectBytes; }

/// Any thread.
class RadosBackend final : public Backend {
 public:
  RadosBackend(std::unique_ptr<Pool> pool, bool read_only) : pool_(std::move(pool)), read_only_(read_only) {}

  Status load() {
    const MutexLock turn(turn_);
    if (!read_only_) FRESHET_TRY(collect_unfinished());
    std::map<std::string, Head, std::less<>> heads;
    std::map<std::string, Head, std::less<>> garbage;
    Status read;
    FRESHET_TRY(pool_->scan(Pool::kHeads, "", [&](std::string_view key, std::string_view value) {
      if (key.empty() || key.front() == kWriting) return true;
      Result<Head> head = decode_head(value);
      if (!head) read = fail(std::move(head).error());
      if (read) (key.front() == kBlob ? heads : garbage).emplace(key.substr(1), std::move(*head));
      return static_cast<bool>(read);
    }));
    FRESHET_TRY(read);
    const std::unique_lock lock(mutex_);
    heads_ = std::move(heads);
    garbage_ = std::move(garbage);
    return {};
  }

  std::string_view kind() const override { return "rados"; }
  bool durable() const override { return true; }
  bool read_only() const override { return read_only_; }

  Result<std::unique_ptr<BlobWriter>> write_blobs() override {
    FRESHET_TRY(check_writable());
    std::string generation = format("{:016x}", random_u64(system_env()));
    {
      const MutexLock turn(turn_);
      FRESHET_TRY(pool_->change(Pool::kHeads, {.set = {{kWriting + generation, ""}}}));
      writing_.insert(generation);
    }
    return std::make_unique<Writer>(*this, std::move(generation));
  }

  Status read_blob(std::string_view key, std::uint64_t offset, MutableBytes out) const override {
    Head head;
    {
      const std::shared_lock lock(mutex_);
      const auto found = heads_.find(key);
      if (found == heads_.end()) return fail(Code::not_found, "no such blob");
      head = found->second;
    }
    if (offset > head.bytes || out.size() > head.bytes - offset) {
      return fail(Code::corrupt, format("the blob has {} bytes, not {}", head.bytes, offset + out.size()));
    }
    Pool::Flight flight(*pool_);
    while (!out.empty()) {
      const std::uint64_t within = offset % kObjectBytes;
      const std::size_t bytes = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), kObjectBytes - within));
      FRESHET_TRY(flight.read(object_name(head.generation, key, offset / kObjectBytes), within, out.first(bytes)));
      out = out.subspan(bytes);
      offset += bytes;
    }
    Status status = flight.wait();
    if (!status && status.error().code() == Code::not_found) {
      return fail(Code::corrupt, "a part of the blob is missing: " + status.error().message());
    }
    return status;
  }

  Status erase_blob(std::string_view key) override {
    FRESHET_TRY(check_writable());
    const MutexLock turn(turn_);
    const auto found = heads_.find(key);
    if (found == heads_.end()) return {};
    std::string dead = found->second.generation + std::string(key);
    FRESHET_TRY(pool_->change(
        Pool::kHeads, {.set = {{kGarbage + dead, encode(found->second)}}, .remove = {kBlob + std::string(key)}}));
    const std::unique_lock lock(mutex_);
    garbage_.emplace(std::move(dead), found->second);
    heads_.erase(found);
    return {};
  }

  Status list_blobs(const std::function<bool(std::string_view, std::uint64_t)>& each) const override {
    std::vector<std::pair<std::string, std::uint64_t>> blobs;
    {
      const std::shared_lock lock(mutex_);
      for (const auto& [key, head] : heads_) blobs.emplace_back(key, head.bytes);
    }
    for (const auto& [key, bytes] : blobs) {
      if (!each(key, bytes)) break;
    }
    return {};
  }

  Status reclaim() override {
    FRESHET_TRY(check_writable());
    std::map<std::string, Head, std::less<>> garbage;
    {
      const std::shared_lock lock(mutex_);
      garbage = garbage_;
    }
    for (const auto& [name, head] : garbage) {
      const std::string_view key = std::string_view(name).substr(kGenerationText);
      for (std::uint64_t index = 0; index < objects_of(head.bytes); ++index) {
        FRESHET_TRY(pool_->remove(object_name(head.generation, key, index)));
      }
      FRESHET_TRY(pool_->change(Pool::kHeads, {.remove = {kGarbage + name}}));
      const std::unique_lock lock(mutex_);
      garbage_.erase(name);
    }
    return {};
  }

  Status apply(const Batch& batch) override {
    FRESHET_TRY(check_writable());
    std::map<std::string, const std::string*> last;
    for (const auto& one : batch) {
      if (const auto* put = std::get_if<Put>(&one)) {
        last[put->key] = &put->value;
      } else {
        last[std::get<Erase>(one).key] = nullptr;
      }
    }
    TableChange change;
    for (const auto& [key, value] : last) {
      if (value != nullptr) {
        change.set.emplace_back(key, *value);
      } else {
        change.remove.push_back(key);
      }
    }
    // Alone, so that a scan over several pages sees one state.
    const std::unique_lock lock(records_mutex_);
    return pool_->change(Pool::kRecords, change);
  }

  Result<std::string> get(std::string_view key) const override { return pool_->get(Pool::kRecords, key); }

  Status scan(std::string_view prefix,
              const std::function<bool(std::string_view, std::string_view)>& each) const override {
    std::vector<std::pair<std::string, std::string>> entries;
    {
      const std::shared_lock lock(records_mutex_);
      FRESHET_TRY(pool_->scan(Pool::kRecords, prefix, [&](std::string_view key, std::string_view value) {
        entries.emplace_back(key, value);
        return true;
      }));
    }
    for (const auto& [key, value] : entries) {
      if (!each(key, value)) break;
    }
    return {};
  }

  Status recover() override {
    FRESHET_TRY(check_writable());
    FRESHET_TRY(pool_->fence());
    return load();
  }

  Result<DiskUse> disk_use() const override {
    DiskUse use;
    FRESHET_TRY(pool_->scan(Pool::kRecords, "", [&](std::string_view key, std::string_view value) {
      use.metadata_bytes += key.size() + value.size();
      return true;
    }));
    const std::shared_lock lock(mutex_);
    for (const auto* heads : {&heads_, &garbage_}) {
      for (const auto& [key, head] : *heads) {
        use.metadata_bytes += key.size();
        use.bytes += head.bytes;
      }
    }
    use.bytes += use.metadata_bytes;
    return use;
  }

 private:
  class Writer final : public BlobWriter {
   public:
    Writer(RadosBackend& backend, std::string generation)
        : backend_(backend), generation_(std::move(generation)), flight_(*backend.pool_) {}
    ~Writer() override {
      static_cast<void>(flight_.wait());
      if (!committed_) static_cast<void>(backend_.drop(generation_, written_));
      const MutexLock turn(backend_.turn_);
      backend_.writing_.erase(generation_);
    }

    Status write(std::string_view key, Bytes bytes) override {
      // What is written twice is overwritten in place, which nobody can have read yet.
      Head& head = written_[std::string(key)];
      head.generation = generation_;
      const std::uint64_t before = head.bytes;
      head.bytes = std::max<std::uint64_t>(before, bytes.size());
      if (before != 0) FRESHET_TRY(flight_.wait());
      for (std::uint64_t offset = 0; offset < bytes.size(); offset += kObjectBytes) {
        const std::size_t part = static_cast<std::size_t>(std::min(kObjectBytes, bytes.size() - offset));
        FRESHET_TRY(flight_.write(object_name(generation_, key, offset / kObjectBytes), bytes.subspan(offset, part)));
      }
      for (std::uint64_t index = objects_of(bytes.size()); index < objects_of(before); ++index) {
        FRESHET_TRY(backend_.pool_->remove(object_name(generation_, key, index)));
      }
      head.bytes = bytes.size();
      return {};
    }

    Status commit() override {
      FRESHET_TRY(flight_.wait());
      FRESHET_TRY(backend_.take(generation_, written_));
      committed_ = true;
      return {};
    }

   private:
    RadosBackend& backend_;
    const std::string generation_;
    std::map<std::string, Head> written_;
    Pool::Flight flight_;
    bool committed_ = false;
  };

  Status check_writable() const {
    if (read_only_) return fail(Code::failed_precondition, "the repository is opened for reading only");
    return {};
  }

  /// Makes a writer's blobs exist, all at once.
  Status take(const std::string& generation, const std::map<std::string, Head>& written) {
    TableChange change;
    const MutexLock turn(turn_);
    for (const auto& [key, head] : written) {
      change.set.emplace_back(kBlob + key, encode(head));
      if (const auto old = heads_.find(key); old != heads_.end()) {
        change.set.emplace_back(kGarbage + old->second.generation + key, encode(old->second));
      }
    }
    change.remove.push_back(kWriting + generation);
    FRESHET_TRY(pool_->change(Pool::kHeads, change));
    const std::unique_lock lock(mutex_);
    for (const auto& [key, head] : written) {
      Head& there = heads_[key];
      if (!there.generation.empty()) garbage_.emplace(there.generation + key, there);
      there = head;
    }
    return {};
  }

  Status drop(const std::string& generation, const std::map<std::string, Head>& written) {
    for (const auto& [key, head] : written) {
      for (std::uint64_t index = 0; index < objects_of(head.bytes); ++index) {
        FRESHET_TRY(pool_->remove(object_name(generation, key, index)));
      }
    }
    return pool_->change(Pool::kHeads, {.remove = {kWriting + generation}});
  }

  /// Removes the objects of writers that never came to their end. This process owns the repository, so those that are
  /// still at work are its own.
  Status collect_unfinished() FRESHET_REQUIRES(turn_) {
    std::vector<std::string> generations;
    const auto* const at_work = &writing_;
    FRESHET_TRY(pool_->scan(Pool::kHeads, std::string_view(&kWriting, 1), [&](std::string_view key, std::string_view) {
      if (at_work->count(std::string(key.substr(1))) == 0) generations.emplace_back(key.substr(1));
      return true;
    }));
    if (generations.empty()) return {};
    FRESHET_ASSIGN(const std::vector<std::string> objects, pool_->objects());
    for (const std::string& object : objects) {
      for (const std::string& generation : generations) {
        if (object.starts_with(generation + ".")) FRESHET_TRY(pool_->remove(object));
      }
    }
    TableChange done;
    for (const std::string& generation : generations) done.remove.push_back(kWriting + generation);
    return pool_->change(Pool::kHeads, done);
  }

  const std::unique_ptr<Pool> pool_;
  const bool read_only_;
  mutable std::shared_mutex records_mutex_;  ///< Held across a change: see apply().
  /// Who changes the heads; held across the change. They are read with it or with the next one, and written with both.
  Mutex turn_;
  std::set<std::string> writing_ FRESHET_GUARDED_BY(turn_);  ///< Generations of this process's writers.
  mutable std::shared_mutex mutex_;
  std::map<std::string, Head, std::less<>> heads_;
  std::map<std::string, Head, std::less<>> garbage_;  ///< By generation and key.
};

}  // namespace
}  // namespace rados

Result<std::unique_ptr<Backend>> open_rados_backend(const RadosOptions& options) {
  FRESHET_ASSIGN(std::unique_ptr<rados::Pool> pool, rados::Pool::open(options));
  auto backend = std::make_unique<rados::RadosBackend>(std::move(pool), options.read_only);
  FRESHET_TRY(backend->load());
  return backend;
}

}  // namespace freshet
