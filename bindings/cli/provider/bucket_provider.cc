// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/provider/bucket_provider.h"

#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/cli/frame/arguments.h"
#include "bindings/runtime/bucket_place.h"
#include "core/base/deadline.h"
#include "core/base/format.h"
#include "core/base/interruption.h"
#include "core/base/mutex.h"
#include "repo/cluster/providers.h"
#include "repo/provider_repository.h"
#include "repo/serve/remote_repository.h"
#include "repo/serve/server.h"
#include "transport/security/keys.h"
#include "transport/zmq/address.h"

namespace freshet::cli {
namespace {

constexpr Duration kOwnWithin = std::chrono::seconds(30);
constexpr Duration kOwnerLook = std::chrono::milliseconds(50);
/// An owner that did not answer the last time is asked less often.
constexpr Duration kSilentLook = std::chrono::milliseconds(500);
/// Between two challenges of an owner that answers the log, and not this process.
constexpr Duration kChallengePause = std::chrono::seconds(5);
/// Within this time after it owns the log, an owner opens the repository. Until then its server stands by. A command
/// has no server.
constexpr Duration kOwnerOpens = std::chrono::seconds(10);
/// An owner that ends waits at most this time for running calls: clients shall have a new owner within a second.
constexpr Duration kLastCalls = std::chrono::milliseconds(700);

/// When to challenge the owner. The log decides; this only spares it challenges.
class OwnerWatch {
 public:
  explicit OwnerWatch(const ServeArguments& arguments) : security_(arguments.security) {
    security_.allow_file.clear();
    security_.server_key.clear();
  }

  /// The owner answered a challenge.
  void on_alive() { refused_ = seen_ = system_clock().now(); }

  bool is_challenge_due(const ServedOwner& owner, const ServedOwner& self) {
    const Time now = system_clock().now();
    if (owner.address.empty() || owner == self) return now - refused_ >= kOwnerOpens;
    if (now < next_look_) return false;
    if (watch_ == nullptr || watched_ != owner) {
      watched_ = owner;
      SecurityOptions own = security_;
      if (owner.public_key.empty()) own.key_file.clear();  // An owner without keys takes none.
      const Result<SecurityOptions> security = security_for(owner, own);
      watch_ = ServerWatch::of(owner.address, security ? *security : own);
    }
    const ServerWatch::Seen seen = watch_->look();
    next_look_ = system_clock().now() + (seen == ServerWatch::Seen::owner ? kOwnerLook : kSilentLook);
    if (seen == ServerWatch::Seen::owner || seen == ServerWatch::Seen::refuses) {
      seen_ = next_look_;
      return false;
    }
    if (seen == ServerWatch::Seen::standby) return now - seen_ >= kOwnerOpens;
    return seen_ > refused_ || now - refused_ >= kChallengePause;
  }

 private:
  SecurityOptions security_;
  ServedOwner watched_;
  std::unique_ptr<ServerWatch> watch_;
  Time next_look_{};
  Time refused_{};
  Time seen_{};
};

/// One thread at a time.
class BucketProvider {
 public:
  BucketProvider(Program& program, const ServeArguments& arguments)
      : program_(program), arguments_(arguments), owner_watch_(arguments) {}

  Result<ExitCode> run() {
    FRESHET_TRY(listen());
    for (bool is_first = true; !program_.interrupt.requested(); is_first = false) {
      const Status ended = live();
      if (ended || program_.interrupt.requested()) continue;
      // Clients wait for a provider. So the process stays if the store alone is missing.
      const bool may_pass = ended.error().code() == Code::unavailable || ended.error().code() == Code::timed_out;
      if (is_first || !may_pass) return fail(ended.error());
      program_.out.log(ended.error().message());
      program_.interrupt.wait_until(deadline_in(kChallengePause));
    }
    return ExitCode::interrupted;
  }

 private:
  RepositoryServerOptions server_options() const {
    return {.address = bound_.empty() ? arguments_.listen : bound_,
            .security = arguments_.security,
            .channels = arguments_.channels,
            .moves = true};
  }

  /// The address must be known before the log has it.
  Status listen() {
    FRESHET_ASSIGN(server_, RepositoryServer::stand_by([this] { return owner(); }, server_options()));
    const bool has_keys = !arguments_.security.key_file.empty();
    FRESHET_ASSIGN(const SocketAddress asked, SocketAddress::parse(arguments_.listen, true, Reach::any_host));
    FRESHET_ASSIGN(const SocketAddress bound, SocketAddress::parse(server_->address(), true, Reach::any_host));
    bound_ = asked.is_wildcard() ? bound.at_host_of(asked).text() : server_->address();
    self_.address = arguments_.reached_at;
    if (self_.address.empty()) {
      if (asked.is_wildcard()) {
        return fail(Code::invalid_argument,
                    arguments_.listen +
                        " listens on every interface: give --reached-at tcp://HOST:PORT, the address by "
                        "which workers and standbys reach this host");
      }
      self_.address = server_->address();
    }
    if (!has_keys) return {};
    FRESHET_ASSIGN(const KeyPair keys, KeyPair::read(arguments_.security.key_file));
    self_.public_key = keys.public_key().text();
    return {};
  }

