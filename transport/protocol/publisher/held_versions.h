// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The versions that somebody may still want or read: the arena's table of them, and beside each the parts of its
/// grants. A version's record goes when its last holder does, and with it the segments that no other version names,
/// which are collected here until the machine hands them out to be written again. A version that is still coming (a
/// relay's) has a record, which is in no table.
///
/// Invariants:
///   1. A version is in the table if and only if it has a record.
///   2. Every freed segment is handed out exactly once.
/// One thread at a time.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/arena/arena.h"
#include "core/model/manifest.h"
#include "transport/protocol/messages.h"

namespace freshet::protocol {

/// A sealed version, as the publisher's shell hands it over.
struct CommittedVersion {
  std::shared_ptr<const Manifest> manifest;
  std::vector<std::byte> encoded_manifest;
  std::vector<SegmentIndex> segments;     ///< By tensor index; then those in device memory, in any order.
  std::vector<SegmentPlace> places;       ///< Of the former.
  std::vector<std::uint64_t> slab_bytes;  ///< Of every slab so far.
  std::int64_t publish_started_ns = 0;
  /// As Hello::device, Grant::device_places and Grant::device_slab_bytes have it. A version is committed when its copy
  /// in host memory exists, so these places are never its only ones, and every session may be granted it.
  std::string device;
  std::vector<SegmentPlace> device_places;
  std::vector<std::uint64_t> device_slab_bytes;
  /// Versions between the one committed before and this one that this publisher never had and never will have: a
  /// relay's own gaps. An upper bound where it does not know.
  std::uint64_t missed_before = 0;
};

class HeldVersions {
 public:
  /// The newest, and the `retained` - 1 versions before it, are kept though nobody holds them.
  explicit HeldVersions(std::size_t retained = 1) : retained_max_(retained) {}

  struct Record {
    CommittedVersion version;
    std::int64_t announced_ns = 0;
  };

  /// Adds the newest version, which is not coming any more, and lets the oldest retained one go, as far as nobody else
  /// holds it. The order matters: segments that both name stay live throughout.
  void add_newest(CommittedVersion version, std::int64_t announced_ns);

  /// Adds a version that is older than the newest and not here: one that was gone back to. It stays until the next
  /// version of either kind, beside what keep() says. REQUIRES: find() has none of that number.
  void add_older(CommittedVersion version, std::int64_t announced_ns);

  /// 0 before the first.
  VersionNumber newest() const { return newest_; }
  const Record* find(VersionNumber number) const;

  /// Notes that this version is being fetched now, in the place of any other one. Its places and segments are not
  /// looked at.
  void set_coming(CommittedVersion version, std::int64_t announced_ns);
  void forget_coming() { coming_.reset(); }
  VersionNumber coming() const { return coming_ ? coming_->version.manifest->name.number : 0; }  ///< 0: none.
  /// Whether a grant by that channel can be made of it: what is coming can only be fetched.
  bool can_give(VersionNumber number, ChannelKind by) const;
  /// The parts of its grant. REQUIRES: it is here, or coming.
  const Record& record_of(VersionNumber number) const;

  /// These are kept beside the newest until the next call: what is current, and what is about to be. Versions that are
  /// not here any more are passed over.
  void keep(const std::set<VersionNumber>& numbers);
  bool is_kept(VersionNumber number) const { return kept_.contains(number); }

  bool hold(VersionNumber number, HolderId holder) { return table_.hold(number, holder); }
  /// Returns the bytes of the segments that this freed.
  std::uint64_t release(VersionNumber number, HolderId holder);
  void release_all(HolderId holder);

  /// Gives up retained versions, oldest first and never the newest, until `bytes_wanted` bytes were freed or none is
  /// left. Returns the bytes that became free.
  std::uint64_t shed_retained(std::uint64_t bytes_wanted);

  std::vector<SegmentIndex> take_freed();
  const VersionTable& table() const { return table_; }
  /// A holder that is even and nobody else's, nor is the odd one after it: of a session, or a lease.
  HolderId next_holder() { return last_holder_ += 2; }

 private:
  static constexpr HolderId kNewestHolder = 0;
  static constexpr HolderId kRetainedHolder = 1;
  static constexpr HolderId kKeptHolder = ~HolderId{0};
  static constexpr HolderId kOlderHolder = ~HolderId{0} - 1;
  void forget_records();

  std::size_t retained_max_;
  std::deque<VersionNumber> retained_;  ///< Held by kRetainedHolder, ascending; the newest is not among them.
  VersionNumber newest_ = 0;
  std::set<VersionNumber> kept_;  ///< Held by kKeptHolder.
  VersionTable table_;
  std::map<VersionNumber, Record> records_;
  std::optional<Record> coming_;
  HolderId last_holder_ = 0;
  std::vector<SegmentIndex> freed_;
};

}  // namespace freshet::protocol
