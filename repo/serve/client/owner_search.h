// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The search for the server that owns a repository, as a value: which server to ask next, and when to try again. No
/// I/O, no clock. Private to this folder.
///
/// A round asks each known server once, and each owner that standbys name. Then it asks the source, if there is one. A
/// doubted server comes last: it answered, but may have been replaced. A repository that cannot move has one server,
/// and one round.

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "repo/serve/served_owner.h"

namespace freshet::rpc {

/// Whether the error says that nobody is there, or that nobody there owns the repository.
bool is_absence(const Error& error);

/// One thread at a time.
class OwnerSearch {
 public:
  struct Options {
    std::string first;                ///< The address that was given.
    std::vector<std::string> others;  ///< Of a repository that may move.
    bool has_source = false;
    Duration connect = std::chrono::seconds(5);    ///< The first round.
    Duration takeover = std::chrono::seconds(15);  ///< The rounds after it.
    Duration one_of_several = std::chrono::seconds(2);
    Duration pause = std::chrono::milliseconds(200);  ///< Between rounds.
    Duration source = std::chrono::seconds(3);
    Duration source_pause = std::chrono::seconds(1);  ///< Between questions to the source.
  };
  /// The results of one search that the next one uses.
  struct Known {
    bool moves = false;  ///< An owner with standbys, or a standby, answered once.
    std::optional<ServedOwner> owner;
    std::string doubted;  ///< An address; empty: none.
  };
  OwnerSearch(Options options, const Known& known, Time now);

  struct AskServer {
    ServedOwner server;
    Time deadline;
  };
  struct AskSource {
    Time deadline;
  };
  struct Wait {
    Time until;
  };
  /// The error ends the search.
  using Step = std::variant<AskServer, AskSource, Wait, Error>;
  Step next(Time now);

  // What came of the last step. A server that owns the repository ends the search.
  void on_standby(const ServedOwner& told);
  /// `moves`: of an owner with standbys.
  void on_error(Error error, bool moves = false);
  /// No address: the source knows no owner.
  void on_source(const ServedOwner& told);

  bool moves() const { return moves_; }

 private:
  /// Standbys that tell of each other end the round.
  static constexpr std::size_t kAskedMax = 32;

  void begin_round();
  std::optional<ServedOwner> next_server();

  const Options options_;
  const std::optional<ServedOwner> last_owner_;
  const std::string doubted_;
  bool moves_;
  Time deadline_;                 ///< Of the round.
  std::optional<Time> gives_up_;  ///< From the end of the first round on.
  Time source_due_;
  std::optional<Error> last_;
  std::optional<Error> failed_;

  // Of the round.
  std::vector<ServedOwner> servers_;
  std::set<std::string> asked_;
  std::size_t at_ = 0;
  bool asks_doubted_ = false;
  bool asked_source_ = false;
  std::string asking_;  ///< The last step's server.
};

}  // namespace freshet::rpc
