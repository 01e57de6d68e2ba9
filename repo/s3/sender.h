// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Sends a request until it is settled: again, with growing pauses, while the store is busy or the connection is cut.
/// Private to this folder.

#include <functional>
#include <optional>
#include <string_view>

#include "core/base/result.h"
#include "repo/object_store/object_store.h"
#include "repo/s3/answers.h"
#include "repo/s3/http.h"

namespace freshet::s3 {

struct Told {
  HttpAnswer answer;
  /// With its context. Codes as those of Verdict::error.
  std::optional<Error> error;
  bool may_be_done = false;  ///< One of the requests may have been done, or may be done later.
};

struct Sending {
  std::string_view what;  ///< "create log/7".
  /// Makes the request; called for each try, since a signature has its time.
  std::function<Result<HttpRequest>()> make;
  /// True: newer credentials are there. May be empty.
  std::function<bool()> renew;
  bool wants_tag = true;
};

/// REQUIRES: each request is harmless if it is done twice.
Told send_until_settled(HttpClient& http, const AskedOf& asked, const Sending& sending);

/// The outcome of a creation.
Creation creation_of(Told told);

}  // namespace freshet::s3
