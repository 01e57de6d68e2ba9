// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Which blobs the segments' records name. Private to this room.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace freshet {

/// Filled from the records in their order, then asked about blobs in theirs: one pass over both. One thread at a time.
class KeptBlobs {
 public:
  /// `key`: the record's, without its prefix.
  void add(std::string_view key, std::string_view value);
  /// REQUIRES: blobs in ascending order of their keys.
  bool keeps(std::string_view blob);

 private:
  enum class Form { whole, delta, unknown };
  struct Segment {
    std::string key;
    Form form;  ///< Unknown where the record is damaged: both are kept then.
  };
  std::vector<Segment> segments_;
  std::size_t next_ = 0;
};

}  // namespace freshet
