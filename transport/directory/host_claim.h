// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A name held in a host directory: the lock, and the files that only its holder writes.

#include <memory>
#include <string>

#include "core/base/fork_guard.h"
#include "transport/directory/host_files.h"

namespace freshet {

class HostClaim final : public Directory::Claim {
 public:
  /// `folder` is the directory's descriptor.
  static Result<std::unique_ptr<Directory::Claim>> take(std::shared_ptr<const FileDescriptor> folder,
                                                        const std::string& model);
  ~HostClaim() override;

  VersionNumber last_number() const override { return record_.number; }
  Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) override;
  Status record_number(VersionNumber number) override;
  Status advertise(const Directory::Entry& entry) override;
  CurrentVersion current() const override;
  void swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) override;

 private:
  HostClaim(std::shared_ptr<const FileDescriptor> folder, std::string model, ParentsDescriptor lock,
            ParentsDescriptor numbers, host_files::NumberRecord record)
      : folder_(std::move(folder)),
        model_(std::move(model)),
        lock_(std::move(lock)),
        numbers_(std::move(numbers)),
        record_(record) {}
  Status write_record(host_files::NumberRecord record);

  const std::shared_ptr<const FileDescriptor> folder_;
  const std::string model_;
  const ParentsDescriptor lock_;
  const ParentsDescriptor numbers_;
  const ForkMark mark_;
  host_files::NumberRecord record_;
  bool advertised_ = false;
};

}  // namespace freshet
