// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The parts of stored architectures that a match looks at, kept so that an index is built without decoding and hashing
/// them. An entry is found by the digest of its architecture, which says all that the entry can say: so an entry is
/// never old, and one that is missing is made again. repo/FORMAT.md, "Derived texts", has the bytes.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/base/digest.h"
#include "repo/match/graph.h"

namespace freshet {

/// The name of the derived text that has them (Backend::derived()).
inline constexpr std::string_view kKeptGraphsName = "graphs";

/// One entry. Entries stand behind each other.
std::string encode_kept_graph(const Digest& architecture, const MatchGraph& graph);

/// Reads entries. Immutable; any thread.
class KeptGraphs {
 public:
  /// Each entry's seal is checked. Nothing behind a damaged one is used.
  explicit KeptGraphs(std::string text);

  /// Null if it is not among the entries, or is no graph.
  std::shared_ptr<const MatchGraph> find(const Digest& architecture) const;
  /// The entry as it stands; empty if there is none.
  std::string_view entry(const Digest& architecture) const;
  /// Of all entries that are not damaged, with those that come twice.
  std::size_t bytes() const { return bytes_; }
  /// False: the text ends with what is no entry.
  bool is_whole() const { return bytes_ == text_.size(); }

 private:
  const std::string text_;
  std::size_t bytes_ = 0;
  std::unordered_map<Digest, std::string_view> entries_;
};

}  // namespace freshet
