// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/answers.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "core/base/format.h"
#include "core/base/text.h"
#include "repo/s3/listing.h"

namespace freshet::s3 {
namespace {

enum class Meaning : std::uint8_t {
  unknown_key,
  wrong_secret,
  ended,
  no_rights,
  no_bucket,
  no_object,
  exists,
  clock,
  region,
  busy,
  damaged,
  full,
  too_large,
  no_such_function,
};

struct Known {
  std::string_view code;
  Meaning meaning;
};
/// "Error responses" of the Amazon S3 API Reference, and what other stores answer in its place.
constexpr std::array<Known, 36> kKnown = {{
    {"InvalidAccessKeyId", Meaning::unknown_key},
    {"SignatureDoesNotMatch", Meaning::wrong_secret},
    {"ExpiredToken", Meaning::ended},
    {"InvalidToken", Meaning::ended},
    {"TokenRefreshRequired", Meaning::ended},
    {"AccessDenied", Meaning::no_rights},
    {"AllAccessDisabled", Meaning::no_rights},
    {"AccountProblem", Meaning::no_rights},
    {"Unauthorized", Meaning::no_rights},
    {"NoSuchBucket", Meaning::no_bucket},
    {"NoSuchKey", Meaning::no_object},
    {"PreconditionFailed", Meaning::exists},
    {"RequestTimeTooSkewed", Meaning::clock},
    {"RequestExpired", Meaning::clock},
    {"AuthorizationHeaderMalformed", Meaning::region},
    {"PermanentRedirect", Meaning::region},
    {"TemporaryRedirect", Meaning::region},
    {"IllegalLocationConstraintException", Meaning::region},
    {"SlowDown", Meaning::busy},
    {"SlowDownRead", Meaning::busy},
    {"SlowDownWrite", Meaning::busy},
    {"TooManyRequests", Meaning::busy},
    {"ServiceUnavailable", Meaning::busy},
    {"InternalError", Meaning::busy},
    {"RequestTimeout", Meaning::busy},
    {"OperationAborted", Meaning::busy},
    {"ConditionalRequestConflict", Meaning::busy},
    {"BadDigest", Meaning::damaged},
    {"InvalidDigest", Meaning::damaged},
    {"XAmzContentSHA256Mismatch", Meaning::damaged},
    {"IncompleteBody", Meaning::damaged},
    {"QuotaExceeded", Meaning::full},
    {"XMinioStorageFull", Meaning::full},
    {"InsufficientStorage", Meaning::full},
    {"EntityTooLarge", Meaning::too_large},
    {"NotImplemented", Meaning::no_such_function},
}};

constexpr std::int64_t kClockDifferenceMax = 15 * 60;  // Of S3.
constexpr std::int64_t kRetryAfterMax = 5;

std::optional<Meaning> meaning_of(std::string_view code) {
  for (const Known& known : kKnown) {
    if (known.code == code) return known.meaning;
  }
  return std::nullopt;
}

bool is_page(const HttpAnswer& answer) { return answer.header("content-type").starts_with("text/html"); }

Error not_the_stores(const HttpAnswer& answer) {
  const std::string_view server = answer.header("server");
  return Error(
      Code::unavailable,
      format("the answer (HTTP {}, {}{}{}) is not an object store's: is there a proxy between, or another "
             "service at this endpoint?",
             answer.status,
             answer.header("content-type").empty() ? "no content type" : shown(answer.header("content-type"), 64),
             server.empty() ? "" : ", from ", shown(server, 64)));
}

Error clock_error(std::int64_t store_unix_s) {
  const std::int64_t ahead = system_clock().unix_ns() / 1'000'000'000 - store_unix_s;
  return Error(Code::failed_precondition,
               format("this machine's clock is {} s {} the store's, which allows {} s; set the clock (NTP)",
                      std::llabs(ahead), ahead < 0 ? "behind" : "ahead of", kClockDifferenceMax));
}

bool is_far(std::optional<std::int64_t> store_unix_s) {
  return store_unix_s && std::llabs(system_clock().unix_ns() / 1'000'000'000 - *store_unix_s) > kClockDifferenceMax;
}

/// What the store said, in brackets.
std::string in_its_words(const HttpAnswer& answer, const S3Refusal& refusal) {
  return format("(HTTP {} {}{}{})", answer.status, refusal.code, refusal.message.empty() ? "" : ": ", refusal.message);
}

Verdict refused(Code code, std::string message) { return {.error = Error(code, std::move(message))}; }

Verdict rights_verdict(Meaning meaning, const AskedOf& asked, const std::string& words) {
  if (asked.credentials.empty()) {
    return refused(Code::failed_precondition,
                   format("the store does not take the signed request: its life has ended, or its signer lacks the "
                          "rights {}",
                          words));
  }
  Verdict verdict;
  verdict.renew_credentials = meaning != Meaning::no_rights;
  if (meaning == Meaning::unknown_key) {
    verdict.error = Error(Code::failed_precondition,
                          format("the store does not know the access key ID of {} {}", asked.credentials, words));
  } else if (meaning == Meaning::wrong_secret) {
    verdict.error = Error(
        Code::failed_precondition,
        format("the secret access key does not belong to the access key ID; correct {} {}", asked.credentials, words));
  } else if (meaning == Meaning::ended) {
    verdict.error =
        Error(Code::failed_precondition, format("the session token has ended; renew {} {}", asked.credentials, words));
  } else {
    verdict.error =
        Error(Code::failed_precondition, format("the credentials of {} have no right to do this in bucket {} {}",
                                                asked.credentials, asked.bucket, words));
  }
  return verdict;
}

Duration retry_after(const HttpAnswer& answer) {
  const std::string_view text = answer.header("retry-after");
  std::int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || seconds < 0) return Duration::zero();
  return std::chrono::seconds(std::min(seconds, kRetryAfterMax));
}

Verdict busy_verdict(const HttpAnswer& answer, std::string message) {
  return {.error = Error(Code::unavailable, std::move(message)),
          .ask_again = true,
          // Only a 4xx tells that nothing was done: a gateway's 5xx may hide that the store did it.
          .may_be_done = answer.status >= 500,
          .pause_min = retry_after(answer)};
}

Verdict verdict_on(Meaning meaning, const HttpAnswer& answer, const S3Refusal& refusal, const AskedOf& asked,
                   std::optional<std::int64_t> date_unix_s) {
  const std::string words = in_its_words(answer, refusal);
  switch (meaning) {
    case Meaning::unknown_key:
    case Meaning::wrong_secret:
    case Meaning::ended:
    case Meaning::no_rights: break;
    case Meaning::no_bucket:
      return refused(Code::failed_precondition, format("there is no bucket {}; make it first {}", asked.bucket, words));
    case Meaning::no_object: return refused(Code::not_found, "there is no such object");
    case Meaning::exists: return refused(Code::already_exists, "there is an object already");
    case Meaning::clock: {
      Verdict verdict =
          refused(Code::failed_precondition, format("the store finds this machine's clock wrong {}", words));
      if (date_unix_s) verdict.error = clock_error(*date_unix_s);
      return verdict;
    }
    case Meaning::region: {
      const std::string_view told = answer.header("x-amz-bucket-region");
      const std::string region = told.empty() ? refusal.region : shown(told, 64);
      return refused(Code::failed_precondition,
                     region.empty() || region == asked.region
                         ? format("the store does not take region {}; give ?region=R {}", asked.region, words)
                         : format("bucket {} is in region {}, not {}; give ?region={}", asked.bucket, region,
                                  asked.region, region));
    }
    case Meaning::busy: return busy_verdict(answer, format("the store is too busy {}", words));
    case Meaning::damaged: {
      Verdict verdict =
          refused(Code::unavailable, format("the bytes were changed, or damaged on their way to the store {}", words));
      verdict.ask_again = true;
      return verdict;
    }
    case Meaning::full: return refused(Code::out_of_space, format("the store is full {}", words));
    case Meaning::too_large: return refused(Code::invalid_argument, format("the object is too large {}", words));
    case Meaning::no_such_function:
      return refused(Code::unsupported, format("the store does not know a needed function {}", words));
  }
  return rights_verdict(meaning, asked, words);
}

}  // namespace

Verdict judge(const HttpOutcome& outcome, const AskedOf& asked, std::optional<std::int64_t> date_unix_s,
              bool wants_tag) {
  if (outcome.error) {
    const Code code = outcome.error->code();
    return {.error = outcome.error,
            .ask_again = code == Code::unavailable || code == Code::timed_out,
            .may_be_done = outcome.may_have_arrived};
  }
  const HttpAnswer& answer = outcome.answer;
  if (answer.status >= 200 && answer.status < 300) {
    // An object may be a page itself; then the store's mark tells that it is the store's.
    const bool is_marked = !answer.header("x-amz-request-id").empty();
    if ((is_marked || !is_page(answer)) && (!wants_tag || !answer.header("etag").empty())) return {};
    return {.error = not_the_stores(answer), .may_be_done = true};
  }
  const S3Refusal refusal = parse_refusal(answer.body);
  if (const std::optional<Meaning> meaning = meaning_of(refusal.code)) {
    Verdict verdict = verdict_on(*meaning, answer, refusal, asked, date_unix_s);
    // Stores find a signature of another time wrong, or without rights, before they look at the clock.
    const bool is_about_rights = *meaning == Meaning::wrong_secret || *meaning == Meaning::no_rights;
    if (is_about_rights && is_far(date_unix_s)) verdict.error = clock_error(*date_unix_s);
    return verdict;
  }
  if (answer.status == 412) return refused(Code::already_exists, "there is an object already");
  if (answer.status == 416) return refused(Code::corrupt, "the object is shorter than the range");
  if (!refusal.code.empty() && answer.status < 500) {
    return refused(Code::failed_precondition, format("the store refuses {}", in_its_words(answer, refusal)));
  }
  // A balancer's own page says as much as the number.
  if (answer.status >= 500 || answer.status == 429) {
    return busy_verdict(answer, format("the store, or what stands before it, answers HTTP {}", answer.status));
  }
  return {.error = not_the_stores(answer), .may_be_done = true};
}

}  // namespace freshet::s3
