// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The serving side of every channel: its thread, its counts, and when it cuts a client off. The work of the library is
/// behind Port.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/result.h"
#include "transport/channel/channel.h"
#include "transport/channel/skeleton/request_queue.h"

namespace freshet::channel {

/// What a library does for a server: connections, and a RequestQueue for each. The server's thread only, unless noted.
/// Destroying it, after close(), ends whatever is left.
class Port {
 public:
  virtual ~Port() = default;

  virtual ChannelKind kind() const = 0;      ///< Any thread.
  virtual std::string address() const = 0;   ///< Any thread.
  struct Taken {
    bool any = false;  ///< It did something.
    bool all = true;   ///< Nothing is left of what had come: silence is silence.
  };
  /// Takes what came: new connections, messages for the queues, and the ends of sends.
  virtual Taken receive() = 0;
  /// Sends what the queues have to say. True if it did anything.
  virtual bool send() = 0;
  /// Ends, by force, the connections whose queue `is_to_go`, which is asked of all but those that end already.
  virtual void cut(const std::function<bool(const RequestQueue&)>& is_to_go) = 0;
  /// Until the wake is readable, which is acknowledged then, something came, or the time is up.
  virtual void sleep(const Wake& wake, Duration at_most) = 0;
  /// Ends all connections, by force.
  virtual void close() = 0;
  /// Rounds without anything to do before the thread sleeps, while answers are on their way.
  virtual int idle_rounds() const { return 0; }
  // As ChannelServer's. Any thread.
  virtual Status register_memory(Bytes /*memory*/) { return {}; }
  virtual void forget_memory(Bytes /*memory*/) {}
  virtual std::uint64_t bytes_registered() const { return 0; }
};

class Server final : public ChannelServer {
 public:
  /// Starts the thread.
  static Result<std::unique_ptr<ChannelServer>> open(std::unique_ptr<Service> service, std::unique_ptr<Port> port);
  ~Server() override;

  ChannelKind kind() const override { return port_->kind(); }
  std::string address() const override { return port_->address(); }
  void cut_off(protocol::SessionId session) override;
  ChannelStat stat() const override;
  void look_again() override { service_->wake.wake(); }
  Status register_memory(Bytes memory) override { return port_->register_memory(memory); }
  void forget_memory(Bytes memory) override { port_->forget_memory(memory); }

 private:
  Server(std::unique_ptr<Service> service, std::unique_ptr<Port> port)
      : service_(std::move(service)), port_(std::move(port)) {}
  void run();
  bool take_commands();
  /// When the first of those that are busy is silent for too long; an hour for none of them.
  Duration time_to_silence(Time now) const;

  const std::unique_ptr<Service> service_;
  const std::unique_ptr<Port> port_;  ///< Its queues end before the service does.
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<protocol::SessionId> cut_off_ FRESHET_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace freshet::channel
