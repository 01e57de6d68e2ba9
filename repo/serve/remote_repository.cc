// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/remote_repository.h"

#include <algorithm>
#include <utility>

#include "core/base/format.h"
#include "repo/serve/client/remote.h"

namespace freshet {
namespace rpc {

Result<Response> RemoteRepository::last_answer(Conversation& conversation, Duration at_most,
                                               const Progress& progress) const {
  const Time deadline = deadline_in(at_most);
  for (;;) {
    FRESHET_ASSIGN(Response response, conversation.next(deadline));
    const auto advance = step_in<Advance>(response);
    if (!advance) return response;
    if (progress) progress(advance->done, advance->total);
  }
}

}  // namespace rpc

Result<std::unique_ptr<ProviderRepository>> connect_repository(const std::string& address,
                                                               RemoteRepositoryOptions options) {
  FRESHET_ASSIGN(std::optional<ClientCredentials> credentials, client_credentials(options.security));
  rpc::BulkReader::Options bulk{.openers = {}, .trusted_fabric = options.security.trusted_fabric, .only = {}};
  bulk.openers = channel_openers(options.security, credentials);
  if (options.channels) {
    const auto is_chosen = [&](ChannelKind kind) { return std::ranges::count(*options.channels, kind) != 0; };
    for (const ChannelKind kind : {ChannelKind::shm, ChannelKind::file}) {
      if (!is_chosen(kind)) continue;
      return fail(Code::invalid_argument, format("connect to the repository at {}: no channel {}; choose zmq or ucx",
                                                 address, to_string(kind)));
    }
    std::erase_if(bulk.openers, [&](const auto& opener) { return !is_chosen(opener.first); });
    if (options.channels->size() == 1) bulk.only = options.channels->front();
  }
  const Neighbours believed = neighbours_admitted(options.security, credentials.has_value());
  rpc::Link::Options link{.address = address, .credentials = std::move(credentials), .believed = believed, .times = {}};
  link.times.silence = options.silence;
  auto repository = std::make_unique<rpc::RemoteRepository>(std::move(link), std::move(options), std::move(bulk));
  FRESHET_TRY(repository->connect());
  return repository;
}

}  // namespace freshet
