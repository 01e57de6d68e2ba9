// SPDX-License-Identifier: Apache-2.0
#include "transport/redis/directory.h"

#include <algorithm>
#include <system_error>

#include "core/base/format.h"

namespace freshet {
Result<std::unique_ptr<RedisDirectory>> RedisDirectory::open(RedisAddress address, RedisTimes times,
                                                             std::unique_ptr<HostDirectory> host) {
  auto parts = std::make_shared<Parts>();
  FRESHET_ASSIGN(parts->client, RedisClient::open(std::move(address), times));
  parts->keeper = std::make_unique<redis::Keeper>(*parts->client);
  parts->follower = std::make_unique<redis::Follower>(*parts->client);
  try {
    parts->client->start({parts->keeper.get(), parts->follower.get()});
  } catch (const std::system_error& error) {
    return fail(Code::unavailable, format("start a directory's thread: {}", error.what()));
  }
  return std::unique_ptr<RedisDirectory>(new RedisDirectory(std::move(host), std::move(parts)));
}

Result<std::unique_ptr<Directory::Claim>> RedisDirectory::claim(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  return redis::RedisClaim::take({parts_, parts_->client.get()}, {parts_, parts_->keeper.get()}, model);
}

Result<redis::Look> RedisDirectory::look(const std::string& model) {
  FRESHET_TRY(check_model_name(model));
  FRESHET_ASSIGN(const RedisReply reply, parts_->client->call("look up " + model, redis::look(model)));
  return redis::parse_look(model, *reply);
}

Result<Directory::Entry> RedisDirectory::lookup(const std::string& model) {
  FRESHET_ASSIGN(redis::Look seen, look(model));
  if (seen.entry) return std::move(*seen.entry);
  return fail(Code::not_found, format("nobody publishes {} in {}", model, text()));
}

Result<std::vector<Directory::Entry>> RedisDirectory::list() {
  FRESHET_ASSIGN(const RedisReply reply, parts_->client->call("list models", redis::list()));
  return redis::parse_list(*reply);
}

Result<std::unique_ptr<Directory::Watch>> RedisDirectory::watch(const std::string& model, bool commits) {
  FRESHET_TRY(check_model_name(model));
  FRESHET_ASSIGN(Wake wake, Wake::open());
  auto ear = std::make_shared<redis::Ear>(std::move(wake));
  return std::make_unique<redis::RedisWatch>(std::shared_ptr<RedisClient>(parts_, parts_->client.get()),
                                             std::shared_ptr<redis::Follower>(parts_, parts_->follower.get()), model,
                                             std::move(ear), commits);
}

void RedisDirectory::announce(const std::string& model, const std::string& announcement) {
  RedisClient* const client = parts_->client.get();
  client->post([client, channel = redis::commits_channel(database(), model), announcement] {
    client->send("announce", {"PUBLISH", channel, announcement}, [](const auto&) {});
  });
}

Result<CurrentVersion> RedisDirectory::current(const std::string& model) {
  return look(model).map([](const redis::Look& seen) { return seen.current; });
}

Result<CurrentVersion> RedisDirectory::compare_and_swap_current(const std::string& model,
                                                                const CurrentVersion& expected,
                                                                const CurrentVersion& desired) {
  FRESHET_TRY(check_swap(model, expected, desired));
  FRESHET_ASSIGN(const RedisReply reply, parts_->client->call("make another version of " + model + " current",
                                                              redis::swap(database(), model, "", expected, desired)));
  FRESHET_ASSIGN(const redis::Swapped swapped, redis::parse_swapped(model, *reply));
  if (swapped.differs) return fail(not_expected(model, expected, *swapped.differs));
  return desired;
}

Status RedisDirectory::serve(const std::string& model, const Server& server, Duration time_to_live) {
  FRESHET_TRY(check_server(model, server, Code::invalid_argument));
  const Duration living = std::clamp(time_to_live, Duration::zero(), kTimeToLiveMax);
  FRESHET_ASSIGN(const RedisReply reply,
                 parts_->client->call("tell who serves " + model, redis::serve(database(), model, server, living)));
  return {};
}

Status RedisDirectory::stop_serving(const std::string& model, const std::string& address) {
  FRESHET_TRY(check_server(model, {.address = address}, Code::invalid_argument));
  FRESHET_ASSIGN(const RedisReply reply, parts_->client->call("tell who no longer serves " + model,
                                                              redis::stop_serving(database(), model, address)));
  return {};
}

Result<std::vector<Directory::Server>> RedisDirectory::servers(const std::string& model) {
  return look(model).map([](const redis::Look& seen) { return seen.servers; });
}

}  // namespace freshet
