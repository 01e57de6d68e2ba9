// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One tensor's delta as weight folders have it (transport/file/weight_folder.h). For transport/file's own source
/// files.

#include <string>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet::file {

/// Immutable; any thread.
class WeightDelta {
 public:
  /// unsupported names what is not known here.
  static Result<WeightDelta> of(const std::string& encoding, const std::string& compression,
                                const std::string& checksum);

  /// In place; `memory` must afterwards have that checksum. corrupt otherwise: its content is undefined then.
  Status apply(Bytes frame, const std::string& checksum, MutableBytes memory) const;

 private:
  explicit WeightDelta(bool overwrite) : overwrite_(overwrite) {}
  Status apply_xor(Bytes frame, MutableBytes memory) const;
  Status apply_overwrite(Bytes frame, MutableBytes memory) const;
  bool overwrite_;
};

}  // namespace freshet::file
