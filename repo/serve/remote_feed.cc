#include "repo/serve/remote.h"

// Following a repository elsewhere.

namespace freshet::rpc {

Result<FeedPage> RemoteRepository::changes(const FeedPosition& after, std::uint32_t most) const {
  return value<wire::Changes>([&](Builder& builder) {
    const wire::Position position = wire_position(after);
    return wire::CreateAskChanges(builder, &position, most);
  });
}

Result<ReplicaAnswer> RemoteRepository::match_for_all(const ReplicaQuery& query) {
  FRESHET_TRY(check(query.match));
  return value<wire::MatchedForAll>([&](Builder& builder) { return rpc::put(builder, query); });
}

}  // namespace freshet::rpc
