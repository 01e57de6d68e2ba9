// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A name held in a host directory: the lock, and the files that only its holder writes. The record of the last number is
/// kept twice if the directory says where: a run folder is emptied by a logout or a restart of the host, and a number that
/// was given must not be given again, since archives have files with its name.

#include <memory>
#include <string>

#include "core/base/fork_guard.h"
#include "transport/directory/host_files.h"

namespace freshet {

class HostClaim final : public Directory::Claim {
 public:
  /// `folder` is the directory's descriptor; `kept`, the record's second file, or nothing.
  static Result<std::unique_ptr<Directory::Claim>> take(std::shared_ptr<const FileDescriptor> folder,
                                                        const std::string& model, FileDescriptor kept);
  ~HostClaim() override;

  VersionNumber last_number() const override { return record_.number; }
  Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) override;
  Status record_number(VersionNumber number) override;
  Status advertise(const Directory::Entry& entry) override;
  CurrentVersion current() const override;
  void swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) override;

 private:
  HostClaim(std::shared_ptr<const FileDescriptor> folder, std::string model, ParentsDescriptor lock,
            ParentsDescriptor numbers, ParentsDescriptor kept, host_files::NumberRecord record)
      : folder_(std::move(folder)),
        model_(std::move(model)),
        lock_(std::move(lock)),
        numbers_(std::move(numbers)),
        kept_(std::move(kept)),
        record_(record) {}
  Status write_record(host_files::NumberRecord record);

  const std::shared_ptr<const FileDescriptor> folder_;
  const std::string model_;
  const ParentsDescriptor lock_;
  const ParentsDescriptor numbers_;
  const ParentsDescriptor kept_;  ///< Empty when there is no second file.
  bool told_unkept_ = false;
  const ForkMark mark_;
  host_files::NumberRecord record_;
  bool advertised_ = false;
};

}  // namespace freshet
