// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The clients that a publisher admits: a file of public keys, one a line, each with a label if its writer likes, and
/// with the word "writer" or "operator" before it if its owner may do more than read (transport/security/keys.h has the
/// form of a line). Of two lines with one key the later counts. The file is read again when it has changed.

#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/file_io.h"
#include "core/base/result.h"
#include "transport/security/keys.h"

namespace freshet {

inline constexpr std::size_t kAllowedKeysMax = 65536;

/// What the owner of a key may do, each with all that comes before it. `read`: follow, fetch, match, get. `write`:
/// store versions in a repository, and say more of them. `operate`: say what is current, and change what others rely
/// on.
enum class Right : std::uint8_t { read, write, operate };
/// The word before a key that gives the right; empty for read.
std::string_view word_of(Right right);

struct AllowedKey {
  std::string label;
  Right right = Right::read;
  bool operator==(const AllowedKey&) const = default;
};
/// Immutable. By the key's text.
using AllowedKeys = std::map<std::string, AllowedKey, std::less<>>;

/// One thread at a time.
class AllowList {
 public:
  /// invalid_argument for a bad line, naming file and line, and for a file that others may write; not_found and other
  /// reasons of the system's.
  static Result<AllowList> open(std::string path);

  /// Reads the file again if it may have changed. After an error the keys stay as they were, and the error is not told
  /// again until the file changes once more.
  Status refresh();

  const std::string& path() const { return path_; }
  const std::shared_ptr<const AllowedKeys>& keys() const { return keys_; }

 private:
  /// Of a file that was read, to see that it is another one now.
  struct Stamp {
    ino_t inode = 0;
    off_t bytes = 0;
    timespec written{};
    timespec changed{};
    int failure = 0;
    bool operator==(const Stamp& other) const;
  };
  explicit AllowList(std::string path) : path_(std::move(path)) {}
  static Stamp stamp_of(const std::string& path);
  Status read();

  std::string path_;
  Stamp stamp_;
  /// The file changed so shortly before it was read that a second change could carry the same times.
  bool may_hide_a_change_ = false;
  std::shared_ptr<const AllowedKeys> keys_;
  std::string told_;  ///< The last error, so that it is told once.
};

}  // namespace freshet
