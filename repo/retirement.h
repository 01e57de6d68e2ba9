// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The arguments and results of Repository::retire() and gc().

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/model/ids.h"

namespace freshet {

struct RetireOptions {
  Duration wait = Duration::zero();  ///< The longest wait until nobody pins the version; a day at most.
  std::stop_token stop;              ///< Ends the call's waits: retire() is then `cancelled`, and may have happened.
};

struct RetireReport {
  VersionName version;
  std::uint64_t released_tensors = 0;  ///< Segments that no version names any more; gc() erases them.
  std::uint64_t released_bytes = 0;
};

struct GcOptions {
  /// Changes nothing; lists segments that gc() would erase, and segments of retired writers that stay.
  bool dry_run = false;
  std::stop_token stop;  ///< Ends the call between two segments: `cancelled`. The next gc() goes on.
};

enum class GcReason : std::uint8_t {
  retired,     ///< The segment's writer was retired, and no version names the segment.
  unfinished,  ///< An unfinished put, retire or erasure left the segment.
  inherited,   ///< The segment stays: its writer was retired, but other versions name it.
};

/// The segments of one writer that share a fate.
struct GcRow {
  GcReason reason = GcReason::retired;
  VersionId writer;
  VersionName version;  ///< The writer's name, if it is known here; empty otherwise.
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
  std::vector<VersionName> named_by;  ///< For `inherited`: some of the stored versions that name it, ascending.
  std::uint64_t named_by_count = 0;   ///< All versions that name it, here and on other providers.
};

struct GcReport {
  std::uint64_t freed_bytes = 0;   ///< With dry_run: the bytes that would be freed.
  std::uint64_t live_bytes = 0;    ///< Bytes of the remaining segments.
  std::vector<GcRow> rows;         ///< In the order of the writers. Without dry_run, only segments that nobody needs;
                                   ///< one that a client is fetching stays until the next gc().
  std::vector<std::string> notes;  ///< Steps that were not possible, and why: damage, or a provider that is away.
};

/// A version of another provider that names segments which are stored here.
struct ExternalReferrer {
  VersionId version;
  std::uint64_t attempt = 0;  ///< The put of the version; each put has its own references.
  std::string home;           ///< The provider that knows whether the version exists.
  std::vector<SegmentName> segments;
  bool operator==(const ExternalReferrer&) const = default;
};

inline constexpr std::size_t kGcNamesMax = 5;  ///< GcRow::named_by has at most this many.

/// "written by net@3, which was retired; no version needs it".
std::string why(const GcRow& row);

}  // namespace freshet
