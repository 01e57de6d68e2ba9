// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/http.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/text.h"

namespace freshet::s3 {
namespace {

constexpr Duration kConnectMax = std::chrono::seconds(4);
/// A server that sends and takes nothing for so long has lost the connection: seconds.
constexpr long kSilenceMax = 8;
constexpr long kTransferBufferBytes = 512 << 10;
constexpr std::size_t kHeadersMax = 100;
constexpr std::size_t kHeaderBytesMax = 8 << 10;

/// What libcurl's callbacks fill.
struct Transfer {
  const HttpRequest& request;
  HttpAnswer answer;
  /// libcurl sends a request once more by itself, on a new connection, if a used one ends without an answer.
  int sendings = 0;
};

/// A connection stands, and the request is about to leave.
int count_sending(void* to, char*, char*, int, int) {
  ++static_cast<Transfer*>(to)->sendings;
  return CURL_PREREQFUNC_OK;
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::size_t take_header(char* data, std::size_t one, std::size_t bytes, void* to) {
  HttpAnswer& answer = static_cast<Transfer*>(to)->answer;
  const std::string_view line = trimmed(std::string_view(data, one * bytes));
  if (line.starts_with("HTTP/")) {
    // A new answer: what was before is a "100 Continue", or a proxy's.
    answer = HttpAnswer();
    const auto space = line.find(' ');
    if (space == std::string_view::npos) return 0;
    const std::string_view digits = line.substr(space + 1, 3);
    if (std::from_chars(digits.data(), digits.data() + digits.size(), answer.status).ec != std::errc()) return 0;
    return one * bytes;
  }
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return one * bytes;
  if (answer.headers.size() == kHeadersMax || line.size() > kHeaderBytesMax) return 0;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  answer.headers[std::move(name)] = trimmed(line.substr(colon + 1));
  return one * bytes;
}

std::size_t take_body(char* data, std::size_t one, std::size_t bytes, void* to) {
  Transfer& transfer = *static_cast<Transfer*>(to);
  HttpAnswer& answer = transfer.answer;
  const std::size_t count = one * bytes;
  if (transfer.request.out && (answer.status == 200 || answer.status == 206)) {
    const MutableBytes out = transfer.request.out->subspan(answer.out_bytes);
    const std::size_t fits = std::min(count, out.size());
    if (fits != 0) std::memcpy(out.data(), data, fits);
    answer.out_bytes += fits;
    answer.is_cut = fits != count;
  } else {
    const std::size_t fits =
        static_cast<std::size_t>(std::min<std::uint64_t>(count, transfer.request.body_bytes_max - answer.body.size()));
    answer.body.append(data, fits);
    answer.is_cut = fits != count;
  }
  return answer.is_cut ? 0 : count;
}

long milliseconds_until(Time deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - system_clock().now()).count();
  return std::clamp<long>(static_cast<long>(left), 0, 24L * 3600 * 1000);
}

Code code_of_curl(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT: return Code::timed_out;
    case CURLE_OUT_OF_MEMORY: return Code::out_of_space;
    // A person must act on these.
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE: return Code::failed_precondition;
    default: return Code::unavailable;
  }
}

}  // namespace

