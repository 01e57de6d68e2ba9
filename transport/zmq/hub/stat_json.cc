// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "transport/zmq/hub/publisher_hub.h"

namespace freshet {

std::string to_json(const std::vector<PublisherStat>& models) {
  nlohmann::json list = nlohmann::json::array();
  for (const PublisherStat& model : models) {
    nlohmann::json subscribers = nlohmann::json::array();
    for (const SubscriberStat& subscriber : model.subscribers) {
      subscribers.push_back({{"label", subscriber.label},
                             {"pid", subscriber.pid},
                             {"every", subscriber.every},
                             {"silent", subscriber.silent},
                             {"serving", subscriber.serving},
                             {"held", subscriber.held},
                             {"queued_versions", subscriber.queued_versions},
                             {"gaps", subscriber.gaps},
                             {"channel", subscriber.channel},
                             {"channel_why", subscriber.channel_why},
                             {"serves", subscriber.serves},
                             {"member", subscriber.member},
                             {"epoch", subscriber.epoch},
                             {"staged", subscriber.staged},
                             {"failed", subscriber.failed},
                             {"behind", subscriber.behind}});
    }
    list.push_back({{"model", model.model},
                    {"newest", model.newest},
                    {"model_bytes", model.model_bytes},
                    {"versions_published", model.versions_published},
                    {"versions_skipped", model.versions_skipped},
                    {"bytes_published", model.bytes_published},
                    {"arena_bytes", model.arena_bytes},
                    {"arena_free_bytes", model.arena_free_bytes},
                    {"locked_bytes", model.locked_bytes},
                    {"directory", model.directory},
                    {"current",
                     {{"epoch", model.current.epoch},
                      {"version", model.current.version},
                      {"hold", model.current.hold},
                      {"kept", model.current_kept}}},
                    {"candidate", model.candidate},
                    {"activation_failure", model.activation_failure},
                    {"mixed_ns", model.mixed.count()},
                    {"subscribers", std::move(subscribers)}});
  }
  return nlohmann::json{{"models", std::move(list)}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace freshet
