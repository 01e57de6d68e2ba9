// SPDX-License-Identifier: Apache-2.0
#pragma once

/// HTTP requests over connections that are used again. Private to this folder.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "repo/s3/library.h"

namespace freshet::s3 {

struct HttpRequest {
  std::string method = "GET";  ///< GET, HEAD, PUT or DELETE.
  std::string url;
  std::vector<std::string> headers;  ///< "name: value".
  Bytes body;                        ///< Of a PUT.
  /// Where the body of an answer 200 or 206 goes. Without: into HttpAnswer::body.
  std::optional<MutableBytes> out;
  /// The client stops reading a longer body.
  std::uint64_t body_bytes_max = std::uint64_t{1} << 20;
  Time deadline;
};

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string, std::less<>> headers;  ///< By names in lower case.
  std::string body;
  std::uint64_t out_bytes = 0;  ///< Written to HttpRequest::out.
  bool is_cut = false;          ///< The body is longer than allowed, or than `out`; its rest was not read.

  /// Empty if there is no such header.
  std::string_view header(std::string_view name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string_view() : std::string_view(found->second);
  }
};

struct HttpOutcome {
  /// Set if no answer came. unavailable, timed_out, cancelled or io_error.
  std::optional<Error> error;
  /// The server may have the request, or may get it later. With an answer: the request was sent twice, and this is
  /// about the sending that was not answered.
  bool may_have_arrived = false;
  HttpAnswer answer;
};

/// Any thread.
class HttpClient {
 public:
  struct Options {
    std::size_t connections_max = 16;  ///< Calls beyond this number wait for their turn.
    std::string ca_file;               ///< Empty: the system's certificates.
  };
  /// unavailable: this machine has no libcurl.
  static Result<std::unique_ptr<HttpClient>> open(const Options& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  std::size_t connections_max() const { return options_.connections_max; }
  HttpOutcome send(const HttpRequest& request);
  /// Seconds since 1970 of a header's date; nothing if it is none.
  std::optional<std::int64_t> unix_s_of(const std::string& date) const;

 private:
  /// One request at a time, on one connection that stays open.
  struct Line;

  HttpClient(const CurlLibrary& library, const Options& options);
  Result<std::unique_ptr<Line>> take_line(Time deadline);
  void give_back(std::unique_ptr<Line> line);
  HttpOutcome send_on(Line& line, const HttpRequest& request);

  const CurlLibrary& curl_;
  const Options options_;
  Mutex mutex_;
  CondVar given_back_;
  std::vector<std::unique_ptr<Line>> idle_ FRESHET_GUARDED_BY(mutex_);
  std::size_t taken_ FRESHET_GUARDED_BY(mutex_) = 0;
};

}  // namespace freshet::s3
