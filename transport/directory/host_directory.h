#pragma once

/// The embedded directory: who publishes which model on this host, and the last version number that each name was
/// given. A folder that belongs to one user (mode 0700): $FRESHET_RUN_DIR, else $XDG_RUNTIME_DIR/freshet, else
/// /tmp/freshet-UID. For each MODEL:
///   MODEL.lock    held by the living publisher with a lock of its open file description (fcntl, F_OFD_SETLK: it can be
///                 asked about without taking it); its text is the process id. The kernel releases it with the process.
///   MODEL.number  the last number given and the last incarnation begun, 8 bytes little-endian each; written before a
///                 version is announced.
///   MODEL.entry   where the publisher listens (JSON), replaced by rename.
/// Everything read back is checked: the folder must belong to the user and be closed to others, and so must its files.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/ids.h"
#include "core/result.h"

namespace freshet {

/// Immutable and copyable; any thread.
class HostDirectory {
 public:
  struct Entry {
    std::string model;
    std::int32_t pid = 0;
    std::uint64_t incarnation = 0;
    std::string control;  ///< Address of the control socket.
  };

  /// A name that this process owns until it is destroyed. One thread at a time.
  class Claim {
   public:
    virtual ~Claim() = default;
    virtual VersionNumber last_number() const = 0;
    /// An incarnation greater than every one before it under this name: `unix_ns`, unless the clock went back. Durable
    /// like a number.
    virtual Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) = 0;
    /// Durable against the death of the process (not of the host) when it returns.
    virtual Status record_number(VersionNumber number) = 0;
    virtual Status advertise(const Entry& entry) = 0;
  };

  /// Empty: the default folder. Creates it (its parent must exist). failed_precondition when somebody else could write
  /// there.
  static Result<HostDirectory> open(const std::string& folder);

  /// already_exists with the living holder's process id.
  Result<std::unique_ptr<Claim>> claim(const std::string& model) const;

  /// not_found when nobody ever advertised the name or its publisher is gone.
  Result<Entry> lookup(const std::string& model) const;
  /// The living entries.
  std::vector<Entry> list() const;

  /// Absolute.
  const std::string& folder() const { return folder_; }

 private:
  HostDirectory(std::string folder, std::shared_ptr<const FileDescriptor> descriptor)
      : folder_(std::move(folder)), descriptor_(std::move(descriptor)) {}
  std::string folder_;
  std::shared_ptr<const FileDescriptor>
      descriptor_;  ///< Of the folder that was checked; files are opened relative to it.
};

}  // namespace freshet
