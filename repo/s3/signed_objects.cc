// SPDX-License-Identifier: Apache-2.0
/// Sends requests that a store's owner has signed.

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/s3/http.h"
#include "repo/s3/object_answers.h"
#include "repo/s3/s3_store.h"
#include "repo/s3/sender.h"

namespace freshet {
namespace s3 {
namespace {

constexpr std::size_t kSignedUrlBytesMax = 16 << 10;
constexpr std::size_t kSignedHeadersMax = 16;

/// The request comes from another process.
Status check_signed(const SignedRequest& request) {
  const auto is_good = [](std::string_view text) { return text.size() <= kSignedUrlBytesMax && !has_controls(text); };
  const bool is_web = request.url.starts_with("http://") || request.url.starts_with("https://");
  if (request.url.starts_with("rados://")) {
    return fail(Code::unsupported, format("{}: only a process with a keyring reads this", shown(request.url, 64)));
  }
  bool good = is_web && is_good(request.url) && request.headers.size() <= kSignedHeadersMax;
  for (const auto& [name, value] : request.headers) good = good && is_good(name) && is_good(value);
  return good ? Status() : refuse(format("{}: this is no signed request of a store", shown(request.url, 64)));
}

/// Without the query, which lets its holder in.
std::string without_query(const std::string& url) { return shown(url.substr(0, url.find('?')), 256); }

/// Any thread.
class S3SignedObjects final : public SignedObjects {
 public:
  explicit S3SignedObjects(std::unique_ptr<HttpClient> http) : http_(std::move(http)) {}

  Status read(const SignedRequest& request, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    FRESHET_TRY(check_signed(request));
    if (out.empty()) return {};
    HttpRequest get = request_of(request, deadline);
    get.headers.push_back("range: " + range_of(offset, out.size()));
    get.out = out;
    const Told told = send(get, request, "read");
    if (told.error) return fail(*told.error);
    Status read = check_range(told.answer, offset, out.size());
    if (!read) return fail(std::move(read).error().with_context(without_query(request.url)));
    return {};
  }

  Creation create(const SignedRequest& request, Bytes bytes, Time deadline) override {
    if (Status good = check_signed(request); !good) {
      return {.outcome = Created::refused, .error = std::move(good).error()};
    }
    HttpRequest put = request_of(request, deadline);
    put.method = "PUT";
    put.body = bytes;
    return creation_of(send(put, request, "create"));
  }

 private:
  static HttpRequest request_of(const SignedRequest& request, Time deadline) {
    HttpRequest made;
    made.url = request.url;
    for (const auto& [name, value] : request.headers) {
      // The length of what is really sent; the store compares it with the signed one.
      if (name != "content-length") made.headers.push_back(name + ": " + value);
    }
    made.deadline = deadline;
    return made;
  }

  Told send(const HttpRequest& made, const SignedRequest& request, std::string_view what) const {
    const AskedOf asked{.place = without_query(request.url), .bucket = "of this request"};
    return send_until_settled(*http_, asked, {.what = what, .make = [&]() -> Result<HttpRequest> { return made; }});
  }

  const std::unique_ptr<HttpClient> http_;
};

}  // namespace
}  // namespace s3

Result<std::unique_ptr<SignedObjects>> open_s3_signed_objects(const S3Options& options, const Env& env) {
  FRESHET_ASSIGN(std::unique_ptr<s3::HttpClient> http,
                 s3::HttpClient::open({.connections_max = options.connections_max,
                                       .ca_file = env.variable("AWS_CA_BUNDLE").value_or("")}));
  return std::make_unique<s3::S3SignedObjects>(std::move(http));
}

}  // namespace freshet
