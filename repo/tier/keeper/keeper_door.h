// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The keeper's doors, beside the board: BOARD.ask is a pipe of paths that programs opened, each with a zero byte (it
/// holds some thousands, so that a keeper may be behind for a while); BOARD.ctl is a socket that takes connections of
/// the command line. A record there is a word, a space, what it is about, and a zero byte, since names may have any
/// other. Each is answered by "ok" or by what is wrong, with a zero byte:
///
///   hold           the keeper stays while this connection is open
///   next PATH      is opened after what was told before on this connection; not answered
///   anew           what was told before counts no more; not answered
///   told           is answered when all of that was taken
///   leave          what was told stays when this connection closes
///   run            a run began, and stands on the board
///   prefetch PATH  copies it, in order
///   settle         is answered when nothing is left to do
///   forget NAME    somebody removed that copy
///   stop           the keeper ends
///
/// The folder of both is this user's alone.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/base/wake.h"
#include "repo/tier/board_file.h"
#include "repo/tier/config.h"
#include "repo/tier/keeper/keeper.h"

namespace freshet::tier {

struct DoorOptions {
  bool ends_when_idle = false;    ///< Nobody connected and nothing to do: it ends. For a keeper that nobody watches.
  int stop_descriptor = -1;       ///< Readable: it ends.
  std::function<void()> on_look;  ///< The loop calls it after each turn, twice a second at least; none: nothing.
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
    Lookahead::Stream order = 0;  ///< What it tells; 0: nothing yet.
    std::string trouble;          ///< Why some of it was not taken.
    bool settles = false;
    bool gone = false;
  };

  explicit KeeperDoor(const Config& config, BoardFile board) : config_(config), board_(std::move(board)) {}

  void take_requests();
  void take_request(std::string text);
  void take_client();
  void hear(Client& client);
  std::string answer(Client& client, const std::string& record);
  void tell_next(Client& client, const std::string& path);
  void answer_settled();
  void do_by_the_clock();

  const Config config_;
  BoardFile board_;
  FileDescriptor lock_;
  FileDescriptor ask_;
  std::string asked_;  ///< What came of a request whose end did not yet.
  FileDescriptor control_;
  std::optional<Wake> idle_;
  FileDescriptor spare_;  ///< Given up for a connection that there is no descriptor for.
  std::unique_ptr<Keeper> keeper_;
  std::vector<std::unique_ptr<Client>> clients_;
  bool had_client_ = false;
  Time last_needed_{};  ///< A client or a request was there.
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

  /// Records, each with its zero byte. timed_out when the keeper took no more by then: some of it may be on its way.
  Status send(std::string_view records, Time deadline);
  /// One record, and its answer. timed_out when it did not come by then.
  Status say(const std::string& record, Time deadline);
  /// The answer to a record that was sent. After timed_out it may be asked for again.
  Status hear(Time deadline);
  int descriptor() const { return fd_.get(); }

 private:
  explicit KeeperLine(FileDescriptor fd) : fd_(std::move(fd)) {}

  FileDescriptor fd_;
  std::string heard_;
};

}  // namespace freshet::tier
