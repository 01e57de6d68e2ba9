// SPDX-License-Identifier: Apache-2.0
#pragma once

/// "s3://BUCKET/PREFIX[?endpoint=URL&region=R&connections=N]", and what the environment adds to it.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/env.h"
#include "core/base/result.h"

namespace freshet {

struct S3Address {
  std::string bucket;
  std::string prefix;    ///< Without slashes at its ends.
  std::string endpoint;  ///< "http://HOST[:PORT]" or https; empty: AWS' own of the region.
  std::string region;
  std::optional<std::size_t> connections;  ///< 1 to kS3ConnectionsMax: for objects of more than 1 MiB.
};
inline constexpr std::size_t kS3ConnectionsMax = 64;

bool is_s3_address(std::string_view place);
/// The message of invalid_argument names the fault.
Result<S3Address> parse_s3_address(std::string_view text);
/// The address with an endpoint and a region: the missing ones from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, and from
/// AWS_REGION or AWS_DEFAULT_REGION; then AWS' endpoint, and us-east-1. invalid_argument names the bad variable.
Result<S3Address> completed(S3Address address, const Env& env);

}  // namespace freshet
