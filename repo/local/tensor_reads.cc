// SPDX-License-Identifier: Apache-2.0
#include "repo/local/tensor_reads.h"

#include "core/base/format.h"

namespace freshet {

Status check_reads(const VersionRecord& record, std::span<const Repository::TensorRead> reads) {
  const Manifest& manifest = record.manifest;
  const auto tensors = manifest.architecture->tensors();
  if (!record.has_weights) return fail(Code::failed_precondition, to_string(manifest.name) + " has no weights");
  for (const Repository::TensorRead& read : reads) {
    if (read.tensor >= tensors.size()) {
      return fail(Code::invalid_argument, format("{} has no tensor {}", to_string(manifest.name), read.tensor));
    }
    const TensorSpec& spec = tensors[read.tensor];
    if (read.out.size() != spec.bytes()) {
      return fail(Code::invalid_argument, format("{} {}: {} bytes of room for {}", to_string(manifest.name), spec.name,
                                                 read.out.size(), spec.bytes()));
    }
  }
  return {};
}

}  // namespace freshet
