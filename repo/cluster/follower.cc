#include "repo/cluster/follower.h"

#include <map>
#include <system_error>
#include <thread>

#include "core/format.h"
#include "repo/cluster/membership.h"

namespace freshet::cluster {
namespace {

/// Of one question. Small enough that one page is applied within milliseconds.
constexpr std::uint32_t kChangesPerPage = 1024;

class Follower final : public ProviderFollower {
 public:
  Follower(Repository& own, std::string self, Connect connect, Options options)
      : own_(own),
        self_(std::move(self)),
        connect_(std::move(connect)),
        options_(options),
        replica_(std::make_shared<Replica>(options.times, system_clock())) {}
  ~Follower() override;
  Status start();
  const Replica& replica() const override { return *replica_; }

 private:
  void look_after_placement() FRESHET_EXCLUDES(mutex_);
  void meet(const Provider& provider) FRESHET_EXCLUDES(mutex_);
  void follow(const std::string& id) FRESHET_EXCLUDES(mutex_);
  Result<FeedPage> ask(const std::string& id, std::shared_ptr<Member>& member, const FeedPosition& after)
      FRESHET_EXCLUDES(mutex_);

  Repository& own_;
  const std::string self_;
  const Connect connect_;
  const Options options_;
  const std::shared_ptr<Replica> replica_;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string> addresses_ FRESHET_GUARDED_BY(mutex_);
  std::thread looking_;
  std::map<std::string, std::thread> following_;  ///< The looking thread's; then the destructor's.
};

Follower::~Follower() {
  own_.answer_for_all_with(nullptr);
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    stopped_.notify_all();
  }
  replica_->stop();
  if (looking_.joinable()) looking_.join();
  for (auto& [id, thread] : following_) thread.join();
}

Status Follower::start() {
  try {
    looking_ = std::thread([this] { look_after_placement(); });
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a thread that follows providers: {}", error.what()));
  }
  own_.answer_for_all_with(replica_);
  return {};
}

void Follower::look_after_placement() {
  for (;;) {
    // Where it is not to be read now, it stays what it was.
    if (const Result<Placement> placement = placement_at(own_)) {
      for (const Provider& provider : placement->providers()) meet(provider);
    }
    const MutexLock lock(mutex_);
    const Time next = system_clock().now() + options_.look;
    while (!stopping_ && stopped_.wait_until(mutex_, next)) {
    }
    if (stopping_) return;
  }
}

void Follower::meet(const Provider& provider) {
  {
    const MutexLock lock(mutex_);
    addresses_[provider.id] = provider.address;
  }
  if (following_.contains(provider.id)) return;
  replica_->add(provider.id);
  try {
    following_.emplace(provider.id, std::thread([this, id = provider.id] { follow(id); }));
  } catch (const std::system_error&) {
    // Until there is a thread for it, answers say that it is not followed.
  }
}

Result<FeedPage> Follower::ask(const std::string& id, std::shared_ptr<Member>& member, const FeedPosition& after) {
  if (id == self_) return own_.changes(after, kChangesPerPage);
  std::string address;
  {
    const MutexLock lock(mutex_);
    address = addresses_[id];
  }
  if (member == nullptr || member->provider().address != address) {
    member = std::make_shared<Member>(Provider{.id = id, .address = address}, connect_);
  }
  return member->ask([&](Repository& at) { return at.changes(after, kChangesPerPage); });
}

void Follower::follow(const std::string& id) {
  FollowMachine machine(options_.times, replica_->sink(id));
  std::shared_ptr<Member> member;
  while (!replica_->is_stopped()) {
    const auto question = machine.ask(system_clock().now());
    if (!question) {
      if (replica_->wait_for_need(id, machine.due())) machine.hurry();
      continue;
    }
    const Result<FeedPage> page = ask(id, member, question->after);
    const Time now = system_clock().now();
    if (page) {
      machine.on_page(question->number, *page, now);
    } else {
      machine.on_failure(question->number, page.error(), now);
    }
    replica_->set_followed(id, machine.followed());
  }
}

}  // namespace

Result<std::unique_ptr<ProviderFollower>> ProviderFollower::start(Repository& own, std::string self, Connect connect,
                                                                  Options options) {
  auto follower = std::make_unique<Follower>(own, std::move(self), std::move(connect), options);
  FRESHET_TRY(follower->start());
  return follower;
}

}  // namespace freshet::cluster
