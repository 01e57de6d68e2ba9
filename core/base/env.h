// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The interface to the operating system for three things: files that must be durable, random bytes, and environment
/// variables. Tests replace it by one that fails on request (tests/fault/fault_env.h).

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/base/bytes.h"
#include "core/base/result.h"

namespace freshet {

/// A new file being written. If the object is destroyed without close(), the file is closed, and its contents are
/// unspecified. One thread at a time.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status append(Bytes bytes) = 0;
  /// sync() will come: what is appended may go to the medium at once. Otherwise sync() waits for all of it.
  virtual void expect_sync() {}
  virtual Status sync() = 0;  ///< To the medium.
  virtual Status close() = 0;
};

/// Any thread. Errors name the path and the system's reason; a full disk is out_of_space.
class Env {
 public:
  virtual ~Env() = default;

  virtual Result<std::unique_ptr<WritableFile>> create_file(
      const std::string& path) = 0;                                                ///< already_exists if it does.
  virtual Status rename_file(const std::string& from, const std::string& to) = 0;  ///< Replaces `to`.
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status sync_folder(const std::string& path) = 0;  ///< Makes renames and removals in it durable.

  virtual void fill_random(MutableBytes out) = 0;  ///< Unpredictable.
  virtual std::optional<std::string> variable(const std::string& name) const = 0;
};

/// The machine's. One instance serves everybody.
Env& system_env();

/// Writes a new file `aside`, then renames it to `path`. Readers see the old file or the whole new file; with `sync`,
/// also after a crash of the host. Leaves no file `aside` behind if it fails.
Status replace_file(Env& env, const std::string& path, const std::string& aside,
                    const std::function<Status(WritableFile&)>& write, bool sync);

/// replace_file() with the pieces one after another into a new file beside `path`. If `path` is a link, the link stays
/// and its file is replaced. invalid_argument if `path` is no regular file; it then stays unchanged.
Status write_file_atomically(Env& env, const std::string& path, std::span<const Bytes> pieces, bool sync);

/// A random number from `env`.
std::uint64_t random_u64(Env& env);

}  // namespace freshet
