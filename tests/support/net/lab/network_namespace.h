// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A network namespace: a host of its own, as far as networks go. It has no name in the file system and nothing that
/// outlives the process that made it: the kernel takes it, with its interfaces, when the last process in it and the
/// last descriptor of it are gone, however they went.
///
/// Needs CAP_SYS_ADMIN and CAP_NET_ADMIN (root). Any thread.

#include <functional>
#include <string>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"

namespace freshet::lab {

class NetworkNamespace {
 public:
  /// With its loopback up. unavailable, with the reason, where this process may not make one.
  static Result<NetworkNamespace> create();

  /// What other programs of this host (`ip link … netns PATH`, `nsenter --net=PATH`) open, while this object lives.
  std::string path() const;
  int descriptor() const { return descriptor_.get(); }

  /// Runs `work` on a thread that stands in the namespace; what it starts (threads, processes) and opens (sockets,
  /// /proc/thread-self/net) belongs there. The caller stays where it is.
  Status run(const std::function<Status()>& work) const;

  /// Runs a program in the namespace to its end. An error has what it wrote to stderr.
  Status command(const std::vector<std::string>& words) const;
  /// The same; what it wrote.
  Result<std::string> output_of(const std::vector<std::string>& words) const;

  /// "net/ipv4/ip_forward", "1".
  Status set_kernel_parameter(const std::string& name, const std::string& value) const;

 private:
  explicit NetworkNamespace(FileDescriptor descriptor) : descriptor_(std::move(descriptor)) {}
  FileDescriptor descriptor_;
};

/// The reason why this process cannot make namespaces, links and rules (not root, no `ip`, no /dev/net/tun, …), or
/// nothing. Tries it once.
const std::string& why_no_lab();

}  // namespace freshet::lab
