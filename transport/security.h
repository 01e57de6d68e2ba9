// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Keys and rights for publishers and subscribers on different hosts.
///
/// Closed by default: without keys every socket is a file of this user or a loopback port. With keys (ZeroMQ's CURVE)
/// an endpoint may listen on any address. The connection is encrypted. The subscriber checks the publisher's public
/// key, and the publisher admits only the keys of its allow-list. `freshet keygen NAME` makes a pair of files, NAME and
/// NAME.pub. On loopback keys are optional. A loopback port without keys admits the processes of this user and of root.
/// The kernel names the user of each connection; a connection without a known user is refused. Who connects to such a
/// port asks in the same way, and believes only this user and root: another user may listen there. With a server key
/// the server proves itself.
///
///     publisher:   {.key_file = "trainer", .allow_file = "servers.allow"}
///     subscriber:  {.key_file = "server",  .server_key = "trainer.pub"}

#include <string>

namespace freshet {

struct SecurityOptions {
  /// This side's secret, a file that no other user may read. Empty: no keys.
  std::string key_file;
  /// The list of admitted clients: one line has a public key and a label. The publisher reads the list again when it
  /// changes: it admits added keys at once, and disconnects removed keys. A key of the list may read. With the word
  /// "writer" before the key, its owner may also store versions in a repository. With "operator", its owner may also
  /// make another version current (rollback, release, commit), retire versions, collect garbage, move aliases and
  /// change the placement.
  std::string allow_file;
  /// For a subscriber: the publisher's public key, or the file that has it.
  std::string server_key;
  /// True: you state that everybody on this endpoint's network is trusted. Bulk data may then go unencrypted over
  /// channels that cannot encrypt (ucx). Keys are needed all the same.
  bool trusted_fabric = false;
  /// A loopback port without keys admits every user of this host, and every user of it is believed to serve at one.
  bool open_loopback = false;
};

}  // namespace freshet
