#include "repo/cluster/numbers.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/format.h"
#include "repo/cluster/membership.h"

namespace freshet::cluster {
namespace {

constexpr int kTriesMax = 64;  ///< Each one is lost to somebody else's success.

std::string number_key(const std::string& model) { return "number/" + model; }

// Under which placement the registrar began, and the last number.
struct Given {
  std::uint64_t placement = 0;
  VersionNumber last = 0;
};

Result<Given> parse(const std::string& text) {
  Given given;
  const char* const end = text.data() + text.size();
  const auto [middle, error] = std::from_chars(text.data(), end, given.placement);
  if (error == std::errc() && middle != end && *middle == ' ') {
    const auto [rest, second] = std::from_chars(middle + 1, end, given.last);
    if (second == std::errc() && rest == end) return given;
  }
  return fail(Code::corrupt, "the record of the last number is damaged");
}

std::string text_of(const Given& given) { return format("{} {}", given.placement, given.last); }

}  // namespace

Result<VersionNumber> next_number(Repository& registrar, const Placement& placement, const std::string& model,
                                  VersionNumber wanted, const FormerLast& former) {
  // Taken for the last one, it would leave none to give.
  if (wanted > kVersionNumberMax) return fail(Code::invalid_argument, "the version's number is too large");
  const SharedRecord placed{.key = kPlacementKey, .value = placement.encode()};
  for (int tries = 0; tries < kTriesMax; ++tries) {
    FRESHET_ASSIGN(const SharedRecord record, registrar.shared_record(number_key(model)));
    Given given{.placement = placement.number()};
    if (record.value) {
      FRESHET_ASSIGN(given, parse(*record.value));
    }
    if (!record.value || given.placement != placement.number()) {
      FRESHET_ASSIGN(const VersionNumber before, former());
      given = {.placement = placement.number(), .last = std::max(given.last, before)};
    }
    given.last = std::max(given.last + 1, wanted);
    const std::array expected{placed, record};
    const SharedRecord next{.key = record.key, .value = text_of(given)};
    const Status changed = registrar.change_shared_records(expected, std::span(&next, 1));
    if (changed) return given.last;
    if (changed.error().code() != Code::failed_precondition) return fail(changed.error());
    FRESHET_ASSIGN(const SharedRecord now, registrar.shared_record(kPlacementKey));
    if (now != placed) return fail(Code::failed_precondition, "it knows another placement");
  }
  return fail(Code::unavailable, format("numbers of {} are asked for by too many at once", model));
}

Status start_numbers(Repository& registrar, const Placement& placement, const std::string& model, VersionNumber last) {
  FRESHET_ASSIGN(const SharedRecord record, registrar.shared_record(number_key(model)));
  Given given{.placement = placement.number(), .last = last};
  if (record.value) {
    FRESHET_ASSIGN(const Given before, parse(*record.value));
    given.last = std::max(given.last, before.last);
  }
  const SharedRecord next{.key = record.key, .value = text_of(given)};
  return registrar.change_shared_records(std::span(&record, 1), std::span(&next, 1));
}

Result<VersionNumber> last_number(Repository& registrar, const std::string& model) {
  FRESHET_ASSIGN(const SharedRecord record, registrar.shared_record(number_key(model)));
  if (!record.value) return 0;
  FRESHET_ASSIGN(const Given given, parse(*record.value));
  return given.last;
}

}  // namespace freshet::cluster
