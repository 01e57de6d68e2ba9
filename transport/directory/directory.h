// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Where publishers and subscribers find each other, and what is remembered of a model beyond one process's life: its
/// last version number, what is current, and who serves it. Two implementations, told apart by the text they are named
/// with (open_directory): a folder of this host (host_directory.h), and Redis, for many hosts (transport/redis/).
///
/// What a directory says is a hint for finding somebody, never a proof: who is found there is checked as any stranger
/// is. What it guarantees is that a name has one publisher at a time, that a number is never given twice under a name,
/// and that the current pair changes by compare-and-swap and only forward.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/ids.h"
#include "core/result.h"
#include "transport/protocol/messages.h"

namespace freshet {

/// What is to be served of a model: activation epoch, version number, and whether a rollback holds it there. All zero:
/// nothing was said yet.
using CurrentRecord = protocol::Current;

/// How long who serves a model is believed in without saying so again.
inline constexpr Duration kTimeToLiveMax = std::chrono::hours(1);

/// Any thread. A call may wait for a directory on another host, but never longer than its patience (a few seconds),
/// then it is `unavailable` or `timed_out`; loops that must not wait use a Watch, and the calls that take a `done`.
class Directory {
 public:
  /// Who publishes a model.
  struct Entry {
    std::string model;
    std::int32_t pid = 0;
    std::uint64_t incarnation = 0;
    std::string control;            ///< Address of the control socket, as `--at` takes it.
    std::string host;               ///< this_host() of the publisher; empty when it is this one.
    std::vector<std::string> also;  ///< Further addresses of the same publisher.
    bool operator==(const Entry&) const = default;
  };

  /// Somebody who serves a model, and which version it has.
  struct Server {
    std::string address;
    VersionNumber number = 0;
    bool operator==(const Server&) const = default;
  };

  using SwapDone = std::function<void(Result<CurrentRecord>)>;

  /// A name that this process owns until it is destroyed. One thread at a time, but standing(), current() and the swap:
  /// any thread.
  ///
  /// A claim on another host can be lost: when the directory could not be reached for as long as the lease lasts, and
  /// somebody else took the name. From when that is known on everything here is failed_precondition, with who has it,
  /// for ever.
  class Claim {
   public:
    virtual ~Claim() = default;
    /// No number up to this one may be given. It may be above the last one that was given.
    virtual VersionNumber last_number() const = 0;
    /// An incarnation greater than every one before it under this name: `unix_ns`, unless the clock went back. Durable
    /// like a number.
    virtual Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) = 0;
    /// When it returns, `number` will not be given to anybody else under this name, also after the death of this
    /// process: a folder of this host forgets with the host, Redis as its own persistence says. Numbers grow.
    virtual Status record_number(VersionNumber number) = 0;
    virtual Status advertise(const Entry& entry) = 0;
    /// failed_precondition, with who has it, when the claim is lost. Does not wait.
    virtual Status standing() const { return {}; }

    /// The current record, as far as it is known here; does not wait.
    virtual CurrentRecord current() const = 0;
    /// Makes `desired` current if `expected` is, and gives what is current then; failed_precondition, naming what is,
    /// when it was not `expected`; invalid_argument when `desired` does not come after `expected` (a later epoch, or
    /// the same one and a larger number: releasing a hold begins an epoch). Durable like a number. `done` is called
    /// exactly once, before this returns or from the directory's own thread, where it must not block nor call back into
    /// the directory; also `unavailable` when the answer was lost: the swap may have happened, and current() will tell.
    virtual void swap_current(const CurrentRecord& expected, const CurrentRecord& desired, SwapDone done) = 0;
    /// The same, waiting. Not from a `done`.
    Result<CurrentRecord> compare_and_swap_current(const CurrentRecord& expected, const CurrentRecord& desired);
  };

