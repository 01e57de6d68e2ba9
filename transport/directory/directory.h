// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Publishers and subscribers find each other in a directory. The directory also keeps facts of a model beyond one
/// process's life: its last version number, its current version, and its servers. There are two implementations;
/// open_directory() chooses by the text: a folder of this host (host_directory.h), and Redis, for many hosts
/// (transport/redis/).
///
/// An entry of a directory is a hint, never a proof: a process that is found there is checked like any stranger. A
/// directory guarantees three things. A name has one publisher at a time. A number is never given twice under a name.
/// The current pair changes by compare-and-swap and only forward.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/ids.h"
#include "transport/current.h"

namespace freshet {

/// The longest time that the entry of a server is valid without a renewal.
inline constexpr Duration kTimeToLiveMax = std::chrono::hours(1);

/// Any thread. A call may wait for a directory on another host, but only for a few seconds. Then it is `unavailable` or
/// `timed_out`. Loops that must not wait use a Watch, and the calls that take a `done`.
class Directory {
 public:
  /// The publisher of a model.
  struct Entry {
    std::string model;
    std::int32_t pid = 0;
    std::uint64_t incarnation = 0;
    std::string control;            ///< Address of the control socket, as `--at` takes it.
    std::string host;               ///< this_host() of the publisher; empty if it is this host.
    std::vector<std::string> also;  ///< Further addresses of the same publisher.
    bool operator==(const Entry&) const = default;
  };

  /// A process that serves a model, and its version.
  struct Server {
    std::string address;
    VersionNumber number = 0;
    bool operator==(const Server&) const = default;
  };

  using SwapDone = std::function<void(Result<CurrentVersion>)>;

  /// A model's name, owned by this process until the claim is destroyed. One thread at a time; standing(), tend(),
  /// current() and the swap: any thread.
  ///
  /// A claim in a directory on another host can be lost: if the directory could not be reached for the length of the
  /// lease, and another publisher took the name. A claim in a folder can be lost if the folder was removed. As soon as
  /// this is known, every call here is failed_precondition for ever; the message names the other publisher.
  class Claim {
   public:
    virtual ~Claim() = default;
    /// New numbers must be greater than this one. It may be above the last number that was given.
    virtual VersionNumber last_number() const = 0;
    /// An incarnation greater than every one before it under this name: `unix_ns`, unless the clock went back. Durable
    /// like a number.
    virtual Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) = 0;
    /// After the return, `number` is never given again under this name, even after the death of this process. (A folder
    /// of this host lasts as long as the host; Redis as long as its own persistence.) Numbers grow.
    virtual Status record_number(VersionNumber number) = 0;
    /// The owner ends: record_number() and begin_incarnation() do not wait any more, also where they wait already. They
    /// are `cancelled` where they would have to. Any thread.
    virtual void stop_waiting() {}
    virtual Status advertise(const Entry& entry) = 0;
    /// failed_precondition if the claim is lost; the message names the other publisher. Does not wait.
    virtual Status standing() const { return {}; }
    /// Looks whether what the claim has in the directory is still there, and puts back what somebody removed; then it
    /// answers true. failed_precondition if the claim is lost by that. Any thread, from time to time.
    virtual Result<bool> tend() { return false; }

    /// The current record, as far as this process knows; does not wait.
    virtual CurrentVersion current() const = 0;
    /// If `expected` is current, makes `desired` current; the answer is the record that is current afterwards.
    /// failed_precondition if `expected` was not current; the message names the current record. invalid_argument if
    /// `desired` does not come after `expected` (a later epoch, or the same epoch and a larger number; releasing a hold
    /// begins an epoch). Durable like a number. `done` is called exactly once: before this returns, or from the
    /// directory's own thread. There `done` must not block and must not call the directory. `unavailable`: the answer
    /// was lost, and the swap may have happened; current() will tell.
    virtual void swap_current(const CurrentVersion& expected, const CurrentVersion& desired, SwapDone done) = 0;
    /// The same, waiting. Not from a `done`.
    Result<CurrentVersion> compare_and_swap_current(const CurrentVersion& expected, const CurrentVersion& desired);
  };

