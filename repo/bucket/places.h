// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Reads bytes of a log's value from the objects that have them. Private to this folder.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/result.h"
#include "repo/log/log_record.h"
#include "repo/object_store/object_store.h"

namespace freshet::bucket {

/// Bytes from `offset`; the value has so many. Several objects at a time. Each place that is read whole is proved by
/// its digest. not_found: an object is not there. corrupt: its bytes are others.
Status read_places(const ObjectStore& store, const log::Value& value, std::uint64_t offset, MutableBytes out);

/// A whole place, and which answer is its digest.
struct PlaceRead {
  log::Place place;
  MutableBytes out;
  std::size_t read = 0;
};
/// Reads places that lie side by side in an object, one request for each row of two or more. `digests` gets those of
/// what was read; what cannot be read has none. cancelled: the thread's Interruption wants it.
Status read_rows(const ObjectStore& store, std::vector<PlaceRead> reads, std::vector<std::optional<Digest>>& digests);

}  // namespace freshet::bucket
