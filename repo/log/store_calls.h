// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The calls of this folder's machines to an object store, and their answers. A machine does no I/O: a shell (or a
/// simulator) sends each call and brings back exactly one answer, whatever the store does. Calls are independent: the
/// shell may send them in any order, several at a time.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"

namespace freshet::log {

using Ticket = std::uint64_t;

namespace call {
/// Makes the object if there is none with this key.
struct Create {
  std::string key;
  std::string bytes;
};
/// Replaces an object that exists. Repeated and late ones do no harm.
struct Replace {
  std::string key;
  std::string bytes;
};
struct Remove {
  std::string key;
};
struct Get {
  std::string key;
  std::uint64_t bytes_max = 0;
};
/// The first keys with this prefix after `after`.
struct List {
  std::string prefix;
  std::string after;
  std::size_t keys_max = 0;
};
/// The store's clock.
struct AskTime {};
}  // namespace call

struct Call {
  Ticket ticket = 0;
  Duration within{};  ///< Then the shell answers `failed`, or `unsettled` for a creation.
  std::variant<call::Create, call::Replace, call::Remove, call::Get, call::List, call::AskTime> what;
};

struct Answer {
  enum class Kind : std::uint8_t {
    created,    ///< Of a creation: this call made the object.
    exists,     ///< Of a creation: an object stands there, perhaps by an earlier attempt of this very call.
    unsettled,  ///< Of a creation: the object may exist, or may be made later.
    refused,    ///< Of a creation: it did nothing, and will do nothing.
    done,       ///< Replaced, removed (or not there), listed, told the time.
    found,      ///< Of a get.
    not_found,  ///< Of a get.
    failed,     ///< No answer, or an error. A write may have been done, or may be done later.
  };
  Kind kind = Kind::failed;
  std::string bytes;              ///< Of `found`.
  std::vector<std::string> keys;  ///< Of a listing.
  bool more = false;              ///< Of a listing: it goes on after the last key.
  std::int64_t unix_s = 0;        ///< Of AskTime.
  Error error = Error(Code::unavailable, "");
};

/// A slow line, of 1 MB/s, takes so long for these bytes.
inline Duration time_to_carry(std::size_t bytes) { return std::chrono::microseconds(static_cast<std::int64_t>(bytes)); }

/// Gives tickets, and keeps the calls that the shell has not fetched.
class CallBook {
 public:
  template <typename What>
  Ticket add(What what, Duration within) {
    calls_.push_back({.ticket = ++last_, .within = within, .what = std::move(what)});
    return last_;
  }
  std::vector<Call> take() { return std::exchange(calls_, {}); }

 private:
  Ticket last_ = 0;
  std::vector<Call> calls_;
};

}  // namespace freshet::log
