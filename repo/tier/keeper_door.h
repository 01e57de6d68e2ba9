// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The keeper's sockets, beside the board: BOARD.ask takes datagrams, each a path that a program opened; BOARD.ctl
/// takes connections of the command line. A record there is a word, a space, what it is about, and a zero byte, since
/// names may have any other. Each is answered by "ok" or by what is wrong, with a zero byte:
///
///   hold           the keeper stays while this connection is open
///   prefetch PATH  copies it, in order
///   settle         is answered when nothing is left to do
///   forget NAME    somebody removed that copy
///   stop           the keeper ends
///
/// The folder of both is this user's alone.

#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/file_descriptor.h"
#include "core/result.h"
#include "repo/tier/board_file.h"
#include "repo/tier/config.h"
#include "repo/tier/keeper.h"

namespace freshet::tier {

struct DoorOptions {
  bool ends_when_idle = false;  ///< Nobody connected and nothing to do: it ends. For a keeper that nobody watches.
  int stop_descriptor = -1;     ///< Readable: it ends.
};

/// Owned by its loop thread.
class KeeperDoor {
 public:
  /// Takes the keeper's place for this config. failed_precondition when another process has it.
  static Result<std::unique_ptr<KeeperDoor>> open(const Config& config, BoardFile board);
  ~KeeperDoor();

  /// Until it is told to end.
  Status run(const DoorOptions& options);

 private:
  struct Client {
    FileDescriptor fd;
    std::string heard;
    bool settles = false;
    bool gone = false;
  };

  explicit KeeperDoor(const Config& config, BoardFile board) : config_(config), board_(std::move(board)) {}

  void take_requests();
  void take_client();
  void hear(Client& client);
  std::string answer(Client& client, const std::string& record);
  void answer_settled();
  void do_by_the_clock();

  const Config config_;
  BoardFile board_;
  FileDescriptor lock_;
  FileDescriptor ask_;
  FileDescriptor control_;
  FileDescriptor idle_;
  std::unique_ptr<Keeper> keeper_;
  std::vector<std::unique_ptr<Client>> clients_;
  bool had_client_ = false;
  bool told_to_stop_ = false;
  std::uint64_t saved_opens_ = 0;
  Time next_probe_{};
  Time next_save_{};
};

/// A connection of the command line to a keeper. One thread at a time.
class KeeperLine {
 public:
  /// unavailable when there is no keeper.
  static Result<KeeperLine> connect(const Config& config);

  /// One record, and its answer. timed_out when it did not come by then.
  Status say(const std::string& record, Time deadline);
  int descriptor() const { return fd_.get(); }

 private:
  explicit KeeperLine(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
};

}  // namespace freshet::tier
