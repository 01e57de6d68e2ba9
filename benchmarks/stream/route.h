// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The way that a model takes in a case of a benchmark: which hosts, which channel, which keys.

#include <memory>
#include <string>

#include "benchmarks/stream/pair.h"
#include "tests/support/net/lab/network.h"

namespace freshet::benchmarks {

/// A folder with the keys of a trainer and of its servers, and with the list that admits the latter. A relay is a
/// server that others follow. Immutable.
class KeyFolder {
 public:
  KeyFolder() = default;
  static Result<KeyFolder> create(const std::string& folder);
  SecurityOptions trainer() const;
  SecurityOptions server(bool behind_relay) const;

 private:
  explicit KeyFolder(std::string folder) : folder_(std::move(folder)) {}
  std::string folder_;
};

/// One that this program has not used yet.
int next_port();

/// Two processes of this host, or of two hosts of a lab. One thread at a time.
class Route {
 public:
  /// "shm": they share memory. "ucx", "zmq": as if they could not, over loopback.
  static Result<std::unique_ptr<Route>> on_this_host(const std::string& channel);
  /// `address`: where the publisher is reached. The hosts must stay.
  static Result<std::unique_ptr<Route>> between(const lab::Host& publisher, const lab::Host& subscriber,
                                                const std::string& address, const std::string& channel);

  std::string name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  /// For both processes, "UCX_TLS=tcp".
  void set_environment(std::vector<std::string> words) { environment_ = std::move(words); }
  Place publisher_place() const { return {publisher_space_, environment_}; }
  Place subscriber_place() const { return {subscriber_space_, environment_}; }

  /// Fills in where to listen, keys and folders.
  Result<std::unique_ptr<PublisherPeer>> publish(PeerOptions options) const;
  Result<std::unique_ptr<SubscriberPeer>> subscribe(const PublisherPeer& publisher, PeerOptions options) const;

 private:
  Route() = default;
  std::string name_;
  std::string channel_;
  std::string address_;
  const lab::NetworkNamespace* publisher_space_ = nullptr;
  const lab::NetworkNamespace* subscriber_space_ = nullptr;
  std::vector<std::string> environment_;
  std::unique_ptr<ScratchFolder> scratch_;
  KeyFolder keys_;
};

}  // namespace freshet::benchmarks
