// SPDX-License-Identifier: Apache-2.0
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "core/base/format.h"
#include "core/json/json_document.h"
#include "transport/ask/activation_request.h"
#include "transport/ask/ask_stat.h"
#include "transport/zmq/ask_hub.h"

namespace freshet {
namespace {

constexpr Duration kLongest = std::chrono::milliseconds(protocol::kWithinMsMax);
/// Beyond what was asked for: until all members were seen to serve it, and the way there and back.
constexpr Duration kSettling = std::chrono::seconds(4);
constexpr Duration kStatPatience = std::chrono::seconds(2);

/// What the publisher says is current; its word, and so looked at before it is used.
Result<CurrentVersion> ask_current(const ActivationTarget& target, const std::stop_token& stop) {
  FRESHET_ASSIGN(
      const std::string answer,
      ask_stat({.model = target.model, .at = target.at, .directory = target.directory, .security = target.security},
               kStatPatience, stop));
  const auto bad = [&] {
    return fail(Code::corrupt, format("the publisher of {} does not name the current version", target.model));
  };
  const auto parsed = parse_json(answer);
  if (!parsed || !parsed->is_object() || !parsed->contains("models") || !(*parsed)["models"].is_array()) return bad();
  for (const auto& model : (*parsed)["models"]) {
    if (!model.is_object() || !model.contains("model") || model["model"] != target.model) continue;
    const auto current = model.find("current");
    if (current == model.end() || !current->is_object()) return bad();
    const auto epoch = current->find("epoch");
    const auto hold = current->find("hold");
    if (epoch == current->end() || !epoch->is_number_unsigned()) return bad();
    if (hold == current->end() || !hold->is_boolean()) return bad();
    return CurrentVersion{.epoch = epoch->get<std::uint64_t>(), .hold = hold->get<bool>()};
  }
  return fail(Code::not_found, format("{} is not published there", target.model));
}

}  // namespace

Status check_request(const ActivationRequest& request) {
  if (request.version > protocol::kNumberMax) {
    return fail(Code::invalid_argument, format("there is no version {}", request.version));
  }
  if (request.within < std::chrono::milliseconds(1) || request.within > kLongest) {
    return fail(Code::invalid_argument, "an activation is given between a millisecond and an hour");
  }
  return {};
}

Status check_expected(const std::string& model, const ActivationRequest& request, const CurrentVersion& current) {
  if (!request.expected_epoch || *request.expected_epoch == current.epoch) return {};
  return fail(Code::failed_precondition,
              format("{} is at epoch {}, not at epoch {}", model, current.epoch, *request.expected_epoch));
}

protocol::Activate activate_message(const std::string& model, const ActivationRequest& request,
                                    const CurrentVersion& expected, std::uint64_t id) {
  const auto within = std::chrono::ceil<std::chrono::milliseconds>(request.within);
  return {.model = model,
          .request = id,
          .expected = {.epoch = expected.epoch, .hold = expected.hold},  // Publishes may advance its number meanwhile.
          .desired = {.version = request.version, .hold = request.hold},
          .as_group = request.as_group,
          .within_ms = static_cast<std::uint32_t>(within.count())};
}

Result<ActivationReport> report_of(const protocol::Activated& activated) {
  if (activated.refused) return fail(*activated.refused);
  return ActivationReport{.current = activated.current,
                          .members = activated.members,
                          .mixed = Duration(activated.mixed_ns),
                          .behind = activated.behind};
}

Duration patience_for(const ActivationRequest& request) { return request.within + kSettling; }

Result<ActivationReport> ask_activate(const ActivationTarget& target, const ActivationRequest& request,
                                      const std::stop_token& stop) {
  FRESHET_TRY(check_model_name(target.model));
  FRESHET_TRY(check_request(request));
  FRESHET_ASSIGN(const CurrentVersion expected, ask_current(target, stop));
  FRESHET_TRY(check_expected(target.model, request, expected));
  std::uint64_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id) return fail_errno(errno, "draw a request's id");
  const auto is_answer = [id](const protocol::Message& message) {
    const auto* activated = std::get_if<protocol::Activated>(&message);
    return activated != nullptr && activated->request == id;
  };
  FRESHET_ASSIGN(const protocol::Message answer,
                 ask_hub({.model = target.model,
                          .at = target.at,
                          .directory = target.directory,
                          .security = target.security,
                          .request = activate_message(target.model, request, expected, id),
                          .is_answer = is_answer},
                         patience_for(request), stop));
  return report_of(std::get<protocol::Activated>(answer));
}

}  // namespace freshet
