// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A simulated relay: a subscriber that fetches every version into its own arena, and in the same process a hub that
/// serves them from there again, to its host's neighbours through its door and to others over data channels. The others
/// get what it fetches while it comes.

#include "tests/transport/sim/hub.h"
#include "tests/transport/sim/subscriber.h"

namespace freshet::sim {

class SimRelay : public SimSubscriber, public Source {
 public:
  SimRelay(Host& host, Kind kind) : SimSubscriber(host, std::move(kind)), name_(this->kind().label) {}

  void start() override;
  void kill() override;
  ~SimRelay() override { token_.reset(); }

  std::shared_ptr<Coming> offer(const protocol::Grant& grant, const std::shared_ptr<const Manifest>& manifest,
                                const OwnArena::Plan& plan, const ConnectionPointer& from) override;
  void more_came() override { hub_->data().look_again(); }
  void withdraw() override;

  const std::string& name() const override { return name_; }
  Process& server_process() override { return process(); }
  Hub* hub() override { return hub_.get(); }

 protected:
  void on_fetched(const Mapped& mapped, const protocol::Grant& grant) override;

 private:
  std::string name_;
  std::unique_ptr<Hub> hub_;
  protocol::Current record_;
  std::uint64_t told_gaps_ = 0;  ///< Of its own, what those behind it were told.
  std::shared_ptr<Coming> coming_;
  std::shared_ptr<int> token_;  ///< Of this life of its arena.
};

}  // namespace freshet::sim
