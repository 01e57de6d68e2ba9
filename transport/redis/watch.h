// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The models in Redis, kept up to date for those who watch: read again at every news, every connection, and now and
/// then, since news can be lost.

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/wake.h"
#include "transport/redis/client.h"
#include "transport/redis/scripts.h"

namespace freshet::redis {

/// The last answer about a model; immutable.
using Seen = std::shared_ptr<const Result<Look>>;

/// One watch's ear: what the follower tells it. Any thread.
class Ear {
 public:
  explicit Ear(Wake wake) : wake_(std::move(wake)) {}
  int descriptor() const { return wake_.descriptor(); }
  /// Null before the first answer.
  Seen seen() const FRESHET_EXCLUDES(mutex_);
  void hear(Seen seen) FRESHET_EXCLUDES(mutex_);
  void hear(std::string announcement) FRESHET_EXCLUDES(mutex_);
  bool take() FRESHET_EXCLUDES(mutex_);
  std::vector<std::string> take_announcements() FRESHET_EXCLUDES(mutex_);

 private:
  const Wake wake_;
  mutable Mutex mutex_;
  Seen seen_ FRESHET_GUARDED_BY(mutex_);
  bool heard_ FRESHET_GUARDED_BY(mutex_) = false;
  std::deque<std::string> announcements_ FRESHET_GUARDED_BY(mutex_);  ///< The last few.
};

/// Belongs to the client's thread.
class Follower final : public RedisClient::Guest {
 public:
  explicit Follower(RedisClient& client) : client_(client) {}

  /// `commits`: also announcements.
  void add(const std::string& model, const std::shared_ptr<Ear>& ear, bool commits);
  /// Forgets ears that are gone, and models without any.
  void sweep();
  void look_again(const std::string& model);

  void on_commands_ready(Time now) override;
  void on_news_ready(Time now) override;
  void on_news(const std::string& channel, const std::string& text, Time now) override;
  void on_away() override;
  Time on_time(Time now) override;

 private:
  struct Model {
    Seen seen;
    std::vector<std::weak_ptr<Ear>> ears;
    std::vector<std::weak_ptr<Ear>> commit_ears;
    bool looking = false;
    bool look_again = false;
    Time look_at{};
  };
  void listen(const std::string& model, const Model& following);
  void look(const std::string& model);
  void on_looked(const std::string& model, const Result<RedisReply>& reply);

  RedisClient& client_;
  std::map<std::string, Model> models_;
};

/// One thread at a time.
class RedisWatch final : public Directory::Watch {
 public:
  RedisWatch(std::shared_ptr<RedisClient> client, std::shared_ptr<Follower> follower, std::string model,
             std::shared_ptr<Ear> ear, bool commits);
  ~RedisWatch() override;

  int descriptor() const override { return ear_->descriptor(); }
  bool take() override { return ear_->take(); }
  void look_again() override;
  Result<Directory::Entry> entry() override;
  Result<CurrentVersion> current() override;
  Result<std::vector<Directory::Server>> servers() override;
  std::vector<std::string> take_announcements() override { return ear_->take_announcements(); }

 private:
  Result<Look> seen() const;
  Error away() const;

  const std::shared_ptr<RedisClient> client_;
  const std::shared_ptr<Follower> follower_;
  const std::string model_;
  std::shared_ptr<Ear> ear_;
};

}  // namespace freshet::redis
