// SPDX-License-Identifier: Apache-2.0
#include "repo/tier/order.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/base/clock.h"
#include "repo/tier/keeper/keeper_door.h"

namespace freshet::tier {
namespace {

constexpr std::size_t kOrderBytesAtOnce = std::size_t{1} << 16;
constexpr std::size_t kFoldersKnownMax = 4096;
/// A keeper that is stopped must not stop a training loop.
constexpr Duration kOrderPatience = std::chrono::seconds(2);

Time order_deadline() { return system_clock().now() + kOrderPatience; }

}  // namespace

Order::Order(const Config& config, KeeperLine line)
    : sources_(config.sources), line_(std::make_unique<KeeperLine>(std::move(line))) {}
Order::Order(Order&& other) noexcept = default;
Order& Order::operator=(Order&& other) noexcept = default;
Order::~Order() = default;

Result<Order> Order::open(const Config& config) {
  FRESHET_ASSIGN(KeeperLine line, KeeperLine::connect(config));
  return Order(config, std::move(line));
}

std::string Order::place_of(const std::string& path) {
  namespace files = std::filesystem;
  std::error_code error;
  const files::path whole = files::absolute(path, error);
  if (error || whole.string().find('\0') != std::string::npos || whole.filename().empty()) return "";
  const std::string folder = whole.parent_path().string();
  auto known = folders_.find(folder);
  if (known == folders_.end()) {
    if (folders_.size() >= kFoldersKnownMax) folders_.clear();
    const files::path real = files::canonical(folder, error);
    known = folders_.emplace(folder, error ? "" : real.string()).first;
  }
  if (known->second.empty()) return "";
  std::string place = known->second + (known->second == "/" ? "" : "/") + whole.filename().string();
  const bool is_below = std::ranges::any_of(
      sources_, [&](const std::string& source) { return source == "/" || place.starts_with(source + "/"); });
  return is_below && place.size() < kPathRoom ? place : "";
}

Status Order::tell(std::span<const std::string> paths) {
  std::string records;
  for (const std::string& path : paths) {
    const std::string place = place_of(path);
    if (place.empty()) continue;
    records += "next " + place + '\0';
    if (records.size() < kOrderBytesAtOnce) continue;
    FRESHET_TRY(line_->send(records, order_deadline()));
    records.clear();
  }
  FRESHET_TRY(line_->send(records, order_deadline()));
  return line_->say("told", order_deadline());
}

Status Order::anew() { return line_->send(std::string("anew") + '\0', order_deadline()); }

Status Order::leave() { return line_->say("leave", order_deadline()); }

}  // namespace freshet::tier
