// SPDX-License-Identifier: Apache-2.0
/// A publisher or a subscriber in a process of its own, told by lines on its input what to do; each is answered by one
/// line.
///   stream_peer publish MODEL FOLDER TENSORS ELEMENTS [CHANNEL]    "publish STAMP", "publish_one TENSOR STAMP"; with a
///       channel it can be fetched from by it
///   stream_peer subscribe MODEL FOLDER                   "wait VERSION", "pin", "check", "unpin", "serving", "slabs"
///   stream_peer relay MODEL FOLDER AT CHANNEL            the same; says "ready ADDRESS"

#include <sys/prctl.h>
#include <sys/types.h>

#include <csignal>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>

#include "tests/transport/stamped_model.h"
#include "transport/option_text.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

namespace freshet::test {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);

void answer(const std::string& line) { std::cout << line << std::endl; }

int publish(const std::string& model, const std::string& folder, StampedModel values, const std::string& channel) {
  PublisherOptions opened{.model = model, .hub_options = {.directory = folder}};
  if (!channel.empty()) {
    opened.hub_options.listen = "tcp://127.0.0.1:*";
    opened.hub_options.channels = parse_channel_choice(channel).value();
  }
  auto publisher = Publisher::open(std::move(opened));
  if (!publisher) {
    answer("error " + publisher.error().message());
    return 1;
  }
  answer("ready");
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    std::uint64_t tensor = 0;
    std::uint64_t stamp = 0;
    words >> verb;
    PublishOptions options;
    if (verb == "publish_one") {
      words >> tensor >> stamp;
      values.stamp(tensor, stamp);
      options.changed = Changed::only({static_cast<std::uint32_t>(tensor)});
    } else {
      words >> stamp;
      values.stamp_all(stamp);
      options.changed = Changed::all();
    }
    const auto receipt = (*publisher)->publish(values.views(), options);
    if (!receipt) {
      answer("error " + receipt.error().message());
      continue;
    }
    const auto report = (*publisher)->wait_committed(receipt->version, kPatience);
    answer(report ? "version " + std::to_string(receipt->version) : "error " + report.error().message());
  }
  return 0;
}

/// "version V stamps S…", S of each tensor, "torn" for one that is mixed.
std::string describe_pinned(const Snapshot& snapshot) {
  if (!snapshot) return "none";
  std::string line = "version " + std::to_string(snapshot.version()) + " stamps";
  for (std::uint32_t tensor = 0; tensor < snapshot.manifest().owners.size(); ++tensor) {
    const auto stamp = stamp_of(snapshot, tensor);
    line += ' ';
    line += stamp ? std::to_string(*stamp) : "torn";
  }
  return line;
}

/// The inodes of the slabs that are mapped here.
std::string mapped_slabs() {
  std::set<std::string> inodes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:freshet") == std::string::npos) continue;
    std::istringstream words(line);
    std::string range, permissions, offset, device, inode;
    words >> range >> permissions >> offset >> device >> inode;
    inodes.insert(inode + permissions);
  }
  std::string line = "slabs";
  for (const std::string& inode : inodes) line.append(" ").append(inode);
  return line;
}

int subscribe(SubscriberOptions options) {
  const std::string address = options.relay == nullptr ? "" : " " + address_of(*options.relay);
  auto subscriber = Subscriber::open(std::move(options));
  if (!subscriber) {
    answer("error " + subscriber.error().message());
    return 1;
  }
  answer("ready" + address);
  Snapshot pinned;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb;
    VersionNumber version = 0;
    words >> verb >> version;
    if (verb == "wait") {
      const Status status = (*subscriber)->wait_for(version, kPatience);
      answer(status ? "version " + std::to_string((*subscriber)->status().serving)
                    : "error " + status.error().message());
    } else if (verb == "pin") {
      pinned = (*subscriber)->snapshot();
      answer(describe_pinned(pinned));
    } else if (verb == "check") {
      answer(describe_pinned(pinned));
    } else if (verb == "unpin") {
      pinned = Snapshot();
      answer("none");
    } else if (verb == "serving") {
      answer("version " + std::to_string((*subscriber)->status().serving));
    } else if (verb == "slabs") {
      answer(mapped_slabs());
    } else {
      answer("error what is " + verb);
    }
  }
  return 0;
}

int relay(const std::string& model, const std::string& folder, const std::string& at, const std::string& channel) {
  auto hub = open_publisher_hub({.directory = folder});
  if (!hub) {
    answer("error " + hub.error().message());
    return 1;
  }
  SubscriberOptions options{.model = model, .at = parse_addresses(at)};
  options.channel = parse_channel(channel).value();
  options.lock_memory = false;
  options.relay = *hub;
  return subscribe(std::move(options));
}

}  // namespace
}  // namespace freshet::test

int main(int count, char** words) {
  // A test that dies takes its peers along.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::vector<std::string> arguments(words + 1, words + count);
  if ((arguments.size() == 5 || arguments.size() == 6) && arguments[0] == "publish") {
    return freshet::test::publish(arguments[1], arguments[2],
                                  freshet::test::StampedModel(std::stoul(arguments[3]), std::stoul(arguments[4])),
                                  arguments.size() == 6 ? arguments[5] : "");
  }
  if (arguments.size() == 3 && arguments[0] == "subscribe") {
    return freshet::test::subscribe({.model = arguments[1], .directory = arguments[2]});
  }
  if (arguments.size() == 5 && arguments[0] == "relay") {
    return freshet::test::relay(arguments[1], arguments[2], arguments[3], arguments[4]);
  }
  std::cerr << "usage: stream_peer publish MODEL FOLDER TENSORS ELEMENTS [CHANNEL] | subscribe MODEL FOLDER | "
               "relay MODEL FOLDER AT CHANNEL\n";
  return 2;
}
