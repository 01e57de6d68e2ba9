// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Publishers and subscribers as processes of their own, in a host of the lab or on this one, told by lines what to do.
/// The benchmark's program is started again for them: its main() hands `--role=publisher` and `--role=subscriber` to
/// run_peer().

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/common/child.h"
#include "benchmarks/stream/peer_options.h"
#include "core/model/ids.h"
#include "tests/support/net/lab/network_namespace.h"

namespace freshet::benchmarks {

/// Where a process runs.
struct Place {
  const lab::NetworkNamespace* space = nullptr;  ///< Null: this host.
  std::vector<std::string> environment;          ///< "UCX_TLS=tcp"
};

Result<std::unique_ptr<Child>> start_in(const Place& place, std::vector<std::string> words);

struct Published {
  VersionNumber version = 0;
  std::int64_t start_ns = 0;  ///< Of publish(), on the clock of the host.
  std::int64_t returned_ns = 0;
  std::int64_t committed_ns = 0;  ///< Announced, as far as the caller of wait_committed() can tell.
  std::uint64_t changed_bytes = 0;
};

/// One thread at a time.
class PublisherPeer {
 public:
  static Result<std::unique_ptr<PublisherPeer>> start(const Place& place, const PeerOptions& options);

  const std::string& address() const { return address_; }
  /// Training steps: a share of the elements, or all.
  Status step(double share, std::uint64_t seed);
  Status rewrite(std::uint64_t seed);
  /// `tensors`: the first so many are named as changed; 0: all are.
  Result<Published> publish(std::uint64_t tensors = 0);
  /// The same in two parts: nothing wakes this process while the version is on its way. finish_publish() fills in the
  /// time of the commit, and the changed bytes.
  Result<Published> begin_publish(std::uint64_t tensors);
  Status finish_publish(Published& published);
  /// Of the model in the trainer's memory.
  Result<std::string> digest();
  /// Microseconds of processor time so far.
  Result<std::int64_t> cpu_us();
  /// Any other command of the role.
  Result<std::string> ask(const std::string& line);
  pid_t pid() const { return child_->pid(); }

 private:
  std::unique_ptr<Child> child_;
  std::string address_;
};

struct Swapped {
  VersionNumber version = 0;
  std::int64_t at_ns = 0;
  std::uint64_t bytes_fetched = 0;
  std::int64_t notify_ns = 0;
  std::string channel;
};

/// One thread at a time.
class SubscriberPeer {
 public:
  static Result<std::unique_ptr<SubscriberPeer>> start(const Place& place, const PeerOptions& options);

  /// The first swap to that version or a later one that was not taken yet. failed_precondition when its bytes came over
  /// another channel than the one that was asked for.
  Result<Swapped> wait_for(VersionNumber version, std::chrono::milliseconds at_most = std::chrono::seconds(30));
  /// Of the version that it serves.
  Result<std::string> digest();
  Result<std::int64_t> cpu_us();
  Result<std::string> ask(const std::string& line);
  pid_t pid() const { return child_->pid(); }

 private:
  std::unique_ptr<Child> child_;
  std::string channel_;            ///< The only one that it may use; empty: any.
  std::deque<std::string> swaps_;  ///< That came while something else was waited for.
};

/// `role`: publisher or subscriber. Returns the exit code, or -1 when it is no such role.
int run_peer(const std::string& role, const std::vector<std::string>& arguments);

}  // namespace freshet::benchmarks
