// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Who may connect to whom, for publishers and subscribers that are not on one host.
///
/// Closed by default: without keys every socket is a file of this user's or a loopback port. With keys (CURVE, as
/// ZeroMQ has it) an endpoint may listen on any address: what travels is encrypted, the subscriber knows the publisher
/// by its public key, and the publisher admits the keys of its allow-list and nobody else. `freshet keygen NAME` makes
/// a pair of files, NAME and NAME.pub. On loopback keys are optional, and used when given. A loopback port without keys
/// admits this user's processes and root's, whom the kernel names for each connection; who is not named stays out.
///
///     publisher:   {.key_file = "trainer", .allow_file = "servers.allow"}
///     subscriber:  {.key_file = "server",  .server_key = "trainer.pub"}

#include <string>

namespace freshet {

struct SecurityOptions {
  /// This side's secret, a file that nobody else may read. Empty: no keys.
  std::string key_file;
  /// A publisher's list of the clients that it admits, a public key and a label a line. Read again when it changes: who
  /// is added may come in at once, who is taken off loses its connections. Who stands there may read. With the word
  /// "writer" before the key its owner may also store versions in a repository; with "operator" also say what is
  /// current (rollback, release, commit), and retire, collect garbage, move aliases and change the placement.
  std::string allow_file;
  /// For a subscriber: the public key of the publisher, or the file that has it.
  std::string server_key;
  /// The operator's word that everybody who can reach this endpoint's network is a friend. Bulk data may then go
  /// unencrypted over channels that cannot encrypt (ucx); keys are needed all the same.
  bool trusted_fabric = false;
  /// A loopback port without keys admits every user of this host.
  bool open_loopback = false;
};

}  // namespace freshet
