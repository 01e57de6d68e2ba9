// SPDX-License-Identifier: Apache-2.0
#include "repo/match/structure_index.h"

#include <array>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "core/base/mutex.h"
#include "repo/match/search.h"
#include "repo/match/writer.h"

namespace freshet {

Digest tag_digest(const std::string& key, const std::string& value) {
  DigestStream stream;
  const std::uint64_t key_bytes = key.size();
  stream.update(bytes_of(&key_bytes, 1));
  stream.update(bytes_of(key.data(), key.size()));
  stream.update(bytes_of(value.data(), value.size()));
  return stream.finish();
}

class StructureIndex::Impl {
 public:
  /// Changes the index, alone.
  template <typename Change>
  auto change(const Change& change) {
    // A search that comes while a change waits goes behind it: otherwise searches without end would keep it out.
    const MutexLock turn(turn_);
    const std::unique_lock alone(mutex_);
    return change(writer_);
  }
  /// Looks at the index, beside others that look.
  template <typename Look>
  auto look(const Look& look) {
    std::shared_lock beside(mutex_, std::defer_lock);
    {
      const MutexLock turn(turn_);
      beside.lock();
    }
    return look(std::as_const(shelf_), std::as_const(writer_));
  }

 private:
  Mutex turn_;
  std::shared_mutex mutex_;
  detail::Shelf shelf_;
  detail::IndexWriter writer_{shelf_};
};

StructureIndex::StructureIndex() : impl_(std::make_unique<Impl>()) {}
StructureIndex::~StructureIndex() = default;

Status StructureIndex::insert(const IndexEntry& entry, std::uint64_t as_of) {
  return impl_->change([&](detail::IndexWriter& writer) -> Status {
    FRESHET_TRY(writer.insert(entry));
    writer.reach(as_of);
    return {};
  });
}

bool StructureIndex::retire(const VersionId& id, std::uint64_t as_of) {
  return impl_->change([&](detail::IndexWriter& writer) {
    writer.reach(as_of);
    return writer.retire(id);
  });
}

bool StructureIndex::restate(const VersionId& id, std::optional<double> quality, const std::vector<Digest>& tags,
                             std::uint64_t as_of) {
  return impl_->change([&](detail::IndexWriter& writer) {
    writer.reach(as_of);
    return writer.restate(id, quality, tags);
  });
}

void StructureIndex::add_tombstone(const VersionId& id, const std::optional<VersionId>& ancestor) {
  impl_->change([&](detail::IndexWriter& writer) { writer.add_line(id, ancestor); });
}

void StructureIndex::set_as_of(std::uint64_t as_of) {
  impl_->change([&](detail::IndexWriter& writer) { writer.reach(as_of); });
}

MatchAnswer StructureIndex::match(const MatchQuery& query, const std::optional<VersionId>& excluded) const {
  std::array<std::byte, 16384> first;
  std::pmr::monotonic_buffer_resource memory(first.data(), first.size());
  return impl_->look([&](const detail::Shelf& shelf, const auto&) {
    return MatchAnswer{.top = detail::Search(shelf, query, excluded, &memory).run(), .as_of = shelf.as_of};
  });
}

StructureIndex::Memory StructureIndex::memory() const {
  return impl_->look([](const auto&, const detail::IndexWriter& writer) { return writer.memory(); });
}

}  // namespace freshet
