// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/s3_store.h"

#include <optional>
#include <utility>

#include "core/base/format.h"
#include "repo/s3/credentials.h"
#include "repo/s3/http.h"
#include "repo/s3/listing.h"
#include "repo/s3/object_answers.h"
#include "repo/s3/sender.h"
#include "repo/s3/signature.h"

namespace freshet {
namespace s3 {
namespace {

/// The signature of a larger body has its CRC-32C instead of its SHA-256, which takes ten times as long.
constexpr std::size_t kSha256BytesMax = 1 << 20;
/// For the calls of a log's member, which sends six at a time, and for small objects.
constexpr std::size_t kSmallCallsMax = 16;
/// A key in a listing, with all that stands around it.
constexpr std::uint64_t kListedBytesMax = 4096;
constexpr std::int64_t kSignedLifeMin = 1;
constexpr std::int64_t kSignedLifeMax = 3600;

std::int64_t unix_s_here() { return system_clock().unix_ns() / 1'000'000'000; }

/// "s3.example:8333" of "http://s3.example:8333", as the header Host has it: without the scheme's own port.
std::string host_of(std::string_view endpoint) {
  const bool is_tls = endpoint.starts_with("https://");
  std::string_view host = endpoint.substr(endpoint.find("://") + 3);
  const std::string_view own_port = is_tls ? ":443" : ":80";
  if (host.ends_with(own_port)) host.remove_suffix(own_port.size());
  return std::string(host);
}

/// A request before its signature.
struct Ask {
  std::string method;
  std::string path;
  NamedValues query;
  NamedValues headers;  ///< Signed, too. Names in lower case.
  Bytes body;
  std::optional<MutableBytes> out;
  std::uint64_t body_bytes_max = 64 << 10;
  Time deadline;
  std::string what;  ///< "create log/7".
  bool wants_tag = true;
};

/// Any thread.
class S3Store final : public ObjectStore {
 public:
  S3Store(S3Address address, std::unique_ptr<HttpClient> http, std::unique_ptr<HttpClient> bulk, const Env& env)
      : address_(std::move(address)),
        host_(host_of(address_.endpoint)),
        http_(std::move(http)),
        bulk_(std::move(bulk)),
        source_(env) {}

  Status look_for_credentials() {
    const Result<Credentials> credentials = source_.credentials();
    if (!credentials) return fail(Error(credentials.error()).with_context(place()));
    return {};
  }

  std::string_view kind() const override { return "s3"; }
  std::string place() const override {
    return format("s3://{}/{} at {}", address_.bucket, address_.prefix, address_.endpoint);
  }

  std::size_t transfers_max() const override { return bulk_->connections_max(); }

  Creation create(std::string_view key, Bytes bytes, Time deadline, std::optional<std::uint32_t> crc32c) override {
    Result<Ask> ask = upload("create", key, bytes, deadline, crc32c);
    if (!ask) return {.outcome = Created::refused, .error = std::move(ask).error()};
    ask->headers.emplace_back("if-none-match", "*");
    return creation_of(send(*ask));
  }

  Status put(std::string_view key, Bytes bytes, Time deadline) override {
    FRESHET_ASSIGN(const Ask ask, upload("put", key, bytes, deadline, std::nullopt));
    return status_of(send(ask));
  }

  Status remove(std::string_view key, Time deadline) override {
    FRESHET_ASSIGN(Ask ask, ask_for("DELETE", "remove", key, deadline));
    ask.wants_tag = false;
    Status removed = status_of(send(ask));
    if (!removed && removed.error().code() == Code::not_found) return {};
    return removed;
  }

  Result<Object> get(std::string_view key, std::uint64_t bytes_max, Time deadline) const override {
    FRESHET_ASSIGN(Ask ask, ask_for("GET", "get", key, deadline));
    ask.headers.emplace_back("x-amz-checksum-mode", "ENABLED");
    ask.body_bytes_max = std::max<std::uint64_t>(bytes_max, ask.body_bytes_max);
    Told told = send(ask);
    if (told.error) return fail(std::move(*told.error));
    if (told.answer.is_cut || told.answer.body.size() > bytes_max) {
      return fail(Code::out_of_space, format("{}: {}: it has more than {} bytes", place(), ask.what, bytes_max));
    }
    Object object;
    FRESHET_ASSIGN(object.head, with_place(head_in(*http_, told.answer), ask));
    object.bytes = std::move(told.answer.body);
    const std::uint32_t crc32c = crc32c_of(bytes_of(object.bytes.data(), object.bytes.size()));
    if (object.head.crc32c.value_or(crc32c) != crc32c) {
      return fail(Code::corrupt, format("{}: {}: the bytes differ from their checksum", place(), ask.what));
    }
    return object;
  }

  Status read(std::string_view key, std::uint64_t offset, MutableBytes out, Time deadline) const override {
    if (out.empty()) {
      FRESHET_ASSIGN(const ObjectHead there, head(key, deadline));
      if (offset <= there.bytes) return {};
      return fail(Code::corrupt,
                  format("{}: read {}: the object has {} bytes, not {}", place(), key, there.bytes, offset));
    }
    FRESHET_ASSIGN(Ask ask, ask_for("GET", "read", key, deadline));
    ask.headers.emplace_back("range", range_of(offset, out.size()));
    ask.out = out;
    Told told = send(ask);
    if (told.error) return fail(std::move(*told.error));
    return with_place(check_range(told.answer, offset, out.size()), ask);
  }

  Result<ObjectHead> head(std::string_view key, Time deadline) const override {
    FRESHET_ASSIGN(Ask ask, ask_for("HEAD", "head", key, deadline));
    ask.headers.emplace_back("x-amz-checksum-mode", "ENABLED");
    const Told told = send(ask);
    if (!told.error) return with_place(head_in(*http_, told.answer), ask);
    const bool has_reason = told.answer.status == 0 || told.answer.status >= 500;
    if (has_reason) return fail(*told.error);
    // The answer to HEAD has no body, and so no reason: a missing object looks as a missing bucket does. GET tells.
    ask.method = "GET";
    ask.headers.emplace_back("range", range_of(0, 1));
    const Told why = send(ask);
    if (why.error && why.error->code() != Code::corrupt) return fail(*why.error);
    return fail(Code::unavailable, format("{}: {}: the object came while it was looked for", place(), ask.what));
  }

  Result<ObjectPage> list(std::string_view prefix, std::string_view after, std::size_t keys_max,
                          Time deadline) const override {
    if (keys_max == 0 || keys_max > kListKeysMax) return refuse(format("list objects: ask for 1 to {}", kListKeysMax));
    std::optional<std::string> from;
    if (!after.empty()) from = after;
    for (;;) {
      const Ask ask = listing(prefix, from, keys_max, deadline);
      const Told told = send(ask);
      if (told.error) return fail(*told.error);
      FRESHET_ASSIGN(Listing listed, with_place(parse_listing(told.answer.body, address_.prefix + "/"), ask));
      for (const ListedObject& one : listed.page.objects) {
        if (one.key > from.value_or("") && one.key.starts_with(prefix)) continue;
        return fail(Code::corrupt,
                    format("{}: {}: the listing has {} after \"{}\"", place(), ask.what, one.key, from.value_or("")));
      }
      if (!listed.page.more || !listed.page.objects.empty()) return std::move(listed.page);
      // A page of nothing but folders that a console made: the objects are in a later one.
      if (!listed.last || (from && *listed.last <= *from)) {
        return fail(Code::corrupt, format("{}: {}: an empty page says that more follow", place(), ask.what));
      }
      from = std::move(listed.last);
    }
  }

  Result<std::int64_t> now_unix_s(Time deadline) const override {
    const Ask ask = listing("", std::nullopt, 1, deadline);
    const Told told = send(ask);
    if (told.error) return fail(*told.error);
    const std::string date(told.answer.header("date"));
    const std::optional<std::int64_t> unix_s = date.empty() ? std::nullopt : http_->unix_s_of(date);
    if (!unix_s) return fail(Code::unavailable, format("{}: the store's answers have no Date", place()));
    return *unix_s;
  }

  Result<SignedRequest> sign_get(std::string_view key, Duration life) const override {
    FRESHET_TRY(check_object_key(key));
    return sign("GET", key, {}, life);
  }

  Result<SignedRequest> sign_create(std::string_view key, std::uint64_t bytes, std::uint32_t crc32c,
                                    Duration life) const override {
    FRESHET_TRY(check_object_key(key));
    if (bytes > kObjectBytesMax) return refuse(format("sign a creation of {}: it has over 64 MiB", key));
    return sign("PUT", key,
                {{"content-length", format("{}", bytes)},
                 {"if-none-match", "*"},
                 {"x-amz-checksum-crc32c", base64_of_crc32c(crc32c)}},
                life);
  }

 private:
  std::string path_of(std::string_view key) const {
    // Of characters that need no encoding.
    return format("/{}/{}/{}", address_.bucket, address_.prefix, key);
  }

  Result<Ask> ask_for(std::string method, std::string_view verb, std::string_view key, Time deadline) const {
    FRESHET_TRY(check_object_key(key));
    Ask ask;
    ask.method = std::move(method);
    ask.path = path_of(key);
    ask.deadline = deadline;
    ask.what = format("{} {}", verb, key);
    return ask;
  }

  Result<Ask> upload(std::string_view verb, std::string_view key, Bytes bytes, Time deadline,
                     std::optional<std::uint32_t> crc32c) const {
    FRESHET_ASSIGN(Ask ask, ask_for("PUT", verb, key, deadline));
    if (bytes.size() > kObjectBytesMax) return refuse(format("{}: it has over 64 MiB", ask.what));
    ask.body = bytes;
    ask.headers.emplace_back("x-amz-checksum-crc32c", base64_of_crc32c(crc32c ? *crc32c : crc32c_of(bytes)));
    return ask;
  }

  Ask listing(std::string_view prefix, const std::optional<std::string>& after, std::size_t keys_max,
              Time deadline) const {
    Ask ask;
    ask.method = "GET";
    ask.path = "/" + address_.bucket;
    ask.query = {
        {"list-type", "2"}, {"max-keys", format("{}", keys_max)}, {"prefix", format("{}/{}", address_.prefix, prefix)}};
    if (after) ask.query.emplace_back("start-after", format("{}/{}", address_.prefix, *after));
    ask.body_bytes_max = (keys_max + 1) * kListedBytesMax;
    ask.deadline = deadline;
    ask.what = "list";
    ask.wants_tag = false;
    return ask;
  }

  Told send(const Ask& ask) const {
    Credentials used;
    const AskedOf asked{
        .place = place(), .bucket = address_.bucket, .region = address_.region, .credentials = source_.origin()};
    const auto make = [&]() -> Result<HttpRequest> {
      FRESHET_ASSIGN(used, source_.credentials());
      return signed_by(used, ask);
    };
    const bool is_large = ask.body.size() > kSha256BytesMax || (ask.out && ask.out->size() > kSha256BytesMax);
    return send_until_settled(
        is_large ? *bulk_ : *http_, asked,
        {.what = ask.what, .make = make, .renew = [&] { return source_.renew(used); }, .wants_tag = ask.wants_tag});
  }

  HttpRequest signed_by(const Credentials& credentials, const Ask& ask) const {
    const SigningScope scope{.region = address_.region, .unix_s = unix_s_here()};
    SignableRequest signable{.method = ask.method, .path = ask.path, .query = ask.query, .headers = ask.headers};
    signable.payload = ask.body.size() > kSha256BytesMax ? std::string(kUnsignedPayload) : hex_sha256_of(ask.body);
    signable.headers.emplace_back("x-amz-content-sha256", signable.payload);
    signable.headers.emplace_back("x-amz-date", amz_date(scope.unix_s));
    if (!credentials.session_token.empty()) {
      signable.headers.emplace_back("x-amz-security-token", credentials.session_token);
    }
    HttpRequest request;
    for (const auto& [name, value] : signable.headers) request.headers.push_back(name + ": " + value);
    signable.headers.emplace_back("host", host_);
    request.headers.push_back("Authorization: " + authorization(signable, credentials, scope));
    request.method = ask.method;
    request.url = address_.endpoint + ask.path;
    if (!ask.query.empty()) request.url += "?" + canonical_query(ask.query);
    request.body = ask.body;
    request.out = ask.out;
    request.body_bytes_max = ask.body_bytes_max;
    request.deadline = ask.deadline;
    return request;
  }

  Result<SignedRequest> sign(std::string method, std::string_view key, NamedValues headers, Duration life) const {
    const std::int64_t life_s = std::chrono::duration_cast<std::chrono::seconds>(life).count();
    if (life_s < kSignedLifeMin || life_s > kSignedLifeMax)
      return refuse("sign a request: give it a life of 1 s to 1 h");
    FRESHET_ASSIGN(const Credentials credentials, source_.credentials());
    const SigningScope scope{.region = address_.region, .unix_s = unix_s_here()};
    SignedRequest request{.url = {}, .headers = headers};
    SignableRequest signable{.method = std::move(method), .path = path_of(key), .query = {}};
    signable.headers = std::move(headers);
    signable.headers.emplace_back("host", host_);
    signable.payload = kUnsignedPayload;
    request.url = address_.endpoint + signable.path + "?" + signed_query(signable, credentials, scope, life_s);
    return request;
  }

  static Status status_of(Told told) {
    if (told.error) return fail(std::move(*told.error));
    return {};
  }
  template <typename T>
  Result<T> with_place(Result<T> result, const Ask& ask) const {
    if (!result) return fail(std::move(result).error().with_context(format("{}: {}", place(), ask.what)));
    return result;
  }

  const S3Address address_;
  const std::string host_;
  const std::unique_ptr<HttpClient> http_;
  const std::unique_ptr<HttpClient> bulk_;  ///< Of its own, so that no call of the log waits for many bytes.
  mutable CredentialSource source_;
};

}  // namespace
}  // namespace s3

Result<std::unique_ptr<ObjectStore>> open_s3_store(const S3Address& address, const S3Options& options, const Env& env) {
  FRESHET_ASSIGN(S3Address whole, completed(address, env));
  const std::string ca_file = env.variable("AWS_CA_BUNDLE").value_or("");
  const auto open = [&](std::size_t connections_max) {
    return s3::HttpClient::open({.connections_max = connections_max, .ca_file = ca_file});
  };
  FRESHET_ASSIGN(auto http, open(s3::kSmallCallsMax));
  FRESHET_ASSIGN(auto bulk, open(whole.connections.value_or(options.connections_max)));
  auto store = std::make_unique<s3::S3Store>(std::move(whole), std::move(http), std::move(bulk), env);
  FRESHET_TRY(store->look_for_credentials());
  return store;
}

}  // namespace freshet
