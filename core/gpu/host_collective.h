// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The host collective: a Collective (core/gpu/collective.h) for tests, over Unix sockets between threads or processes
/// of one host. Like NCCL, it says nothing of a peer that died: what was begun is never done.
///
/// It lies in core for the reasons of the host device (core/gpu/host_device.h). No option of a user's opens it.

#include <map>
#include <memory>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/mutex.h"
#include "core/gpu/collective.h"

namespace freshet::gpu {

/// Any thread.
class HostCollective final : public Collective {
 public:
  Result<CollectiveId> make_id() override FRESHET_EXCLUDES(mutex_);
  Result<std::unique_ptr<Communicator>> join(const CollectiveSeat& seat) override FRESHET_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::uint64_t made_ FRESHET_GUARDED_BY(mutex_) = 0;
  std::map<std::string, FileDescriptor> doors_ FRESHET_GUARDED_BY(mutex_);  ///< Of ids that rank 0 has not joined yet.
};

}  // namespace freshet::gpu
