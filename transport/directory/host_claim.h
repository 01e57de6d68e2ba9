// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A name held in a host directory: the lock, and the files that only its holder writes. The record of the last number
/// is kept twice if the directory says where: a run folder is emptied by a logout or a restart of the host, and a
/// number that was given must not be given again, since archives have files with its name.

#include <memory>
#include <string>

#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "transport/directory/host_files.h"
#include "transport/directory/host_folder.h"

namespace freshet {

class HostClaim final : public Directory::Claim {
 public:
  /// `kept` is the record's second file, if there is one.
  static Result<std::unique_ptr<Directory::Claim>> take(std::shared_ptr<HostFolder> folder, const std::string& model,
                                                        host_files::KeptNumbers kept);
  ~HostClaim() override;

  VersionNumber last_number() const override { return record().number; }
  Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) override;
  Status record_number(VersionNumber number) override;
  Status advertise(const Directory::Entry& entry) override;
  Status standing() const override;
  Result<bool> tend() override;
  CurrentVersion current() const override;
  void swap_current(const CurrentVersion& expected, const CurrentVersion& desired, Directory::SwapDone done) override;

 private:
  /// The claim in one folder. Immutable.
  struct Held {
    HostFolder::Descriptor folder;
    ParentsDescriptor lock;
    ParentsDescriptor numbers;
  };
  HostClaim(std::shared_ptr<HostFolder> folder, std::string model, std::shared_ptr<const Held> held,
            host_files::KeptNumbers kept, host_files::NumberRecord record)
      : folder_(std::move(folder)),
        model_(std::move(model)),
        kept_path_(std::move(kept.path)),
        kept_(std::move(kept.file)),
        held_(std::move(held)),
        record_(record) {}
  static Result<std::shared_ptr<const Held>> hold(HostFolder::Descriptor descriptor, const std::string& folder,
                                                  const std::string& model);
  /// For errors.
  std::string numbers_path() const { return folder_->path() + "/" + model_ + ".number"; }
  std::shared_ptr<const Held> held() const FRESHET_EXCLUDES(mutex_);
  host_files::NumberRecord record() const FRESHET_EXCLUDES(mutex_);
  bool is_in_place(const Held& held) const;
  Status take_again() FRESHET_EXCLUDES(mutex_);
  Status write_record(host_files::NumberRecord record) FRESHET_EXCLUDES(mutex_);
  Status keep(const host_files::NumberRecord& record) const;
  std::string entry_file() const { return model_ + std::string(host_files::kEntrySuffix); }

  const std::shared_ptr<HostFolder> folder_;
  const std::string model_;
  const std::string kept_path_;
  const ParentsDescriptor kept_;  ///< Empty when there is no second file.
  const ForkMark mark_;

  mutable Mutex mutex_;
  std::shared_ptr<const Held> held_ FRESHET_GUARDED_BY(mutex_);
  host_files::NumberRecord record_ FRESHET_GUARDED_BY(mutex_);
  std::string entry_ FRESHET_GUARDED_BY(mutex_);               ///< Empty before advertise().
  mutable CurrentVersion current_ FRESHET_GUARDED_BY(mutex_);  ///< As it was last seen.
  std::string lost_to_ FRESHET_GUARDED_BY(mutex_);             ///< Why the claim is lost.
  bool told_unkept_ FRESHET_GUARDED_BY(mutex_) = false;
};

}  // namespace freshet
