#include "repo/cluster/address_keeper.h"

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "core/format.h"
#include "core/mutex.h"
#include "repo/cluster/membership.h"

namespace freshet::cluster {
namespace {

class Keeper final : public AddressKeeper {
 public:
  Keeper(Repository& own, std::string self, std::string address, std::shared_ptr<ProviderFinder> finder,
         Options options)
      : own_(own),
        self_(std::move(self)),
        address_(std::move(address)),
        finder_(std::move(finder)),
        options_(options) {}
  ~Keeper() override {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      stopped_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }
  Status start() {
    // Before it returns, so that nobody can ask here and miss it. What fails now is tried again by the thread.
    if (const Result<Placement> placement = placement_at(own_)) {
      const Status said = say_own(*placement);
      if (!said && said.error().code() == Code::invalid_argument) return said;
    }
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      return fail(Code::unavailable, format("start a thread that tells providers' addresses: {}", error.what()));
    }
    return {};
  }

 private:
  /// What one of the others was told.
  struct Told {
    std::string book;
    Time again{};  ///< Not before that, when it was away.
  };

  void run() FRESHET_EXCLUDES(mutex_);
  bool stopping() FRESHET_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return stopping_;
  }
  /// True when something new was heard, which others are to know.
  bool tell_others() FRESHET_EXCLUDES(mutex_);
  Status say_own(const Placement& placement);
  bool exchange(const Provider& provider, Told& told);

  Repository& own_;
  const std::string self_;
  const std::string address_;
  const std::shared_ptr<ProviderFinder> finder_;
  const Options options_;
  std::map<std::string, Told> told_;  ///< The thread's, as is
  bool is_said_ = true;               ///< where it is now, as far as it knows.
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ FRESHET_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Where the placement says it, and nobody says otherwise, there is nothing to say.
Status Keeper::say_own(const Placement& placement) {
  const std::size_t at = placement.index_of(self_);
  if (address_.empty() || at == placement.providers().size()) return {};
  FRESHET_ASSIGN(const AddressBook book, addresses_at(own_));
  const std::string said = book.address_of(self_);
  if ((said.empty() ? placement.providers()[at].address : said) == address_) return {};
  return say_address(own_, self_, address_);
}

bool Keeper::exchange(const Provider& provider, Told& told) {
  const auto reached = finder_->reach(provider);
  const auto both = reached ? exchange_addresses(own_, **reached) : Result<AddressBook>(fail(reached.error()));
  if (!both) {
    told.again = system_clock().now() + options_.again;
    return false;
  }
  finder_->learn(*both);
  const std::string before = std::exchange(told.book, both->encode());
  return before != told.book;
}

bool Keeper::tell_others() {
  const Result<Placement> placement = placement_at(own_);
  if (!placement) return false;
  is_said_ = say_own(*placement).has_value();
  if (!is_said_) return false;
  finder_->know(*placement);
  bool any = false;
  for (const Provider& provider : placement->providers()) {
    const auto book = addresses_at(own_);
    if (!book || stopping()) return false;
    finder_->learn(*book);
    Told& told = told_[provider.id];
    if (provider.id == self_ || told.book == book->encode() || system_clock().now() < told.again) continue;
    any |= exchange(provider, told);
  }
  return any;
}

void Keeper::run() {
  Duration pause = options_.look;
  for (;;) {
    while (!stopping() && tell_others()) {
    }
    pause = is_said_ ? options_.look : std::min(pause * 2, std::max(options_.look, options_.look_max));
    const MutexLock lock(mutex_);
    const Time next = system_clock().now() + pause;
    while (!stopping_ && stopped_.wait_until(mutex_, next)) {
    }
    if (stopping_) return;
  }
}

}  // namespace

Result<std::unique_ptr<AddressKeeper>> AddressKeeper::start(Repository& own, std::string self, std::string address,
                                                            std::shared_ptr<ProviderFinder> finder, Options options) {
  auto keeper = std::make_unique<Keeper>(own, std::move(self), std::move(address), std::move(finder), options);
  FRESHET_TRY(keeper->start());
  return std::unique_ptr<AddressKeeper>(std::move(keeper));
}

}  // namespace freshet::cluster
