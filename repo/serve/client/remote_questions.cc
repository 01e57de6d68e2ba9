// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "core/base/interruption.h"
#include "repo/registrar/registrar_records.h"
#include "repo/serve/client/remote.h"

// Questions that take more than their answer.

namespace freshet::rpc {
namespace {

/// A wait for pins is asked for in pieces, so that nobody's wait takes a server's worker for long.
constexpr Duration kWaitPiece = std::chrono::seconds(1);

}  // namespace

Result<std::vector<std::uint32_t>> RemoteRepository::wanted(const Manifest& given, const PutOptions& options) const {
  FRESHET_ASSIGN(Manifest manifest, encodable(given));
  Putting put{std::move(manifest), options};
  return options.dedup ? ask(AskWantedDedup{std::move(put)}) : ask(AskWanted{std::move(put)});
}

Status RemoteRepository::pin(const VersionName& pinned, const std::string& by, const PinTerms& terms) {
  PinTerms said = terms;
  if (!said.stays && !said.lease) {
    FRESHET_ASSIGN(said.lease, renewal_.begin());
  }
  return call<Pin>(pinned, by, said);
}

Status RemoteRepository::renew_pins(const PinLease& lease) {
  // Not longer, since who closes this object waits for a renewal that is under way; one that fails is soon repeated.
  return ask(call_of<RenewPins>(lease), std::min<Duration>(options_.answer, std::chrono::seconds(5)));
}

Result<MatchAnswer> RemoteRepository::match(const MatchQuery& query) {
  FRESHET_TRY(check(query));
  if (query.pin_by.empty()) return call<Match>(query);
  MatchAndPin asked{query};
  if (!query.pin_terms.stays && !query.pin_terms.lease) {
    FRESHET_ASSIGN(asked.query.pin_terms.lease, renewal_.begin());
  }
  return ask(asked);
}

Status RemoteRepository::change_shared_records(std::span<const SharedRecord> expected,
                                               std::span<const SharedRecord> changes) {
  ChangeShared change{{expected.begin(), expected.end()}, {changes.begin(), changes.end()}};
  return only_counts(expected, changes) ? ask(Count{std::move(change)}) : ask(change);
}

Result<RetireReport> RemoteRepository::retire(const VersionName& retired, const RetireOptions& options) {
  const StopInterrupts stops(options.stop);
  const Time deadline = deadline_in(std::clamp(options.wait, Duration::zero(), kLong));
  while (true) {
    const Duration left = std::max(Duration::zero(), deadline - deadline_in(Duration::zero()));
    const Duration piece = std::min(left, kWaitPiece);
    Result<RetireReport> report = ask(Retire{retired, piece}, options_.answer + piece);
    if (report || report.error().code() != Code::failed_precondition || left <= kWaitPiece) return report;
  }
}

Result<GcReport> RemoteRepository::gc(const GcOptions& options, const Progress& progress) {
  const StopInterrupts stops(options.stop);
  FRESHET_TRY(Interruption::check());
  return ask(Gc{options.dry_run}, kLong, progress);
}

}  // namespace freshet::rpc
