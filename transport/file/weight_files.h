// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The safetensors files of one version's folder (transport/file/weight_folder.h). They are taken from the folder, not
/// from its index: a name in a file cannot lead anywhere then.

#include <set>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/safetensors/safetensors.h"

namespace freshet::file {

class WeightFiles {
 public:
  /// All of them, in order of their names. not_found when there are none; unavailable when one of them changed before
  /// the last was read: two files of one version then never come from two hands.
  static Result<std::vector<SafetensorsFile>> read(const std::string& version);

  /// Without reading what they hold: unavailable when one of `named` (by the index) is missing, one that another's name
  /// promises ("-00001-of-00004"), or bytes of any.
  static Status check_whole(const std::string& version, const std::set<std::string>& named);

  /// Names, sizes and times of change, the index's too.
  static std::string look_of(const std::string& version);

  /// A delta has a checksum for each of its tensors, which are frames, under its name.
  static bool looks_like_a_delta(const SafetensorsFile& file);
};

}  // namespace freshet::file
