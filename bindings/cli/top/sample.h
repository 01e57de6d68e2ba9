// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The questions of `freshet top`, and the members of their answers. An answer is the publisher's word: what it holds
/// is looked at before it is used.

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/cli/frame/output.h"
#include "core/base/result.h"
#include "transport/security.h"

namespace freshet::cli {

struct TopPlace {
  std::string model;  ///< Empty: all models.
  std::string at;     ///< Of one publisher; empty: ask the directory.
  std::string directory;
  SecurityOptions security;
};

/// The model's part of the answer, as docs/cli/json.md tells it.
Result<Json> sample_model(const TopPlace& place);

/// The models that are published at the place, by name. One whose publisher gives no answer has "error" and its model
/// alone. Asks many publishers at the same time.
Result<std::vector<Json>> sample_all(const TopPlace& place);

/// 0, "" or false where the object has no such member of that kind.
std::uint64_t stat_number(const Json& object, const char* key);
std::string stat_text(const Json& object, const char* key);
bool stat_flag(const Json& object, const char* key);
/// An empty one where the object has none.
Json stat_list(const Json& object, const char* key);

}  // namespace freshet::cli
