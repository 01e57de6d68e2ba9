// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The board of a config as a file in shared memory, and its counters as a file in a tier, where they outlive the
/// host's.

#include <sys/stat.h>

#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "repo/tier/board.h"
#include "repo/tier/config.h"

namespace freshet::tier {

/// A mapped board. Any thread may use what it maps.
class BoardFile {
 public:
  /// Makes the board when there is none, with the counters that the tiers keep, and writes where sources and tiers are
  /// mounted today. unavailable when shared memory cannot be had.
  static Result<BoardFile> open(const Config& config);

  BoardFile(BoardFile&& other) noexcept;
  BoardFile& operator=(BoardFile&& other) noexcept;
  ~BoardFile();

  Board& board() const { return *board_; }
  const std::string& path() const { return path_; }

 private:
  BoardFile(std::string path, Board* board) : path_(std::move(path)), board_(board) {}

  std::string path_;
  Board* board_ = nullptr;
};

/// "/dev/shm/freshet-tier-UID/HASH": with ".ask" after it the keeper's pipe, with ".ctl" its socket.
std::string board_path(const Config& config);

/// Writes the counters to the first tier that takes them.
Status save_totals(const Board& board);

/// The number in a tier that says when it was made; 0 when there is none.
std::uint64_t made_of(const std::string& tier);
/// Gives the tier such a number, unless it has one.
Status make_made(const std::string& tier);

/// The board's lock file. Locks of its bytes belong to this descriptor: the kernel ends them with it, and with the
/// process, however that ends. A process's number would tell less: another process may get it.
FileDescriptor open_lock_file(const std::string& board_path);
/// False when another descriptor has it.
bool lock_byte(int lock_file, std::uint32_t byte);
bool is_byte_locked(int lock_file, std::uint32_t byte);

/// This process is a run from now on, until what it gets is closed.
FileDescriptor begin_run(const BoardFile& file);

/// Wakes whoever waits for a copy: to look again.
void tell_change(Board& board);
/// A program that opens that path looks for a copy first.
void hint_path(Board& board, const std::string& path);
/// For a file that the keeper cannot open. A program that waits for its copy goes on with the source.
void refuse_unopened(Board& board, const std::string& path);

/// Which device a path is on, as the board has it; 0 when it is not there.
std::uint64_t device_at(const std::string& path);
std::uint64_t device_of(const struct stat& file);

}  // namespace freshet::tier