  /// The directory's facts of one model, kept up to date without questions. One thread at a time.
  class Watch {
   public:
    virtual ~Watch() = default;
    /// Readable when something may have changed. -1: there is no news; the caller has to look from time to time.
    virtual int descriptor() const = 0;
    /// Takes the news that have come. True if a fact may have changed.
    virtual bool take() = 0;
    /// The next three calls do not wait. not_found: there is no such process. unavailable: a directory on another host
    /// has not answered yet, or no longer answers and knew no such process.
    virtual Result<Entry> entry() = 0;
    virtual Result<CurrentVersion> current() = 0;
    virtual Result<std::vector<Server>> servers() = 0;
    /// Asks a directory on another host again; take() tells if the answer is different.
    virtual void look_again() {}
    /// The announcements (Directory::announce) since the last call, the newest last; only of watch_commits().
    virtual std::vector<std::string> take_announcements() { return {}; }
  };

  virtual ~Directory() = default;

  /// already_exists if a living publisher owns the name; the message names it.
  virtual Result<std::unique_ptr<Claim>> claim(const std::string& model) = 0;
  /// not_found if nobody publishes the model.
  virtual Result<Entry> lookup(const std::string& model) = 0;
  /// The living entries, by name.
  virtual Result<std::vector<Entry>> list() = 0;
  virtual Result<std::unique_ptr<Watch>> watch(const std::string& model) = 0;

  /// Whether announce() reaches anybody.
  virtual bool carries_announcements() const { return false; }
  /// As watch(), with announcements. unsupported if the directory carries none.
  virtual Result<std::unique_ptr<Watch>> watch_commits(const std::string& model);
  /// Sends an announcement to the watchers of a model's commits; `announcement` is an encoded protocol::Announcement.
  /// It may be lost. Never waits.
  virtual void announce(const std::string& /*model*/, const std::string& /*announcement*/) {}

  virtual Result<CurrentVersion> current(const std::string& model) = 0;
  /// As Claim::compare_and_swap_current(), for a process that does not publish.
  virtual Result<CurrentVersion> compare_and_swap_current(const std::string& model, const CurrentVersion& expected,
                                                          const CurrentVersion& desired) = 0;

  /// Records that `address` serves `number` of the model, for `time_to_live` (at most kTimeToLiveMax) from now. Call it
  /// again before this time ends. If two processes serve one address, neither is told; the later record counts.
  virtual Status serve(const std::string& model, const Server& server, Duration time_to_live) = 0;
  virtual Status stop_serving(const std::string& model, const std::string& address) = 0;
  /// The servers with time left, by address.
  virtual Result<std::vector<Server>> servers(const std::string& model) = 0;

  /// Makes the folder of this host again if somebody removed it, and then answers true. From time to time.
  virtual Result<bool> tend() { return false; }

  /// The text that the directory was opened with, without any password.
  virtual std::string text() const = 0;
  /// The directory's state in a few words for people: "reachable", or since when it is away and why.
  virtual std::string health() const = 0;
  /// A folder of this host that belongs to this user alone, for the sockets of processes that advertise here.
  virtual const std::string& folder() const = 0;
};

/// Opens the directory that `text` names. Empty: $FRESHET_DIRECTORY, or if that is empty too, the default folder of
/// this host. "redis://[:password@]host:port[/db]" and "redis+unix:///path[?db=N]": Redis, which may start later. Any
/// other text: a folder of this host. invalid_argument for a malformed address; unsupported for rediss:// (TLS) if
/// hiredis was built without it. No error, log or text() contains the password.
Result<std::unique_ptr<Directory>> open_directory(const std::string& text);

/// Whether `text` (or, if it is empty, the environment) names a directory of many hosts.
bool is_remote_directory(const std::string& text);

/// "here are: net2, other", for an error about a model that nobody publishes: the models of the directory without this
/// one. Empty if there are none, or if the directory does not answer.
std::string models_beside(Directory& directory, const std::string& model);

/// For every implementation: the error of a swap that does not go forward, or that has numbers out of range.
Status check_swap(const std::string& model, const CurrentVersion& expected, const CurrentVersion& desired);
/// "demo is at (epoch 2, version 17, held), not at (epoch 1, version 19)", failed_precondition.
Error not_expected(const std::string& model, const CurrentVersion& expected, const CurrentVersion& actual);
/// corrupt or invalid_argument, as `code` says, unless the addresses, host and numbers of an entry are within bounds.
Status check_entry(const Directory::Entry& entry, Code code);
Status check_server(const std::string& model, const Directory::Server& server, Code code);

}  // namespace freshet
