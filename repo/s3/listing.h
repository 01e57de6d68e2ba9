// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The XML that S3 answers with. Everything in it is checked. Private to this folder.

#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "repo/object_store/object_store.h"

namespace freshet::s3 {

struct Listing {
  ObjectPage page;
  /// The last key of the answer; also one that the page leaves out. Nothing: the answer has no keys.
  std::optional<std::string> last;
};

/// A <ListBucketResult>. Keys stand in it as the store has them, with `prefix` in front; the page has them without.
/// It leaves out keys that end with "/": consoles make such objects as folders, `prefix` itself among them.
/// unavailable: the text is no such answer. corrupt: keys that were not asked for, or not in order.
Result<Listing> parse_listing(std::string_view xml, std::string_view prefix);

/// An <Error>.
struct S3Refusal {
  std::string code;  ///< Empty: the text is no such answer.
  std::string message;
  std::string region;  ///< The one that the store wants instead; often empty.
};
S3Refusal parse_refusal(std::string_view xml);

}  // namespace freshet::s3
