// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What retiring a version and collecting garbage take and answer; Repository::retire() and gc() say what they do.

#include <cstdint>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/ids.h"

namespace freshet {

struct RetireOptions {
  Duration wait = Duration::zero();  ///< How long to wait until nobody pins it.
};

struct RetireReport {
  VersionName version;
  std::uint64_t released_tensors = 0;  ///< Segments that nobody names any more; gc() erases them.
  std::uint64_t released_bytes = 0;
};

struct GcOptions {
  bool dry_run = false;  ///< Says what would go, and what stays though its writer was retired; changes nothing.
};

enum class GcReason : std::uint8_t {
  retired,     ///< Its writer was retired, and nobody names it.
  unfinished,  ///< A put, a retire or an erasure that did not come to its end left it.
  inherited,   ///< It stays: its writer was retired, but others name it.
};

/// The segments of one writer that share a fate.
struct GcRow {
  GcReason reason = GcReason::retired;
  VersionId writer;
  VersionName version;  ///< The writer's name, where it is known here; empty otherwise.
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<VersionName> named_by;  ///< Of `inherited`: some of the stored versions that name it, ascending.
  std::uint64_t named_by_count = 0;   ///< All that name it, here and on other providers.
};

struct GcReport {
  std::uint64_t freed_bytes = 0;   ///< Or, of a dry run, those that would be.
  std::uint64_t live_bytes = 0;    ///< Of the segments that remain.
  std::vector<GcRow> rows;         ///< In the order of the writers. Without a dry run, only what was erased.
  std::vector<std::string> notes;  ///< What could not be done, and why: damage, or a provider that is away.
};

/// Somebody outside who names segments that are stored here: a version of another provider.
struct ExternalReferrer {
  VersionId version;
  std::uint64_t attempt = 0;  ///< Which put of it; each one's references stand for themselves.
  std::string home;           ///< The provider that can say whether the version is there.
  std::vector<SegmentName> segments;
  bool operator==(const ExternalReferrer&) const = default;
};

inline constexpr std::size_t kGcNamesMax = 5;  ///< GcRow::named_by has at most this many.

/// "written by net@3, which was retired; nobody names it".
std::string why(const GcRow& row);

}  // namespace freshet
