// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The embedded directory: a folder of this host that belongs to one user (mode 0700): $FRESHET_RUN_DIR, else
/// $XDG_RUNTIME_DIR/freshet, else /tmp/freshet-UID. For each MODEL:
///   MODEL.lock     held by the living publisher with a lock of its open file description (fcntl, F_OFD_SETLK: it can
///   be
///                  asked about without taking it); its text is the process id. The kernel releases it with the
///                  process.
///   MODEL.number   the last number given and the last incarnation begun, 8 bytes little-endian each; written before a
///                  version is announced. The default folder is emptied by a logout or a restart of the host, so its
///                  records are kept in the user's state folder too (transport/directory/state_folder.h), as
///                  MODEL.HASH.number with the hash of the folder's path. Whoever names another folder has chosen
///                  where numbers are kept.
///   MODEL.entry    where the publisher listens (JSON), replaced by rename.
///   MODEL.current  what is current (JSON), replaced by rename under a lock on MODEL.swap.
///   MODEL.HASH.server  one for each who serves the model (JSON): its address, version, and until when that is
///   believed.
/// The word behind the last dot says what a file is, and what stands before it (less the dot and 16 digits of a
/// server's) whose: no two models share a file, whatever they are called.
/// The folder may be removed, or its files, while processes live that have something there: at logout, or by a cleaner
/// of old files. A publisher puts back what is its own within a second (tend()); if another one has taken the name
/// meanwhile, it has lost it. Everybody else finds the folder that is at the path at the time of each call. Everything
/// read back is checked: the folder must belong to the user and be closed to others, and so must its files.

#include <memory>
#include <string>
#include <vector>

#include "transport/directory/directory.h"
#include "transport/directory/host_folder.h"

namespace freshet {

/// Immutable; any thread. No call waits, but a swap for another swap (50 ms at most).
class HostDirectory final : public Directory {
 public:
  /// Empty: the default folder. Creates it (its parent must exist). failed_precondition when somebody else could write
  /// there.
  static Result<std::unique_ptr<HostDirectory>> open(const std::string& folder);

  /// already_exists with the living holder's process id.
  Result<std::unique_ptr<Claim>> claim(const std::string& model) override;
  Result<Entry> lookup(const std::string& model) override;
  Result<std::vector<Entry>> list() override;
  Result<std::unique_ptr<Watch>> watch(const std::string& model) override;
  Result<CurrentVersion> current(const std::string& model) override;
  Result<CurrentVersion> compare_and_swap_current(const std::string& model, const CurrentVersion& expected,
                                                  const CurrentVersion& desired) override;
  Status serve(const std::string& model, const Server& server, Duration time_to_live) override;
  Status stop_serving(const std::string& model, const std::string& address) override;
  Result<std::vector<Server>> servers(const std::string& model) override;
  Result<bool> tend() override { return folder_->make_again(); }
  std::string text() const override { return folder_->path(); }
  std::string health() const override { return "folder " + folder_->path(); }
  /// Absolute.
  const std::string& folder() const override { return folder_->path(); }

 private:
  HostDirectory(std::shared_ptr<HostFolder> folder, bool is_default)
      : folder_(std::move(folder)), is_default_(is_default) {}
  Result<std::vector<std::string>> names() const;

  /// Files are opened relative to the folder that was checked.
  const std::shared_ptr<HostFolder> folder_;
  const bool is_default_;
};

}  // namespace freshet
