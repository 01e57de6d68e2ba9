// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The border between Results and Python's exceptions. Functions of this folder that Python calls throw a Raised; the
/// module turns it into the class of freshet/_errors.py that belongs to its code.

#include <exception>
#include <string>
#include <utility>

#include "core/base/result.h"

namespace freshet::python {

class Raised final : public std::exception {
 public:
  explicit Raised(Error error) : error_(std::move(error)) {}
  const char* what() const noexcept override { return error_.message().c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
};

/// The value, or the error thrown.
template <typename T>
T take(Result<T> result) {
  if (!result) throw Raised(std::move(result).error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

[[noreturn]] inline void raise(Code code, std::string message) { throw Raised(Error(code, std::move(message))); }

/// Finds the classes of freshet._errors, once, when the module is made. Throws nanobind's python_error.
void load_error_classes();
/// Sets Python's error to the exception of freshet._errors for `error`. REQUIRES: the GIL.
void set_python_error(const Error& error);

}  // namespace freshet::python
