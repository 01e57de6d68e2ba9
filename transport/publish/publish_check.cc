// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/publish_check.h"

#include "core/base/format.h"

namespace freshet {
namespace {

Status check_count(const Architecture& architecture, std::span<const TensorView> tensors) {
  if (tensors.size() == architecture.tensors().size()) return {};
  return fail(Code::failed_precondition,
              format("{} tensors were given, the architecture has {} (a new one can be given with the publish)",
                     tensors.size(), architecture.tensors().size()));
}

Status check_tensor(const TensorSpec& expected, const TensorView& given, std::size_t index) {
  const TensorSpec& spec = given.spec;
  if (spec.name != expected.name) {
    return fail(Code::failed_precondition,
                format("tensor {} is \"{}\", the architecture has \"{}\" there", index, spec.name, expected.name));
  }
  if (spec.dtype != expected.dtype || spec.shape != expected.shape) {
    return fail(Code::failed_precondition,
                format("tensor {} is {}, the architecture has {} (a new one can be given with the publish)", spec.name,
                       describe(spec.dtype, spec.shape), describe(expected.dtype, expected.shape)));
  }
  if (given.data.size() != expected.bytes()) {
    return fail(Code::invalid_argument, format("tensor {} has {} bytes, {} takes {}", spec.name, given.data.size(),
                                               describe(spec.dtype, spec.shape), expected.bytes()));
  }
  return {};
}

}  // namespace

Status check_tensors(const Architecture& architecture, std::span<const TensorView> tensors) {
  FRESHET_TRY(check_count(architecture, tensors));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    FRESHET_TRY(check_tensor(architecture.tensors()[i], tensors[i], i));
  }
  return {};
}

Status check_tensors(const Architecture& architecture, std::span<const TensorView> tensors,
                     std::span<const std::uint32_t> indices) {
  FRESHET_TRY(check_count(architecture, tensors));
  for (const std::uint32_t i : indices) {
    if (i >= tensors.size()) {
      return fail(Code::invalid_argument, format("changed tensor {} is out of range: there are {}", i, tensors.size()));
    }
    FRESHET_TRY(check_tensor(architecture.tensors()[i], tensors[i], i));
  }
  return {};
}

}  // namespace freshet
