// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A repository that another process keeps (repo/serve/server.h), with the answers that it would give itself: its
/// errors come with their codes and texts. A connection adds the errors `unavailable` (nobody there, or no longer),
/// `timed_out`, and `failed_precondition` where keys are missing or refused.
///
/// A connection that broke is made anew by the next call. A call that only asks is then asked again, of at most four
/// owners, one after another. The same happens if a living owner with standbys answers `unavailable`: another one may
/// have replaced it. A read asks only for the bytes that have not come. A call that changes something is not asked
/// again, since nobody knows whether it was done: a put can be put again as it is (`already_exists` then says that it
/// was).

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/object_store/object_store.h"
#include "repo/provider_repository.h"
#include "repo/serve/served_owner.h"
#include "transport/channel_kind.h"
#include "transport/security.h"

namespace freshet {

struct RemoteRepositoryOptions {
  SecurityOptions security;
  Duration connect = std::chrono::seconds(5);
  /// For one answer. Puts and verify() take as long as they take while the server says that it is at work.
  Duration answer = std::chrono::seconds(60);
  /// How long a server may be silent, though asked, before it counts as dead or stopped.
  Duration silence = std::chrono::seconds(3);
  /// How often the pins that were taken through this object are renewed while it lives (repo/pins/pin_terms.h).
  Duration renew_pins = kPinLease / 4;
  /// Through what the tensors of large reads go: the best that the server offers (nothing), or the best of these kinds.
  /// Where there is none, or it breaks, they go over the connection as all else does.
  ChannelChoice channels;
  std::uint64_t channel_bytes_min = std::uint64_t{2} << 20;  ///< Less goes sooner over the connection.
  /// Large tensors of a repository in a bucket go to and from the store itself, by requests that the owner signs. Where
  /// that fails, they go through the owner; after a failure this is not tried for a minute or longer.
  bool direct = true;
  std::shared_ptr<SignedObjects> signed_objects = nullptr;  ///< Sends these requests; null: over HTTP.
  /// The key of the shared record that tells one repository from others, empty for none. When a broken connection is
  /// made anew, the server at the address must have the same repository as before, or else the call is `unavailable`:
  /// another server that listens at the address meanwhile is asked and told nothing.
  std::string known_by = "";

  // For a repository with an owner and standbys (served_owner.h). Where the first address is of one of them, a broken
  // connection is made anew to the owner, whoever it is by then.

  /// Addresses besides, of the owner or a standby.
  std::vector<std::string> others = {};
  /// Tells the owner from another source, when no address does. Asked by one thread at a time, at most once a second;
  /// an Interruption ends it after 3 s. Errors: as connect_repository().
  std::function<Result<ServedOwner>()> find_owner = {};
  /// A call waits so long for an owner that takes over.
  Duration takeover = std::chrono::seconds(15);
};

/// Any thread may use the result, and several at once.
Result<std::unique_ptr<ProviderRepository>> connect_repository(const std::string& address,
                                                               RemoteRepositoryOptions options = {});

/// For a connection to that server: its key takes the place of a server key that was not given. failed_precondition: it
/// has another key than the given one, or takes keys where none were given.
Result<SecurityOptions> security_for(const ServedOwner& server, SecurityOptions security);

/// True: an owner or a standby is at the address, so the repository may be at another one later.
bool may_move(const ProviderRepository& connected);

/// Whether a server lives, as far as it can be asked: by a connection on which both say each half second that they do.
/// One thread at a time.
class ServerWatch {
 public:
  static std::unique_ptr<ServerWatch> of(std::string address, const SecurityOptions& security);
  virtual ~ServerWatch() = default;

  enum class Seen : std::uint8_t {
    owner,    ///< It answers.
    standby,  ///< It answers, and owns nothing.
    refuses,  ///< It answers, and refuses this process's key.
    silent,
  };
  /// Ends within 1.5 s; at once while the connection stands.
  virtual Seen look() = 0;
};

}  // namespace freshet
