// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The answer of `freshet plan`.

#include <string>

#include "bindings/cli/frame/output.h"
#include "bindings/cli/plan/policies.h"

namespace freshet::cli {

/// Borrows all its parts.
struct Report {
  const ReplayClock& clock;
  const LossTable& table;
  const Plan& plan;
  const Contenders& contenders;
  bool replay = false;
};

Json json_of(const Report& report);
std::string text_of(const Report& report);

}  // namespace freshet::cli
