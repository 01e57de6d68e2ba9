// SPDX-License-Identifier: Apache-2.0
#pragma once

/// One tier as a folder: which copies it has, and how a copy comes and goes. A copy is written under a name that nobody
/// serves, digested on the way, synced, and renamed once its source was looked at again; so whatever dies at whatever
/// time, a name that is served has all bytes.
///
/// Any thread, but for sweep().

#include <sys/stat.h>

#include <atomic>
#include <functional>
#include <string>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "repo/tier/copy_name.h"

namespace freshet::tier {

/// failed_precondition when the folder is another user's or others may write to it: nothing there is to be believed.
Status check_own_tier(const std::string& tier);

/// Makes the folder (0700) when it is not there, and checks it.
Status prepare_tier(const std::string& tier);

/// Removes what was left unfinished. REQUIRES: nobody copies into it (the keeper's lock is held).
Status sweep_tier(const std::string& tier);

/// Each name in a folder.
Status each_name(const std::string& path, const std::function<void(const char*)>& each);

/// Each file that has a copy's name: its identity, its bytes on the disk's books, and whether it can be a copy at all
/// (a file, of the right size). Only of a tier that is this user's own.
using EachCopy = std::function<void(const Identity& identity, std::uint64_t bytes, bool sound)>;
Status each_copy(const std::string& tier, const EachCopy& each);

/// The path of a copy in a tier, whether it is there or not.
std::string copy_path(const std::string& tier, const Identity& identity);

/// A source file that is open, and what it was then.
struct OpenSource {
  int fd = -1;
  std::string path;  ///< Absolute, without links.
  Identity identity;
  CopyNote note;  ///< All but the digest.
};

struct CopyEnd {
  enum class Kind { made, source_failed, tier_failed, changed, stopped };
  Kind kind = Kind::made;
  std::string reason;
  std::uint64_t read_bytes = 0;
};

/// Copies. `aside` is a number that no other copy in progress has; `stop` ends it between two pieces. `written` is
/// called when all bytes are written: what is left is to wait for the disk, then for the source, which others may do
/// beside it.
CopyEnd make_copy(const OpenSource& source, const std::string& tier, std::uint64_t aside, const std::atomic<bool>& stop,
                  const std::function<void()>& written);

struct CopyCheck {
  bool good = false;
  bool was_read = false;  ///< To its end: if it is not good then, its bytes are others.
  std::uint64_t bytes = 0;
  std::string source;  ///< The path at the source, "" when it is not known.
};
/// Called with the bytes of each piece that was read; false ends the check.
using GoesOn = std::function<bool(std::uint64_t bytes)>;
/// Reads a copy again and compares it with its digest. With `goes_on` it reads the disk, where its file system can, and
/// leaves the kernel's cache to others.
CopyCheck check_copy(const std::string& tier, const Identity& identity, const GoesOn& goes_on = {});
/// Removes a copy, and the link that leads to it. A program that has it open keeps it. Entries that are no files stay.
Status remove_copy(const std::string& tier, const Identity& identity);
/// The source's path as the copy's note has it; "" when it has none.
std::string source_of_copy(const std::string& tier, const Identity& identity);

}  // namespace freshet::tier
