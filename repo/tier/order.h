// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a program tells the keeper what it will open, in order:
///
///     FRESHET_ASSIGN(const tier::Config config, tier::read_config(std::getenv("FRESHET_TIER")));
///     FRESHET_ASSIGN(tier::Order order, tier::Order::open(config));
///     FRESHET_TRY(order.tell(paths));
///
/// The keeper copies the files before the program opens them. While tiers have room, the copies stay. If tiers are
/// full, a copy stays only until the program has opened it (keeper/copies.h). It is a hint: nothing is promised, and
/// wrong paths do no harm. The order ends with this object.
///
/// One thread at a time.

#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "core/base/result.h"
#include "repo/tier/config.h"

namespace freshet::tier {

class KeeperLine;

class Order {
 public:
  /// unavailable when no keeper runs; open() does not start one.
  static Result<Order> open(const Config& config);
  /// Over a connection that is there (repo/tier/keeper/keeper_door.h), for Freshet's own programs.
  Order(const Config& config, KeeperLine line);
  Order(Order&& other) noexcept;
  Order& operator=(Order&& other) noexcept;
  ~Order();

  /// The program opens these files after the files that it told before. Paths below no source are left out.
  /// out_of_space: too many paths wait at the keeper, or too many programs have an order. unavailable: the keeper
  /// ended. timed_out: the keeper does not answer. After an error, the keeper keeps the paths that it took before the
  /// error.
  Status tell(std::span<const std::string> paths);
  /// Another epoch begins. The keeper forgets each file of this order that it has not begun to copy.
  Status anew();
  /// The keeper keeps the order, even after the destruction of this object.
  Status leave();

 private:
  /// Absolute, its folder without links; "" for what is below no source.
  std::string place_of(const std::string& path);

  std::vector<std::string> sources_;
  std::unique_ptr<KeeperLine> line_;
  std::unordered_map<std::string, std::string> folders_;
};

}  // namespace freshet::tier
