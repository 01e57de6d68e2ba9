// SPDX-License-Identifier: Apache-2.0
#include "repo/local/catalog/kept_blobs.h"

#include "repo/records/records.h"

namespace freshet {

void KeptBlobs::add(std::string_view key, std::string_view value) {
  const auto row = decode_segment_row(value);
  segments_.push_back({std::string(key), !row ? Form::unknown : row->base ? Form::delta : Form::whole});
}

bool KeptBlobs::keeps(std::string_view blob) {
  const auto name = segment_of_blob(blob);
  if (!name) return false;
  // A delta's key is the segment's and a mark behind it, so it comes before the next segment's.
  const std::string key = segment_key(*name);
  while (next_ < segments_.size() && segments_[next_].key < key) ++next_;
  if (next_ == segments_.size() || segments_[next_].key != key) return false;
  return segments_[next_].form != (blob == key ? Form::delta : Form::whole);
}

}  // namespace freshet
