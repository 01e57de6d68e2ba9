// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A UCX context with one worker, and what both sides of the channel do with it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/result.h"
#include "core/model/tensor.h"
#include "transport/channel/ucx/frame.h"
#include "transport/channel/ucx/library.h"

namespace freshet::channel::ucx {

/// An active message as it came in.
struct Incoming {
  MessageId id = MessageId::ping;
  std::array<std::byte, kHeaderBytesMax> header_bytes{};
  std::size_t header_length = 0;
  std::uint64_t length = 0;
  bool rendezvous = false;     ///< The bytes are still with the sender.
  Bytes payload;               ///< Otherwise here they are, for as long as the message is being handled.
  void* descriptor = nullptr;  ///< Of a rendezvous; given back by Worker::receive or Worker::drop.

  Bytes header() const { return Bytes(header_bytes.data(), header_length); }
};

/// One thread at a time, but for register_memory.
class Worker {
 public:
  struct Options {
    bool loopback = false;
    bool rendezvous = false;  ///< Answers come by rendezvous.
  };
  static Result<std::unique_ptr<Worker>> open(const Options& options);
  /// Whatever is under way is dropped. Endpoints and listeners are closed before.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const Library& ucx() const { return ucx_; }
  ucp_worker_h handle() const { return worker_; }
  /// Readable when there may be something to do, once arm() returned true.
  int descriptor() const { return descriptor_; }
  bool progress() { return ucx_.ucp_worker_progress(worker_) != 0; }
  /// False when there is something to do already.
  Result<bool> arm();

  /// Messages of that id are handed to `handle` from now on, within progress(), so that bytes need to be copied only
  /// once: to where they belong. It may send, but not progress or close. Rendezvous are put into incoming() instead,
  /// and are handled after progress().
  Status take_messages(MessageId id, std::function<void(const Incoming&)> handle);
  std::vector<Incoming>& incoming() { return incoming_; }
  /// Lets go of a rendezvous unread: it ends for its sender as if it had been read.
  void drop(const Incoming& message);
  /// Receives a rendezvous into `to`, which is as long as the message. Null when it is done already, an error as
  /// UCS_PTR_STATUS, or a request that ends with `done`. Takes the message's data.
  ucs_status_ptr_t receive(const Incoming& message, MutableBytes to, ucp_am_recv_data_nbx_callback_t done,
                           void* argument);

  /// Starts to close the endpoint by force. Null when it is done already.
  ucs_status_ptr_t close_by_force(ucp_ep_h endpoint);
  /// Whether that is over; frees the request then.
  bool closed(ucs_status_ptr_t closing);

  /// Pins memory until it is to be forgotten or the worker ends, where a transport wants that. Told of twice, it counts
  /// once. Any thread.
  Status register_memory(Bytes memory);
  void forget_memory(Bytes memory);
  std::uint64_t bytes_registered() const;

 private:
  struct Handler {
    Worker* worker = nullptr;
    MessageId id = MessageId::ping;
    std::function<void(const Incoming&)> handle;
  };
  explicit Worker(const Library& ucx) : ucx_(ucx) {}
  Status start(const Options& options);
  /// Sets what the user's environment leaves open.
  void prefer(ucp_config_t* config, const Options& options);
  static ucs_status_t on_message(void* argument, const void* header, std::size_t header_length, void* data,
                                 std::size_t length, const ucp_am_recv_param_t* param);

  const Library& ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
  std::vector<std::unique_ptr<Handler>> handlers_;
  std::vector<Incoming> incoming_;
  struct Registered {
    ucp_mem_h handle = nullptr;
    std::uint64_t bytes = 0;
  };
  mutable Mutex mutex_;
  std::map<const std::byte*, Registered> registered_ FRESHET_GUARDED_BY(mutex_);  ///< By where it begins.
};

}  // namespace freshet::channel::ucx
