// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Whether a call was refused as it should have been.

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet {

/// Success: `answer`, a Status or a Result, is an error with this code, and its message has each of `words`.
template <typename Answer, typename... Words>
testing::AssertionResult is_refused(const Answer& answer, Code code, const Words&... words) {
  if (answer) return testing::AssertionFailure() << "it was not refused";
  const std::string message(answer.error().message());
  if (answer.error().code() != code) {
    return testing::AssertionFailure() << "refused otherwise: " << name_of(answer.error().code()) << ", " << message;
  }
  for (const std::string_view word : {std::string_view(), std::string_view(words)...}) {
    if (message.find(word) == std::string::npos)
      return testing::AssertionFailure() << "'" << word << "' is not in: " << message;
  }
  return testing::AssertionSuccess();
}

}  // namespace freshet
