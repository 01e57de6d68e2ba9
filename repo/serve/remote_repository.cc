#include "repo/serve/remote_repository.h"

#include <utility>

#include "repo/serve/remote.h"

namespace freshet {
namespace rpc {

Result<std::shared_ptr<Link>> RemoteRepository::link() const {
  const MutexLock lock(mutex_);
  if (link_ != nullptr && !link_->is_dead()) return link_;
  // Under the lock: whoever else wants the connection has to wait for it anyhow, no longer than this may take.
  FRESHET_ASSIGN(link_, Link::open(link_options_, deadline_in(options_.connect)));
  return link_;
}

Result<Response> RemoteRepository::last_answer(Conversation& conversation, Duration at_most,
                                               const Progress& progress) const {
  const Time deadline = deadline_in(at_most);
  for (;;) {
    FRESHET_ASSIGN(Response response, conversation.next(deadline));
    const auto* const step = response->body_as_Progress();
    if (step == nullptr) return response;
    if (progress) progress(step->done(), step->total());
  }
}

}  // namespace rpc

Result<std::unique_ptr<Repository>> connect_repository(const std::string& address, RemoteRepositoryOptions options) {
  FRESHET_ASSIGN(std::optional<ClientCredentials> credentials, client_credentials(options.security));
  rpc::BulkReader::Options bulk{.openers = {}, .trusted_fabric = options.security.trusted_fabric, .only = {}};
  if (options.channels != "none") {
    FRESHET_ASSIGN(bulk.only, parse_channel(options.channels));
    bulk.openers = channel_openers(options.security, credentials);
  }
  rpc::Link::Options link{.address = address, .credentials = std::move(credentials), .times = {}};
  link.times.silence = options.silence;
  auto repository = std::make_unique<rpc::RemoteRepository>(std::move(link), std::move(options), std::move(bulk));
  FRESHET_TRY(repository->connect());
  return repository;
}

}  // namespace freshet
