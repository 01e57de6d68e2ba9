// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/base/interruption.h"
#include "repo/serve/client/remote.h"

// Retiring and collecting in a repository elsewhere.

namespace freshet::rpc {
namespace {

/// A wait for pins is asked for in pieces, so that nobody's wait takes a server's worker for long.
constexpr Duration kWaitPiece = std::chrono::seconds(1);

}  // namespace

Result<RetireReport> RemoteRepository::retire(const VersionName& retired, const RetireOptions& options) {
  const StopInterrupts stops(options.stop);
  const Time deadline = deadline_in(std::clamp(options.wait, Duration::zero(), kLong));
  while (true) {
    const Duration left = std::max(Duration::zero(), deadline - deadline_in(Duration::zero()));
    const Duration piece = std::min(left, kWaitPiece);
    const auto build = [&](Builder& builder) {
      return wire::CreateRetire(builder, rpc::put(builder, retired), static_cast<std::uint64_t>(piece.count()));
    };
    Result<Response> response = tell(build, options_.answer + piece);
    if (response) {
      FRESHET_ASSIGN(const wire::Retired* const body, body_of<wire::Retired>(*response));
      return rpc::read(*body);
    }
    if (response.error().code() != Code::failed_precondition || left <= kWaitPiece) {
      return fail(std::move(response).error());
    }
  }
}

Result<GcReport> RemoteRepository::gc(const GcOptions& options, const Progress& progress) {
  const StopInterrupts stops(options.stop);
  FRESHET_TRY(Interruption::check());
  const auto build = [&](Builder& builder) { return wire::CreateGc(builder, options.dry_run); };
  FRESHET_ASSIGN(const Response response, ask(build, kLong, progress));
  FRESHET_ASSIGN(const wire::Collected* const collected, body_of<wire::Collected>(response));
  return rpc::read(*collected);
}

Status RemoteRepository::add_referrer(const ExternalReferrer& referrer) {
  const auto build = [&](Builder& builder) { return wire::CreateAddReferrer(builder, rpc::put(builder, referrer)); };
  FRESHET_ASSIGN(const Response response, ask(build));  // Once more changes nothing.
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Status RemoteRepository::drop_referrer(const VersionId& version, std::uint64_t attempt) {
  const auto build = [&](Builder& builder) {
    const wire::Id id = wire_id(version);
    return wire::CreateDropReferrer(builder, &id, attempt);
  };
  FRESHET_ASSIGN(const Response response, ask(build));
  FRESHET_TRY(body_of<wire::Done>(response));
  return {};
}

Result<std::vector<ExternalReferrer>> RemoteRepository::referrers() const {
  return value<wire::Referrers>([](Builder& builder) { return wire::CreateAskReferrers(builder); });
}

}  // namespace freshet::rpc
