// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/watch.h"

#include <algorithm>

#include "core/base/format.h"

namespace freshet::redis {
namespace {

constexpr std::size_t kAnnouncementsMax = 64;

template <typename Ears, typename Say>
void tell(const Ears& ears, const Say& say) {
  for (const auto& weak : ears) {
    if (const auto ear = weak.lock()) say(*ear);
  }
}

void forget_gone(std::vector<std::weak_ptr<Ear>>* ears) {
  ears->erase(std::remove_if(ears->begin(), ears->end(), [](const auto& ear) { return ear.expired(); }), ears->end());
}

bool same(const Result<Look>& a, const Result<Look>& b) {
  if (!a || !b) return !a && !b && a.error().message() == b.error().message();
  return a->entry == b->entry && a->current == b->current && a->servers == b->servers;
}

}  // namespace

Seen Ear::seen() const {
  MutexLock lock(mutex_);
  return seen_;
}

void Ear::hear(Seen seen) {
  {
    MutexLock lock(mutex_);
    seen_ = std::move(seen);
    heard_ = true;
  }
  wake_.wake();
}

void Ear::hear(std::string announcement) {
  {
    MutexLock lock(mutex_);
    // The oldest goes: newer news says all that matters.
    if (announcements_.size() >= kAnnouncementsMax) announcements_.pop_front();
    announcements_.push_back(std::move(announcement));
  }
  wake_.wake();
}

bool Ear::take() {
  wake_.acknowledge();
  MutexLock lock(mutex_);
  return std::exchange(heard_, false);
}

std::vector<std::string> Ear::take_announcements() {
  MutexLock lock(mutex_);
  std::vector<std::string> taken(std::make_move_iterator(announcements_.begin()),
                                 std::make_move_iterator(announcements_.end()));
  announcements_.clear();
  return taken;
}

void Follower::add(const std::string& name, const std::shared_ptr<Ear>& ear, bool commits) {
  Model& model = models_[name];
  if (model.seen != nullptr) ear->hear(model.seen);
  const bool first = model.ears.empty();
  const bool first_commits = commits && model.commit_ears.empty();
  model.ears.push_back(ear);
  if (commits) model.commit_ears.push_back(ear);
  if (first || first_commits) listen(name, model);
  look(name);
}

void Follower::sweep() {
  for (auto at = models_.begin(); at != models_.end();) {
    forget_gone(&at->second.ears);
    forget_gone(&at->second.commit_ears);
    if (!at->second.ears.empty()) {
      ++at;
      continue;
    }
    client_.unsubscribe(news_channel(client_.address().database, at->first));
    client_.unsubscribe(commits_channel(client_.address().database, at->first));
    at = models_.erase(at);
  }
}

void Follower::look_again(const std::string& model) {
  if (models_.contains(model)) look(model);
}

void Follower::listen(const std::string& model, const Model& following) {
  if (!client_.news_ready()) return;
  const std::uint32_t database = client_.address().database;
  // Looked at once the channel is heard: whatever changes after that look is news.
  client_.subscribe(news_channel(database, model), [this, model](const Result<RedisReply>& reply) {
    if (reply && models_.contains(model)) look(model);
  });
  if (!following.commit_ears.empty()) client_.subscribe(commits_channel(database, model), [](const auto&) {});
}

void Follower::look(const std::string& name) {
  Model& model = models_.at(name);
  if (model.looking) {
    model.look_again = true;
    return;
  }
  if (!client_.commands_ready()) return;
  model.looking = true;
  model.look_again = false;
  client_.send("look at " + name, redis::look(name),
               [this, name](const Result<RedisReply>& reply) { on_looked(name, reply); });
}

void Follower::on_looked(const std::string& name, const Result<RedisReply>& reply) {
  const auto at = models_.find(name);
  if (at == models_.end()) return;
  Model& model = at->second;
  model.looking = false;
  model.look_at = system_clock().now() + client_.times().look_again;
  // Lost on the way: what was known stays, and the next connection asks again.
  if (!reply && reply.error().code() == Code::unavailable) return;
  auto seen =
      std::make_shared<const Result<Look>>(reply ? parse_look(name, **reply) : Result<Look>(fail(reply.error())));
  if (model.seen == nullptr || !same(*model.seen, *seen)) {
    model.seen = std::move(seen);
    tell(model.ears, [&](Ear& ear) { ear.hear(model.seen); });
  }
  if (model.look_again) look(name);
}

void Follower::on_commands_ready(Time /*now*/) {
  for (const auto& [name, model] : models_) look(name);
}

void Follower::on_news_ready(Time /*now*/) {
  for (const auto& [name, model] : models_) listen(name, model);
}

void Follower::on_news(const std::string& channel, const std::string& text, Time /*now*/) {
  const std::uint32_t database = client_.address().database;
  for (auto& [name, model] : models_) {
    if (channel == news_channel(database, name)) return look(name);
    if (channel != commits_channel(database, name)) continue;
    return tell(model.commit_ears, [&](Ear& ear) { ear.hear(text); });
  }
}

void Follower::on_away() {
  for (const auto& [name, model] : models_) {
    const Seen& seen = model.seen;
    tell(model.ears, [&](Ear& ear) { ear.hear(seen); });
  }
}

Time Follower::on_time(Time now) {
  if (!client_.commands_ready()) return Time::max();
  Time next = Time::max();
  for (auto& [name, model] : models_) {
    if (model.looking) continue;
    if (model.look_at <= now) look(name);
    if (!model.looking) next = std::min(next, model.look_at);
  }
  return next;
}

RedisWatch::RedisWatch(std::shared_ptr<RedisClient> client, std::shared_ptr<Follower> follower, std::string model,
                       std::shared_ptr<Ear> ear, bool commits)
    : client_(std::move(client)), follower_(std::move(follower)), model_(std::move(model)), ear_(std::move(ear)) {
  client_->post(
      [heard_by = follower_.get(), name = model_, heard = ear_, commits] { heard_by->add(name, heard, commits); });
}

RedisWatch::~RedisWatch() {
  ear_.reset();
  client_->post([follower = follower_.get()] { follower->sweep(); });
}

void RedisWatch::look_again() {
  client_->post([follower = follower_.get(), model = model_] { follower->look_again(model); });
}

Error RedisWatch::away() const {
  const bool away = client_->is_away();
  return Error(Code::unavailable,
               format("{}: {}", client_->address().text(), away ? client_->health() : "it has not answered yet"));
}

Result<Look> RedisWatch::seen() const {
  const Seen seen = ear_->seen();
  if (seen == nullptr) return fail(away());
  return *seen;
}

Result<Directory::Entry> RedisWatch::entry() {
  FRESHET_ASSIGN(Look look, seen());
  if (look.entry) return std::move(*look.entry);
  if (client_->is_away()) return fail(away());
  return fail(Code::not_found, format("nobody publishes {} in {}", model_, client_->address().text()));
}

Result<CurrentVersion> RedisWatch::current() {
  return seen().map([](const Look& look) { return look.current; });
}

Result<std::vector<Directory::Server>> RedisWatch::servers() {
  return seen().map([](const Look& look) { return look.servers; });
}

}  // namespace freshet::redis