struct HttpClient::Line {
  explicit Line(const CurlLibrary& library)
      : curl(library), easy(library.curl_easy_init()), multi(library.curl_multi_init()) {}
  ~Line() {
    if (easy != nullptr) curl.curl_easy_cleanup(easy);
    if (multi != nullptr) static_cast<void>(curl.curl_multi_cleanup(multi));
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  const CurlLibrary& curl;
  CURL* const easy;
  CURLM* const multi;  ///< Has the connection.
  std::array<char, CURL_ERROR_SIZE> reason{};
};

Result<std::unique_ptr<HttpClient>> HttpClient::open(const Options& options) {
  FRESHET_ASSIGN(const CurlLibrary* const library, curl_library());
  return std::unique_ptr<HttpClient>(new HttpClient(*library, options));
}

HttpClient::HttpClient(const CurlLibrary& library, const Options& options) : curl_(library), options_(options) {}
HttpClient::~HttpClient() = default;

std::optional<std::int64_t> HttpClient::unix_s_of(const std::string& date) const {
  const time_t seconds = curl_.curl_getdate(date.c_str(), nullptr);
  if (seconds < 0) return std::nullopt;
  return static_cast<std::int64_t>(seconds);
}

Result<std::unique_ptr<HttpClient::Line>> HttpClient::take_line(Time deadline) {
  {
    const MutexLock lock(mutex_);
    while (taken_ == options_.connections_max) {
      FRESHET_TRY(Interruption::check());
      if (system_clock().now() >= deadline) {
        return fail(Code::timed_out,
                    format("{} requests are under way, and none ended before the deadline", options_.connections_max));
      }
      given_back_.wait_until(mutex_, Interruption::next_look(deadline));
    }
    ++taken_;
    if (!idle_.empty()) {
      std::unique_ptr<Line> line = std::move(idle_.back());  // The warmest.
      idle_.pop_back();
      return line;
    }
  }
  auto line = std::make_unique<Line>(curl_);
  if (line->easy == nullptr || line->multi == nullptr) {
    give_back(nullptr);
    return fail(Code::out_of_space, "no memory for a connection");
  }
  return line;
}

void HttpClient::give_back(std::unique_ptr<Line> line) {
  const MutexLock lock(mutex_);
  --taken_;
  if (line) idle_.push_back(std::move(line));
  given_back_.notify_one();
}

HttpOutcome HttpClient::send(const HttpRequest& request) {
  Result<std::unique_ptr<Line>> line = take_line(request.deadline);
  if (!line) return {.error = std::move(line).error()};
  HttpOutcome outcome = send_on(**line, request);
  give_back(std::move(*line));
  return outcome;
}

HttpOutcome HttpClient::send_on(Line& line, const HttpRequest& request) {
  const long milliseconds = milliseconds_until(request.deadline);
  if (milliseconds == 0) return {.error = Error(Code::timed_out, "the deadline passed before the request was sent")};
  Transfer transfer{.request = request, .answer = {}, .sendings = 0};
  line.reason.front() = '\0';
  curl_slist* headers = nullptr;
  bool set = true;
  const auto set_option = [&](CURLoption option, auto value) {
    set = set && curl_.curl_easy_setopt(line.easy, option, value) == CURLE_OK;
  };
  const auto add_header = [&](const std::string& text) {
    curl_slist* const longer = curl_.curl_slist_append(headers, text.c_str());
    set = set && longer != nullptr;
    if (longer != nullptr) headers = longer;
  };
  curl_.curl_easy_reset(line.easy);
  set_option(CURLOPT_URL, request.url.c_str());
  set_option(CURLOPT_PROTOCOLS_STR, "http,https");
  set_option(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set_option(CURLOPT_NOSIGNAL, 1L);
  set_option(CURLOPT_ERRORBUFFER, line.reason.data());
  set_option(CURLOPT_TIMEOUT_MS, milliseconds);
  const auto connect_ms = std::chrono::duration_cast<std::chrono::milliseconds>(kConnectMax).count();
  set_option(CURLOPT_CONNECTTIMEOUT_MS, std::min(milliseconds, static_cast<long>(connect_ms)));
  set_option(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set_option(CURLOPT_LOW_SPEED_TIME, kSilenceMax);
  // A wish only: a look-up of a name ends at its deadline, and leaves its thread to a server that never answers.
  static_cast<void>(curl_.curl_easy_setopt(line.easy, CURLOPT_QUICK_EXIT, 1L));
  // Wishes only: after a failed look-up of a name, libcurl 7.88 keeps the buffer that it has, and refuses.
  static_cast<void>(curl_.curl_easy_setopt(line.easy, CURLOPT_BUFFERSIZE, kTransferBufferBytes));
  static_cast<void>(curl_.curl_easy_setopt(line.easy, CURLOPT_UPLOAD_BUFFERSIZE, kTransferBufferBytes));
  set_option(CURLOPT_PREREQFUNCTION, &count_sending);
  set_option(CURLOPT_PREREQDATA, static_cast<void*>(&transfer));
  set_option(CURLOPT_HEADERFUNCTION, &take_header);
  set_option(CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
  set_option(CURLOPT_WRITEFUNCTION, &take_body);
  set_option(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  if (!options_.ca_file.empty()) set_option(CURLOPT_CAINFO, options_.ca_file.c_str());
  if (request.method == "HEAD") {
    set_option(CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT") {
    set_option(CURLOPT_POSTFIELDS, request.body.empty() ? "" : reinterpret_cast<const char*>(request.body.data()));
    set_option(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set_option(CURLOPT_CUSTOMREQUEST, "PUT");
    add_header("Content-Type: application/octet-stream");
  } else if (request.method == "DELETE") {
    set_option(CURLOPT_CUSTOMREQUEST, "DELETE");
  }
  for (const std::string& header : request.headers) add_header(header);
  set_option(CURLOPT_HTTPHEADER, headers);

  HttpOutcome outcome;
  CURLcode code = CURLE_OK;
  const CURLMcode added = set ? curl_.curl_multi_add_handle(line.multi, line.easy) : CURLM_OK;
  if (!set || added != CURLM_OK) {
    outcome.error = Error(Code::io_error, format("libcurl does not take the request: {}",
                                                 set ? curl_.curl_multi_strerror(added) : "an option is refused"));
  } else {
    for (int running = 1;;) {
      CURLMcode many = curl_.curl_multi_perform(line.multi, &running);
      if (many == CURLM_OK && running != 0) {
        const long wait = milliseconds_until(Interruption::next_look(request.deadline + std::chrono::seconds(1)));
        many = curl_.curl_multi_poll(line.multi, nullptr, 0, static_cast<int>(wait), nullptr);
      }
      if (many != CURLM_OK) {
        outcome.error = Error(Code::io_error, format("libcurl: {}", curl_.curl_multi_strerror(many)));
        break;
      }
      if (running == 0) break;
      if (Status goes_on = Interruption::check(); !goes_on) {
        outcome.error = std::move(goes_on).error();
        break;
      }
    }
    int left = 0;
    while (const CURLMsg* const message = curl_.curl_multi_info_read(line.multi, &left)) {
      if (message->msg == CURLMSG_DONE) code = message->data.result;
    }
    static_cast<void>(curl_.curl_multi_remove_handle(line.multi, line.easy));
  }
  curl_.curl_slist_free_all(headers);
  // The client itself ended a transfer that brought too much.
  const bool is_answer = code == CURLE_OK || (code == CURLE_WRITE_ERROR && transfer.answer.is_cut);
  if (!outcome.error && !is_answer) {
    const std::string reason =
        line.reason.front() != '\0' ? std::string(line.reason.data()) : curl_.curl_easy_strerror(code);
    outcome.error = Error(code_of_curl(code), shown(reason));
  }
  // The code does not tell: the connection that failed may be the second one.
  outcome.may_have_arrived = transfer.sendings > (outcome.error ? 0 : 1);
  outcome.answer = std::move(transfer.answer);
  return outcome;
}

}  // namespace freshet::s3
