// SPDX-License-Identifier: Apache-2.0
#include "transport/publish/publish_check.h"

#include <chrono>
#include <string_view>

#include "core/base/format.h"
#include "transport/protocol/messages.h"

namespace freshet {
namespace {

constexpr Duration kMembershipMin = std::chrono::milliseconds(500);
constexpr Duration kLongestWait = std::chrono::hours(1);
constexpr std::uint64_t kIncarnationMax = std::uint64_t{1} << 62;
constexpr std::string_view kToChangeIt =
    "to change the architecture, give this publish another graph, or close the publisher and open it again";

Status check_count(const Architecture& architecture, std::span<const TensorView> tensors) {
  if (tensors.size() == architecture.tensors().size()) return {};
  return fail(Code::failed_precondition, format("{} tensors were given, the architecture has {}; {}", tensors.size(),
                                                architecture.tensors().size(), kToChangeIt));
}

Status check_tensor(const TensorSpec& expected, const TensorView& given, std::size_t index) {
  const TensorSpec& spec = given.spec;
  if (spec.name != expected.name) {
    return fail(Code::failed_precondition, format("tensor {} is \"{}\", the architecture has \"{}\" there; {}", index,
                                                  spec.name, expected.name, kToChangeIt));
  }
  if (spec.dtype != expected.dtype || spec.shape != expected.shape) {
    return fail(Code::failed_precondition,
                format("tensor {} is {}, the architecture has {}; {}", spec.name, describe(spec.dtype, spec.shape),
                       describe(expected.dtype, expected.shape), kToChangeIt));
  }
  if (given.data.size() != expected.bytes()) {
    return fail(Code::invalid_argument, format("tensor {} has {} bytes, {} takes {}", spec.name, given.data.size(),
                                               describe(spec.dtype, spec.shape), expected.bytes()));
  }
  if (!is_known(given.place.memory)) {
    return fail(Code::unsupported, format("tensor {} lies in memory of kind {}, and there is no such kind", spec.name,
                                          static_cast<int>(given.place.memory)));
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
      return fail(Code::invalid_argument,
                  format("tensor {} is named as changed, and there are {} tensors", i, tensors.size()));
    }
    FRESHET_TRY(check_tensor(architecture.tensors()[i], tensors[i], i));
  }
  return {};
}

Status check_options(const PublisherOptions& options) {
  FRESHET_TRY(check_model_name(options.model));
  // Written so that not-a-number is refused too.
  if (!(options.arena_copies >= 1.0 && options.arena_copies <= 64.0)) {
    return fail(Code::invalid_argument, format("arena_copies is {}, not in 1 to 64", options.arena_copies));
  }
  const DeviceMemory& on_device = options.device_memory;
  if (on_device.copies != 0 && !(on_device.copies >= 1.0 && on_device.copies <= 64.0)) {
    return fail(Code::invalid_argument, format("device_memory of {} copies is not in 1 to 64", on_device.copies));
  }
  if (on_device.copies != 0 && on_device.bytes != 0) {
    return fail(Code::invalid_argument, "device_memory is given twice, in bytes and in copies of the model: give one");
  }
  const bool has_membership = options.membership != Duration::zero();
  if (has_membership && (options.membership < kMembershipMin || options.membership > kLongestWait)) {
    return fail(Code::invalid_argument, "membership is not between half a second and an hour");
  }
  if (options.group_within < std::chrono::milliseconds(1) || options.group_within > kLongestWait) {
    return fail(Code::invalid_argument, "group_within is not between a millisecond and an hour");
  }
  if (options.every_queue_versions_max == 0) {
    return fail(Code::invalid_argument, "every_queue_versions_max is 0");
  }
  if (options.number_floor >= protocol::kNumberMax) {
    return fail(Code::invalid_argument, format("number_floor {} leaves no version number", options.number_floor));
  }
  if (options.resume_from == nullptr) return {};
  FRESHET_TRY(freshet::check(*options.resume_from));
  // It may come from a file: what is counted on from must leave room to count.
  const Manifest& resumed = *options.resume_from;
  if (resumed.name.number >= protocol::kNumberMax || resumed.id.incarnation >= kIncarnationMax) {
    return fail(Code::invalid_argument,
                format("resume from {}: no sequence number is left for the next version", to_string(resumed.name)));
  }
  return {};
}

}  // namespace freshet
