// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Expected failure as a value. Every function that can fail for a reason outside our control returns a Result<T> or a
/// Status; no exception crosses a room.
///
/// A Code tells the caller what to do next. The message tells what was tried, on what, and why it failed. Callers add
/// context on the way up ("fetch demo@17 from shm: …: connection refused").

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace freshet {

enum class Code : std::uint8_t {
  invalid_argument,     ///< The caller's input is wrong; the same call will fail again.
  not_found,            ///< The named thing does not exist.
  already_exists,       ///< The name is taken.
  failed_precondition,  ///< Not in this state (a model of another shape, a closed publisher).
  corrupt,              ///< Bytes differ from the written ones; never retry.
  unavailable,          ///< A peer or a service is not there now; retry later.
  timed_out,            ///< The deadline passed; retry later.
  out_of_space,         ///< Memory, disk or a limit is used up; free something.
  cancelled,            ///< The caller asked to stop.
  unsupported,          ///< This build or machine cannot do it; the message says why.
  io_error,             ///< The operating system refused; the message has its reason.
};

/// The code's name as it appears in JSON and logs ("not_found").
std::string_view name_of(Code code);

class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with "context: " in front of its message.
  Error with_context(std::string_view context) &&;

 private:
  Code code_;
  std::string message_;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

/// An Error ready to be returned from a function of any Result type.
inline tl::unexpected<Error> fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error(code, std::move(message)));
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
/// The request or an argument is not allowed: invalid_argument.
inline tl::unexpected<Error> refuse(std::string message) { return fail(Code::invalid_argument, std::move(message)); }

/// Maps errno to a Code: ENOENT is not_found, ENOSPC and ENOMEM are out_of_space, and so on; the message ends with the
/// system's own words.
tl::unexpected<Error> fail_errno(int errno_value, std::string_view what);

}  // namespace freshet

#define FRESHET_CONCAT_INNER_(a, b) a##b
#define FRESHET_CONCAT_(a, b) FRESHET_CONCAT_INNER_(a, b)

/// Returns from the enclosing function with the error of `expression`, if it has one.
#define FRESHET_TRY(expression)                                   \
  do {                                                            \
    if (auto freshet_status_ = (expression); !freshet_status_) {  \
      return ::freshet::fail(std::move(freshet_status_).error()); \
    }                                                             \
  } while (false)

/// `FRESHET_ASSIGN(auto value, f());` declares value from f()'s result, or returns its error.
#define FRESHET_ASSIGN(declaration, expression) \
  FRESHET_ASSIGN_INNER_(FRESHET_CONCAT_(freshet_result_, __LINE__), declaration, expression)
#define FRESHET_ASSIGN_INNER_(temporary, declaration, expression)       \
  auto temporary = (expression);                                        \
  if (!temporary) return ::freshet::fail(std::move(temporary).error()); \
  declaration = std::move(*temporary)
