// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Walking through keys of which some lie in damaged blocks. Private to this room.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <rocksdb/iterator.h>
#include "core/base/result.h"

namespace freshet {

/// Keys that could not be read, if there are any: those behind `after` and before `before`, and with neither of them.
struct Hole {
  std::string after;   ///< Begins with the prefix that was asked for, or is just that.
  std::string before;  ///< Empty: no key is known to stand behind the hole.
  std::string reason;  ///< RocksDB's own words.
};

/// Calls back for every key with this prefix that can be read, ascending, until false. A damaged block hides what is in
/// it and, where several tables have keys of its range, what these have there; `holes` says where. Other errors than
/// damage end the walk and are answered.
Status scan_readable(rocksdb::Iterator& at, std::string_view prefix,
                     const std::function<bool(std::string_view key, std::string_view value)>& each,
                     std::vector<Hole>& holes);

/// corrupt, with the first of the holes' reasons; or no error, where there is none.
Status status_of(const std::vector<Hole>& holes, std::string_view what);

}  // namespace freshet
