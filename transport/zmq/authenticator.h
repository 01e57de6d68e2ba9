// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Admits the clients of an allow-list, and nobody else: the handler of ZeroMQ's authentication protocol (ZAP, RFC 27)
/// for all CURVE servers of a context. It has a small thread of its own, asleep but for handshakes and changes of the
/// list. Refusals are logged, at a limited rate, with the stranger's address and key.
///
/// REQUIRES: it is opened before the context's servers are bound, and destroyed after they were closed: ZeroMQ admits
/// everybody where nobody answers. Servers ask allows() besides, for each message, so that a client that was taken off
/// the list is not served by a connection that it had before.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <zmq.hpp>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/base/wake.h"
#include "core/host/folder_news.h"
#include "transport/security/allow_list.h"
#include "transport/zmq/rejects.h"

namespace freshet {

class Authenticator {
 public:
  /// already_exists when the context has one. Errors of the list are those of AllowList::open.
  static Result<std::unique_ptr<Authenticator>> open(zmq::context_t& context, const std::string& allow_file);
  ~Authenticator();

  /// Whether the key of this text (a message's "User-Id") is on the list now. Any thread.
  bool allows(std::string_view key_text) const FRESHET_EXCLUDES(mutex_);
  /// Whether its owner has the right now; the error names key and list, for a log of this side's. Any thread.
  Status may(Right needed, std::string_view key_text) const FRESHET_EXCLUDES(mutex_);
  /// Whether its owner may make another version current: operators may.
  Status may_activate(std::string_view key_text) const { return may(Right::operate, key_text); }
  /// Grows with each change of the list. Any thread.
  std::uint64_t changes() const { return changes_; }
  /// Handshakes refused so far. Any thread.
  std::uint64_t refusals() const { return refusals_; }

 private:
  struct Request;
  Authenticator(AllowList list, zmq::socket_t socket, Wake wake, std::optional<FolderNews> news);
  void run();
  void refresh() FRESHET_EXCLUDES(mutex_);
  void answer(const std::vector<zmq::message_t>& parts);
  Result<PublicKey> decide(const Request& request);
  std::shared_ptr<const AllowedKeys> keys() const FRESHET_EXCLUDES(mutex_);

  const std::string list_path_;

  // The thread's.
  AllowList list_;
  zmq::socket_t socket_;
  const Wake wake_;
  const std::optional<FolderNews> news_;  ///< Of the list's folder; none where the system has no more.
  Rejects rejects_{"keys"};
  Rejects list_errors_{"allow-list"};

  mutable Mutex mutex_;
  std::shared_ptr<const AllowedKeys> keys_ FRESHET_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<std::uint64_t> refusals_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// The connection that a message came by, by its descriptor; -1 when that is not known.
int sender_descriptor(const zmq::message_t& message);

/// The key with which the sender of a message proved itself, as text; empty on a socket without keys.
std::string_view sender_key(const zmq::message_t& message);

}  // namespace freshet
