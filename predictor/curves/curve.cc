// SPDX-License-Identifier: Apache-2.0
#include "predictor/curves/curve.h"

#include <algorithm>

#include "core/base/format.h"
#include "predictor/curves/families.h"

namespace freshet {
namespace {

CurveFamilies families_of(std::initializer_list<std::shared_ptr<const Curve>> curves) {
  CurveFamilies families;
  for (const auto& curve : curves) {
    [[maybe_unused]] const Status added =
        families.add(curve);  // Their names differ and their bounds hold: a test says so.
  }
  return families;
}

}  // namespace

CurveFamilies CurveFamilies::viper() {
  return families_of({curves::exp2(), curves::exp3(), curves::lin2(), curves::expd3()});
}

CurveFamilies CurveFamilies::distinct() {
  return families_of({curves::exp2(), curves::exp3(), curves::lin2(), curves::pow3(), curves::pow4(),
                      curves::logpower(), curves::ilog2(), curves::mmf(), curves::vapour(), curves::weibull(),
                      curves::constant()});
}

CurveFamilies CurveFamilies::standard() {
  return families_of({curves::exp2(), curves::exp3(), curves::lin2(), curves::expd3(), curves::pow3(), curves::pow4(),
                      curves::logpower(), curves::ilog2(), curves::janoschek(), curves::mmf(), curves::vapour(),
                      curves::weibull(), curves::constant()});
}

Status CurveFamilies::add(std::shared_ptr<const Curve> family) {
  if (!family || family->name().empty()) return fail(Code::invalid_argument, "curve family: it has no name");
  if (find(family->name())) {
    return fail(Code::already_exists, format("curve family {}: the name is taken", family->name()));
  }
  const auto& parameters = family->parameters();
  if (parameters.empty() || parameters.size() > kMaxParameters) {
    return fail(Code::invalid_argument, format("curve family {}: {} parameters, where 1 to {} are allowed",
                                               family->name(), parameters.size(), kMaxParameters));
  }
  for (const CurveParameter& parameter : parameters) {
    const bool ordered = parameter.lower < parameter.upper;
    const bool positive = parameter.scale == ParameterScale::linear || parameter.lower > 0;
    if (ordered && positive) continue;
    return fail(Code::invalid_argument, format("curve family {}: parameter {} has bounds {} to {}", family->name(),
                                               parameter.name, parameter.lower, parameter.upper));
  }
  list_.push_back(std::move(family));
  return {};
}

Result<CurveFamilies> CurveFamilies::subset(std::span<const std::string> names) const {
  CurveFamilies chosen;
  for (const std::string& name : names) {
    auto family = find(name);
    if (!family) {
      std::string known;
      for (const auto& each : list_) known += format("{}{}", known.empty() ? "" : ", ", each->name());
      return fail(Code::not_found, format("curve family {}: unknown; known are {}", name, known));
    }
    FRESHET_TRY(chosen.add(std::move(family)));
  }
  return chosen;
}

std::shared_ptr<const Curve> CurveFamilies::find(std::string_view name) const {
  const auto found =
      std::find_if(list_.begin(), list_.end(), [&](const auto& family) { return family->name() == name; });
  return found == list_.end() ? nullptr : *found;
}

}  // namespace freshet