  /// What is known of one model, kept up to date without asking. One thread at a time.
  class Watch {
   public:
    virtual ~Watch() = default;
    /// Readable when something may have changed; -1 when nothing can be heard (the caller then looks now and then).
    virtual int descriptor() const = 0;
    /// Takes what has come. True when what is known may have changed.
    virtual bool take() = 0;
    /// None of these waits. not_found when nobody is there; unavailable while a directory on another host has not
    /// answered yet, or no longer does and knew nobody.
    virtual Result<Entry> entry() = 0;
    virtual Result<CurrentRecord> current() = 0;
    virtual Result<std::vector<Server>> servers() = 0;
    /// Asks a directory on another host afresh; take() tells when something else came of it.
    virtual void look_again() {}
    /// What was announced (Directory::announce) since the last call, the newest last; of watch_commits() only.
    virtual std::vector<std::string> take_announcements() { return {}; }
  };

  virtual ~Directory() = default;

  /// already_exists, with who has it, when a living publisher owns the name.
  virtual Result<std::unique_ptr<Claim>> claim(const std::string& model) = 0;
  /// not_found when nobody publishes it.
  virtual Result<Entry> lookup(const std::string& model) = 0;
  /// The living entries, by name.
  virtual Result<std::vector<Entry>> list() = 0;
  virtual Result<std::unique_ptr<Watch>> watch(const std::string& model) = 0;

  /// Whether announce() reaches anybody.
  virtual bool carries_announcements() const { return false; }
  /// As watch(), with announcements. unsupported where the directory carries none.
  virtual Result<std::unique_ptr<Watch>> watch_commits(const std::string& model);
  /// Tells those who watch the commits of a model; `announcement` is an encoded protocol::Announcement. May be lost;
  /// never waits.
  virtual void announce(const std::string& /*model*/, const std::string& /*announcement*/) {}

  virtual Result<CurrentRecord> current(const std::string& model) = 0;
  /// As Claim's, for who does not publish.
  virtual Result<CurrentRecord> compare_and_swap_current(const std::string& model, const CurrentRecord& expected,
                                                         const CurrentRecord& desired) = 0;

  /// Says that `address` serves `number` of the model, for `time_to_live` (at most kTimeToLiveMax) from now; say it
  /// again before that.
  virtual Status serve(const std::string& model, const Server& server, Duration time_to_live) = 0;
  virtual Status stop_serving(const std::string& model, const std::string& address) = 0;
  /// Those whose time has not run out, by address.
  virtual Result<std::vector<Server>> servers(const std::string& model) = 0;

  /// The name that it was opened with, without any password.
  virtual std::string text() const = 0;
  /// How it is, in a few words for people: "reachable", or since when it is away and why.
  virtual std::string health() const = 0;
  /// A folder of this host that belongs to this user alone, for the sockets of those who advertise here.
  virtual const std::string& folder() const = 0;
};

/// Empty: $FRESHET_DIRECTORY, or when that is empty too, the default folder of this host.
/// "redis://[:password@]host:port
/// [/db]" and "redis+unix:///path[?db=N]": Redis; it need not be there yet. Anything else is a folder of this host.
/// invalid_argument for a malformed address; unsupported for rediss:// (TLS) where hiredis was built without it. The
/// password is in no error, log or text().
Result<std::unique_ptr<Directory>> open_directory(const std::string& text);

/// Whether `text` (or, when it is empty, the environment) names a directory of many hosts.
bool is_remote_directory(const std::string& text);

/// What every implementation keeps: errors for a swap that does not go forward, or whose numbers are out of range.
Status check_swap(const std::string& model, const CurrentRecord& expected, const CurrentRecord& desired);
/// "demo is at (epoch 2, version 17, held), not at (epoch 1, version 19)", failed_precondition.
Error not_expected(const std::string& model, const CurrentRecord& expected, const CurrentRecord& actual);
/// corrupt or invalid_argument, as `code` says, unless the addresses, host and numbers of an entry are within bounds.
Status check_entry(const Directory::Entry& entry, Code code);
Status check_server(const std::string& model, const Directory::Server& server, Code code);

}  // namespace freshet
