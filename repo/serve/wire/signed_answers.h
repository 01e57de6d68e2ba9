// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The requests that an owner signs, for clients that read from the store itself, or bring tensors there.

#include <vector>

#include "core/base/clock.h"
#include "repo/serve/wire/values.h"

namespace freshet::rpc {

/// Of a tensor: requests that read it from the store, or none.
struct SignedTensor {
  std::vector<SignedPart> parts;
  static void fields(auto& tensor, auto& v) { v(tensor.parts); }
};
struct SignedReads {
  std::vector<SignedTensor> tensors;
  Duration life{};  ///< From the question on.
  static void fields(auto& answer, auto& v) { v(answer.tensors, answer.life); }
};
struct SignedForPut {
  SignedUploads all;
  Duration life{};  ///< From the question on.
  static void fields(auto& answer, auto& v) { v(answer.all, answer.life); }
};

}  // namespace freshet::rpc