  ServedOwner owner() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return member_ == nullptr ? ServedOwner() : served_owner(*member_);
  }
  void set_member(std::shared_ptr<BucketMember> member) FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    member_.swap(member);
  }

  /// Stands by, owns, and was replaced. An error, or the end of the program, ends it before.
  Status live() {
    FRESHET_ASSIGN(std::shared_ptr<BucketMember> member,
                   join_bucket(program_.repository, self_, RepositoryAccess::own));
    set_member(member);
    Status lived = stand_by_and_own(*member);
    set_member(nullptr);
    if (repository_ == nullptr) return lived;
    // Clients stay connected: they call again until the standby answers.
    if (program_.interrupt.requested() && server_) {
      server_->drain(kLastCalls, {}, RepositoryServer::Until::calls_ended);
    }
    server_.reset();
    repository_.reset();
    member.reset();
    if (program_.interrupt.requested()) return lived;
    FRESHET_ASSIGN(server_, RepositoryServer::stand_by([this] { return owner(); }, server_options()));
    return lived;
  }

  Status stand_by_and_own(BucketMember& member) {
    FRESHET_ASSIGN(std::unique_ptr<Backend> backend, own(member));
    if (backend == nullptr) return {};
    FRESHET_ASSIGN(repository_, ProviderRepository::open(std::move(backend), {}));
    // By this, clients know the repository again, wherever it is served next.
    FRESHET_TRY(provider_id(*repository_));
    server_.reset();
    FRESHET_ASSIGN(server_, RepositoryServer::open(*repository_, server_options()));
    FRESHET_TRY(tell(false));
    repository_->prepare_match();
    // An owner that lost the store answers its clients errors, and falls silent, so that a standby takes over. Calls
    // that wait for the store keep this provider from standing by for some time more.
    Time current = system_clock().now();
    while (member.owns() && !member.error()) {
      if (program_.interrupt.wait_until(deadline_in(kOwnerLook))) return {};
      const Time now = system_clock().now();
      if (member.check_current()) {
        current = now;
      } else if (now - current >= kOwnerOpens) {
        program_.out.log(
            format("{}: the store does not answer the owner; this provider stands by", printable(program_.repository)));
        server_->fall_silent();
        return {};
      }
    }
    if (member.error()) return fail(*member.error());
    program_.out.log(
        format("{}: another process owns the repository now; this provider stands by", printable(program_.repository)));
    return {};
  }

  /// Nothing when the program is interrupted.
  Result<std::unique_ptr<Backend>> own(BucketMember& member) {
    for (;;) {
      Result<std::unique_ptr<Backend>> backend = [&] {
        const Interruption interruption([this] { return program_.interrupt.requested(); });
        return member.own(deadline_in(kOwnWithin));
      }();
      if (backend) return backend;
      if (backend.error().code() == Code::cancelled) return std::unique_ptr<Backend>();
      if (backend.error().code() != Code::unavailable) return backend;
      owner_watch_.on_alive();
      FRESHET_TRY(tell(true));
      while (member.owner() && !owner_watch_.is_challenge_due(served_owner(member), self_)) {
        if (member.error()) return fail(*member.error());
        if (program_.interrupt.wait_until(deadline_in(kOwnerLook))) return std::unique_ptr<Backend>();
      }
    }
  }

  Status tell(bool is_standby) {
    if (std::exchange(told_, is_standby) == is_standby) return {};
    return program_.out.emit(
        {{"repository", program_.repository}, {"address", self_.address}, {"pid", ::getpid()}, {"standby", is_standby}},
        is_standby ? format("{} has another owner; this provider stands by at {}", printable(program_.repository),
                            printable(self_.address))
                   : format("{} is served at {}", printable(program_.repository), printable(self_.address)));
  }

  Program& program_;
  const ServeArguments& arguments_;
  OwnerWatch owner_watch_;
  std::string bound_;  ///< Where it listens, with its port.
  ServedOwner self_;
  std::optional<bool> told_;

  // Each ends before those above it.
  Mutex mutex_;
  std::shared_ptr<BucketMember> member_ FRESHET_GUARDED_BY(mutex_);
  std::unique_ptr<ProviderRepository> repository_;
  std::unique_ptr<RepositoryServer> server_;
};

}  // namespace

Result<ExitCode> provide_bucket(Program& program, const ServeArguments& arguments) {
  if (!arguments.join.empty()) {
    return fail(Code::invalid_argument,
                "a repository in a bucket or a pool has one owner, and needs no --join: start a second provider as the "
                "standby");
  }
  if (arguments.listen.empty()) {
    return fail(
        Code::invalid_argument,
        program.repository + " has one owner for many hosts: give --listen, the address where this provider serves it");
  }
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = true;
  BucketProvider provider(program, arguments);
  return provider.run();
}

}  // namespace freshet::cli
