// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Segments on the disk: as they are, or as a lossless delta onto one that is kept as it is. Private to this room.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "repo/backend/backend.h"
#include "repo/local/catalog/locked_catalog.h"
#include "repo/records/records.h"

namespace freshet {

/// Any thread.
class StoredSegments {
 public:
  StoredSegments(Backend& backend, LockedCatalog& known) : backend_(backend), known_(known) {}

  /// Reads a whole segment into `out`, however it is encoded; the caller proves it against its digest. corrupt when it
  /// is missing or not as long as `out`.
  Status read(const SegmentName& segment, MutableBytes out) const;
  /// The same, and proves it.
  Status read_proved(const SegmentName& segment, const Digest& digest, MutableBytes out) const;
  /// Some of a segment's bytes, unproved. A segment that is kept as a delta is rebuilt for it, and stays rebuilt until
  /// another one is asked for.
  Status read_part(const SegmentName& segment, std::uint64_t offset, MutableBytes out) const;
  Result<SegmentRow> row(const SegmentName& segment) const;
  /// Whether its blob, which is no delta, has these bytes. Reads all of them, a piece at a time.
  Result<bool> is_whole(const SegmentName& segment, std::uint64_t bytes, const Digest& digest) const;
  /// The record of a delta, whose length the blob of its base has shown to be true: before memory is taken for it.
  Result<SegmentRow> rebuildable(const SegmentName& segment) const;
  std::optional<SegmentName> base_of(const SegmentName& segment) const;
  /// The segments, and those that they are deltas onto, each once, ascending: what must stay for them to be read.
  std::vector<SegmentName> with_bases(std::vector<SegmentName> segments) const;
  /// The size in the record under this key; nothing when there is no such record.
  Result<std::optional<std::uint64_t>> bytes_of_record(const std::string& key) const;

  /// Reads all records into the catalog, unless that was done. An owner's are read when he opens the repository.
  Status need_records();
  struct Sums {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };
  /// Where nobody has read the records, what the last owner kept is believed if nothing was written since.
  Result<Sums> sums();
  /// For the process that opens the repository next.
  void keep_sums();

 private:
  /// A segment that is not kept as it is.
  Status rebuild(const SegmentName& segment, MutableBytes out) const;

  Backend& backend_;
  LockedCatalog& known_;
  /// The last segment that was rebuilt in whole for a part of it.
  struct Rebuilt {
    SegmentName segment;
    std::vector<std::byte> bytes;
  };
  mutable Mutex rebuilt_mutex_;
  mutable std::shared_ptr<const Rebuilt> rebuilt_ FRESHET_GUARDED_BY(rebuilt_mutex_);
};

/// A segment has the same bytes wherever it is named; corrupt says how they differ.
Status check_same(const SegmentRow& stored, const SegmentRow& named);

}  // namespace freshet
