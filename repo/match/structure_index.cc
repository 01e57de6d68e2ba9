// SPDX-License-Identifier: Apache-2.0
#include "repo/match/structure_index.h"

#include <array>

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
  Impl() : writer(shelf, epochs) {}

  detail::Shelf shelf;
  mutable detail::Epochs epochs;
  Mutex turn;
  detail::IndexWriter writer;
};

StructureIndex::StructureIndex() : impl_(std::make_unique<Impl>()) {}
StructureIndex::~StructureIndex() = default;

Status StructureIndex::insert(const IndexEntry& entry, std::uint64_t as_of) {
  const MutexLock turn(impl_->turn);
  FRESHET_TRY(impl_->writer.insert(entry));
  impl_->writer.publish(as_of);
  return {};
}

bool StructureIndex::retire(const VersionId& id, std::uint64_t as_of) {
  const MutexLock turn(impl_->turn);
  const bool there = impl_->writer.retire(id);
  impl_->writer.publish(as_of);
  return there;
}

bool StructureIndex::set_quality(const VersionId& id, std::optional<double> quality, std::uint64_t as_of) {
  const MutexLock turn(impl_->turn);
  const bool there = impl_->writer.restate(id, quality, nullptr);
  impl_->writer.publish(as_of);
  return there;
}

bool StructureIndex::restate(const VersionId& id, std::optional<double> quality, const std::vector<Digest>& tags,
                             std::uint64_t as_of) {
  const MutexLock turn(impl_->turn);
  const bool there = impl_->writer.restate(id, quality, &tags);
  impl_->writer.publish(as_of);
  return there;
}

void StructureIndex::add_tombstone(const VersionId& id, const std::optional<VersionId>& ancestor) {
  const MutexLock turn(impl_->turn);
  impl_->writer.add_line(id, ancestor);
  impl_->writer.publish(0);
}

void StructureIndex::set_as_of(std::uint64_t as_of) {
  const MutexLock turn(impl_->turn);
  impl_->writer.publish(as_of);
}

std::uint64_t StructureIndex::as_of() const {
  const detail::Epochs::Reader reader(impl_->epochs);
  return impl_->writer.view().load()->as_of;
}

MatchAnswer StructureIndex::match(const MatchQuery& query, const std::optional<VersionId>& excluded) const {
  std::array<std::byte, 16384> first;
  std::pmr::monotonic_buffer_resource memory(first.data(), first.size());
  const detail::Epochs::Reader reader(impl_->epochs);
  const detail::View& view = *impl_->writer.view().load();
  return {.top = detail::Search(impl_->shelf, view, query, excluded, &memory).run(), .as_of = view.as_of};
}

StructureIndex::Memory StructureIndex::memory() const {
  const MutexLock turn(impl_->turn);
  return impl_->writer.memory();
}

}  // namespace freshet
